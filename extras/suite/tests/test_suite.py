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
        files = [write_accuracy(name, value) for name, value in zip(NAMES, (0.5, 0.6, 0.9), strict=True)]
        assert suite.main(["--tasks", *files]) == 0
    return workspace


def write_accuracy(name: str, value: float) -> str:
    """Write what lm_eval would write about a checkpoint, and return the name of the file."""
    sha256 = read_json(KEPT_WEIGHTS / name / "model.json")["best"]["sha256"]
    tasks = {"pairs": {"metrics": {"acc": {"value": value, "stderr": 0.1}}}}
    write_json(f"lm_eval-{name}.json", {"model": {"weights_sha256": sha256}, "tasks": tasks})
    return f"lm_eval-{name}.json"


def test_accuracies_go_to_the_row_of_their_weights(tmp_path):
    rows = [{"weights": "ab12"}, {"weights": "cd34"}]
    tasks = {
        "pairs": {"metrics": {"acc": {"value": 0.7, "stderr": 0.1}}},
        "text": {"metrics": {"perplexity": {"value": 3.0}}},
    }
    write_json(tmp_path / "cd.json", {"model": {"weights_sha256": "cd34" * 16}, "tasks": tasks})

    names = suite.add_accuracies(rows, [tmp_path / "cd.json"])

    assert names == ["pairs"]
    assert rows == [{"weights": "ab12"}, {"weights": "cd34", "pairs": 0.7, "pairs_se": 0.1}]


def test_a_curve_has_its_standard_errors_and_its_last_value():
    """One document gives no standard error. A row without the column gives no point."""
    rows = [
        {"tokens": 0, "loss": 2.5, "loss_se": None},
        {"tokens": 512, "loss": 2.0, "loss_se": 0.25},
        {"tokens": 2048, "loss": 1.23456, "loss_se": 0.125},
        {"tokens": 4096},
    ]

    figure = figure_of(lambda axes: suite.draw(axes, rows, ["loss"], "loss"), size=(7.5, 3.6))

    (axes,) = figure.axes
    line, _, (bars,) = axes.containers[0].lines
    assert list(line.get_xdata()) == [0, 512, 2048]
    assert list(line.get_ydata()) == [2.5, 2.0, 1.23456]
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
    folders = [Path("suite") / name for name in NAMES] + [Path("data/evaluation")]

    assert [row["step"] for row in rows] == ["0", "4", "16", "20"]
    assert [row["tokens"] for row in rows] == ["0", "2048", "8192", "10240"]
    assert [row["pairs"] for row in rows] == ["0.5", "0.6", "0.9", ""]
    for row, folder in zip(rows, folders, strict=True):
        details = read_json(folder / "details.json")
        assert row["weights"].startswith(details["weights_sha256"])
        assert float(row["bits_per_byte"]) == pytest.approx(details["bits_per_byte"], rel=1e-6)


def test_the_picture_is_written(workspace):
    assert Path("suite/suite.png").read_bytes()[:4] == b"\x89PNG"


def test_an_evaluation_with_the_same_inputs_is_kept(workspace, monkeypatch):
    before = read_json(Path("suite") / NAMES[0] / "inputs.json")
    monkeypatch.setattr(suite.subprocess, "run", None)

    assert suite.main([]) == 0

    assert before["params"] and {"src/eval.py", "data/tokenizer"} < before["hashes"].keys()


def test_an_evaluation_with_other_inputs_is_made_again(workspace):
    inputs = Path("suite") / NAMES[0] / "inputs.json"
    content = read_json(inputs)
    write_json(inputs, content | {"hashes": {}})

    assert suite.main([]) == 0

    assert read_json(inputs) == content


def test_accuracies_of_other_weights_are_refused(workspace, capsys):
    write_json("other.json", {"model": {"weights_sha256": "ab" * 32}, "tasks": {}})

    status = suite.main(["--tasks", "other.json"])

    refused(status, capsys.readouterr().err, 4, "other.json: is about the weights abab")


def test_changed_parameters_of_eval_are_refused(workspace, capsys):
    """The rows, of which dvc.lock says how they were evaluated, are never joined by others."""
    before = workspace.get("eval.stride_fraction")
    workspace.change(**{"eval.stride_fraction": 0.25})
    shutil.rmtree(Path("suite") / NAMES[1])

    status = suite.main([])

    error = capsys.readouterr().err
    workspace.change(**{"eval.stride_fraction": before})
    refused(status, error, 4, "dvc.lock: inputs or outputs of the stage eval changed", "run `dvc repro eval`")
    assert not (Path("suite") / NAMES[1]).exists()


def test_a_missing_evaluation_is_made_with_the_parameters_of_the_run(workspace):
    shutil.rmtree(Path("suite") / NAMES[1], ignore_errors=True)

    assert suite.main([]) == 0

    stride_tokens = workspace.get("eval.stride_fraction") * workspace.get("train.seq_len")
    assert read_json(Path("suite") / NAMES[1] / "details.json")["stride_tokens"] == stride_tokens


def test_evaluations_of_other_weights_are_refused(workspace, capsys):
    details = Path("suite") / NAMES[0] / "details.json"
    content = read_json(details)
    write_json(details, content | {"weights_sha256": "ab" * 6})

    status = suite.main([])

    write_json(details, content)
    error = capsys.readouterr().err
    refused(status, error, 4, f"suite/{NAMES[0]}: is about other weights than {KEPT_WEIGHTS}")


def test_a_checkpoint_is_trained_again_from_the_state_before_it(workspace, capsys):
    assert verify.main(["--retrain", "--from", "10"]) == 0

    assert capsys.readouterr().out.splitlines()[-1] == "same bits: the weights of step-000000016"


def test_a_checkpoint_with_another_digest_than_the_record_is_noticed(workspace):
    record = read_json(MODEL)
    write_json(MODEL, record | {"kept_weights": record["kept_weights"] | {NAMES[2]: "ab" * 32}})

    status = verify.main(["--retrain", "--from", "10"])

    write_json(MODEL, record)
    assert status == 4


def test_a_checkpoint_is_exported_as_a_revision(workspace):
    models = KEPT_WEIGHTS / NAMES[1]

    assert export_hf.main(["exported", "--models", str(models), "--evaluation", f"suite/{NAMES[1]}"]) == 0

    assert read_json("exported/model.json")["best"]["step"] == 4
    assert verify.main(["exported"]) == 0
    card = Path("exported/README.md").read_text()
    assert "a checkpoint that the run kept after step 4 of 20.\n" in card
    assert "did not select the weights" not in card
    assert f"sha256sum {models}/best_model_params.pt" in card


def test_the_card_of_a_checkpoint_needs_its_own_evaluation(workspace, capsys):
    assert export_hf.main(["other", "--models", str(KEPT_WEIGHTS / NAMES[1])]) == 4

    error = capsys.readouterr().err
    assert "is about the model" in error and "`python src suite` makes" in error


def test_the_weights_of_another_checkpoint_are_noticed(workspace, capsys):
    weights = [KEPT_WEIGHTS / name / "best_model_params.pt" for name in NAMES]
    before = weights[2].read_bytes()
    shutil.copyfile(weights[1], weights[2])

    status = verify.main([])

    weights[2].write_bytes(before)
    assert status == 4
    assert f"data/models: kept_weights/{NAMES[2]}/best_model_params.pt is changed" in capsys.readouterr().out


def test_equal_neighbours_are_found(workspace, capsys):
    """A run that recorded the same weights twice, and committed them. It is the last test: it leaves them so."""
    record = read_json(MODEL)
    sha256 = record["kept_weights"][NAMES[1]]
    shutil.copyfile(*(KEPT_WEIGHTS / name / "best_model_params.pt" for name in NAMES[1:]))
    write_json(MODEL, record | {"kept_weights": record["kept_weights"] | {NAMES[2]: sha256}})
    workspace.run("dvc", "commit", "-f", "train")

    assert verify.main([]) == 4

    assert f"kept_weights differ: {NAMES[1]} and {NAMES[2]} are the same weights" in capsys.readouterr().out
