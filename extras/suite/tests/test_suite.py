"""Checkpoints of a run: evaluated into one table, verified, trained again, exported, and told apart."""

import csv
import shutil
from pathlib import Path

import pytest

from extras.suite import suite
from lm.core.files import read_json, write_json
from lm.plots import figure_of
from support.refusal import refused
from support.workspace import Workspace, python_of_tests
from tools.export_hf import cli as export_hf
from tools.verify import cli as verify

MODEL = Path("data/models/model.json")
KEPT_WEIGHTS = Path("data/models/kept_weights")
NAMES = [f"step-{step:09d}" for step in (0, 4, 16)]


@pytest.fixture(scope="module")
def made(tmp_path_factory, finished):
    """The finished pipeline, trained again with kept checkpoints, and their evaluation."""
    workspace = Workspace(tmp_path_factory.mktemp("suite") / "made", finished)
    workspace.change(**{"train.keep_weights_at": [0, 512 * 4, 512 * 16]})
    workspace.repro("eval")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace.folder)
        patch.setattr("sys.executable", python_of_tests())  # of the evaluations
        for name, accuracy in zip(NAMES, (0.5, 0.6, 0.9), strict=True):
            sha256 = read_json(KEPT_WEIGHTS / name / "model.json")["best"]["sha256"]
            tasks = {"pairs": {"metrics": {"acc": {"value": accuracy, "stderr": 0.1}}}}
            write_json(f"lm_eval-{name}.json", {"model": {"weights_sha256": sha256}, "tasks": tasks})
        assert suite.main(["--tasks", *(f"lm_eval-{name}.json" for name in NAMES)]) == 0
    return workspace


def test_accuracies_go_to_the_row_of_their_weights(tmp_path):
    rows = [{"weights": "ab12"}, {"weights": "cd34"}]
    accuracy = {"value": 0.7, "stderr": 0.1}
    tasks = {"pairs": {"metrics": {"acc": accuracy}}, "text": {"metrics": {"perplexity": {"value": 3.0}}}}
    write_json(tmp_path / "cd.json", {"model": {"weights_sha256": "cd34" * 16}, "tasks": tasks})

    names = suite.add_accuracies(rows, [tmp_path / "cd.json"])

    assert names == ["pairs"]
    assert rows == [{"weights": "ab12"}, {"weights": "cd34", "pairs": 0.7, "pairs_se": 0.1}]


def test_a_curve_has_its_standard_errors_and_its_last_value():
    """One document gives no standard error. A row without the column gives no point."""
    points = [(0, 2.5, None), (512, 2.0, 0.25), (2048, 1.23456, 0.125)]
    rows = [{"tokens": tokens, "loss": loss, "loss_se": error} for tokens, loss, error in points]

    figure = figure_of(lambda axes: suite.draw(axes, [*rows, {"tokens": 4096}], ["loss"], "loss"), size=(7.5, 3.6))

    (axes,) = figure.axes
    line, _, (bars,) = axes.containers[0].lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0, 512, 2048], [2.5, 2.0, 1.23456])
    heights = [height for segment in bars.get_segments() for height in segment[:, 1]]
    assert heights == pytest.approx([2.5, 2.5, 1.75, 2.25, 1.10956, 1.35956])
    assert [text.get_text() for text in axes.texts] == ["1.235"]


@pytest.fixture
def workspace(made, monkeypatch):
    monkeypatch.chdir(made.folder)
    monkeypatch.setattr("sys.executable", python_of_tests())  # of the evaluations
    return made


def test_the_table_has_the_figures_of_each_checkpoint(workspace):
    with open("suite/suite.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["pairs"]) for row in rows] == [("0", "0.5"), ("4", "0.6"), ("16", "0.9"), ("20", "")]
    assert [row["tokens"] for row in rows] == [str(512 * step) for step in (0, 4, 16, 20)]
    for row, folder in zip(rows, [*(Path("suite") / name for name in NAMES), Path("data/evaluation")], strict=True):
        details = read_json(folder / "details.json")
        assert row["weights"].startswith(details["weights_sha256"])
        assert float(row["bits_per_byte"]) == pytest.approx(details["bits_per_byte"], rel=1e-6)
    losses = [float(row["bits_per_byte"]) for row in rows]
    assert losses == sorted(losses, reverse=True) and Path("suite/suite.png").read_bytes()[:4] == b"\x89PNG"


def test_an_evaluation_with_the_same_inputs_is_kept(workspace, monkeypatch, capsys):
    monkeypatch.setattr(suite.subprocess, "run", None)
    assert suite.main([]) == 0 and "suite/suite.png" in capsys.readouterr().out
    write_json("other.json", {"model": {"weights_sha256": "ab" * 32}, "tasks": {}})
    status = suite.main(["--tasks", "other.json"])
    error = capsys.readouterr().err
    refused(status, error, 4, "other.json: is about the weights abab")
    inputs = Path("suite") / NAMES[0] / "inputs.json"
    content = read_json(inputs)
    assert content["params"] and {"src/eval.py", "data/tokenizer"} < content["hashes"].keys()
    write_json(inputs, content | {"hashes": {}})
    with pytest.raises(TypeError):
        suite.main([])
    write_json(inputs, content)


def test_changed_parameters_of_eval_are_refused(workspace, capsys):
    """The rows, of which dvc.lock says how they were evaluated, are never joined by others."""
    before = workspace.get("eval.stride_fraction")
    workspace.change(**{"eval.stride_fraction": 0.25})
    shutil.rmtree(Path("suite") / NAMES[1])
    status = suite.main([])
    error = capsys.readouterr().err
    refused(status, error, 4, "dvc.lock: inputs or outputs of the stage eval changed", "run `dvc repro eval`")
    assert not (Path("suite") / NAMES[1]).exists()
    workspace.change(**{"eval.stride_fraction": before})
    assert suite.main([]) == 0
    assert read_json(Path("suite") / NAMES[1] / "details.json")["stride_tokens"] == before * workspace.get(
        "train.seq_len"
    )


def test_evaluations_of_other_weights_are_refused(workspace, capsys):
    details = Path("suite") / NAMES[0] / "details.json"
    content = read_json(details)
    write_json(details, content | {"weights_sha256": "ab" * 6})
    refused(suite.main([]), capsys.readouterr().err, 4, f"suite/{NAMES[0]}: is about other weights than {KEPT_WEIGHTS}")
    write_json(details, content)


def test_a_checkpoint_is_trained_again_from_the_state_before_it(workspace, capsys):
    assert verify.main(["--retrain", "--from", "10"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "same bits: the weights of step-000000016"
    record = read_json(MODEL)
    write_json(MODEL, {**record, "kept_weights": record["kept_weights"] | {NAMES[2]: "ab" * 32}})
    assert verify.main(["--retrain", "--from", "10"]) == 4
    write_json(MODEL, record)


def test_a_checkpoint_is_exported_as_a_revision(workspace, capsys):
    models = str(KEPT_WEIGHTS / NAMES[1])
    assert export_hf.main(["exported", "--models", models, "--evaluation", f"suite/{NAMES[1]}"]) == 0
    assert read_json("exported/model.json")["best"]["step"] == 4
    assert verify.main(["exported"]) == 0
    card = Path("exported/README.md").read_text()
    assert "a checkpoint that the run kept after step 4 of 20.\n" in card and "did not select the weights" not in card
    assert f"sha256sum {KEPT_WEIGHTS / NAMES[1]}/best_model_params.pt" in card
    # The card has the figures of these weights; those of others are refused.
    assert export_hf.main(["other", "--models", models]) == 4
    assert "is about the model" in (error := capsys.readouterr().err) and "`python src suite` makes" in error


def test_equal_neighbours_are_found(workspace, capsys):
    before = {path: path.read_bytes() for path in [MODEL, *KEPT_WEIGHTS.rglob("*.*")]}
    shutil.copyfile(KEPT_WEIGHTS / NAMES[1] / "best_model_params.pt", KEPT_WEIGHTS / NAMES[2] / "best_model_params.pt")
    assert verify.main([]) == 4
    assert f"data/models: kept_weights/{NAMES[2]}/best_model_params.pt is changed" in capsys.readouterr().out
    # A run that recorded the same weights twice, and committed them.
    record = read_json(MODEL)
    sha256 = record["kept_weights"][NAMES[1]]
    write_json(MODEL, {**record, "kept_weights": record["kept_weights"] | {NAMES[2]: sha256}})
    workspace.run("dvc", "commit", "-f", "train")
    assert verify.main([]) == 4
    assert f"kept_weights differ: {NAMES[1]} and {NAMES[2]} are the same weights" in capsys.readouterr().out
    for path, content in before.items():
        path.write_bytes(content)
    workspace.run("dvc", "commit", "-f", "train")
