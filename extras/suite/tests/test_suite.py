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
WEIGHTS = Path("suite/weights")
STEP_5 = "step-000000005"
STEP_10 = "step-000000010"
STEP_15 = "step-000000015"


@pytest.fixture(scope="module")
def made(tmp_path_factory, finished):
    """The finished pipeline, trained again with more validations, and the evaluation of its checkpoints.

    The checkpoint of step 12, where the learning rate begins to fall, is of no validation.
    """
    workspace = Workspace(tmp_path_factory.mktemp("suite") / "made", finished)
    workspace.change(**{"train.eval_every_tokens": 5 * 512})
    workspace.repro()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace.folder)
        patch.setattr("sys.executable", python_of_tests())  # of the evaluations
        assert suite.main([]) == 0
        files = [
            write_accuracy(STEP_5, 0.5),
            write_accuracy(STEP_10, 0.6),
            write_accuracy(STEP_15, 0.9),
        ]
        assert suite.main(["--tasks", *files]) == 0
    return workspace


@pytest.fixture
def workspace(made, monkeypatch):
    """The working directory; a test must not change it."""
    monkeypatch.chdir(made.folder)
    monkeypatch.setattr("sys.executable", python_of_tests())  # of the evaluations
    return made


@pytest.fixture
def copied(made, tmp_path, monkeypatch):
    """The working directory: a copy that a test may change."""
    copy = Workspace(tmp_path / "copy", made.folder)
    monkeypatch.chdir(copy.folder)
    monkeypatch.setattr("sys.executable", python_of_tests())  # of the evaluations
    return copy


def change_json(path: Path, **entries) -> None:
    """Give a file of JSON other entries."""
    write_json(path, read_json(path) | entries)


def write_accuracy(name: str, value: float) -> str:
    """Write what lm_eval would write about a checkpoint, and return the name of the file."""
    sha256 = read_json(WEIGHTS / name / "model.json")["best"]["sha256"]
    tasks = {"pairs": {"metrics": {"acc": {"value": value, "stderr": 0.1}}}}
    file = f"lm_eval-{name}.json"
    write_json(file, {"model": {"weights_sha256": sha256}, "tasks": tasks})
    return file


def test_accuracies_go_to_the_row_of_their_weights(tmp_path):
    rows = [
        {"weights": "ab12"},
        {"weights": "cd34"},
    ]
    tasks = {
        "pairs": {"metrics": {"acc": {"value": 0.7, "stderr": 0.1}}},
        "text": {"metrics": {"perplexity": {"value": 3.0}}},
    }
    file = tmp_path / "cd.json"
    write_json(file, {"model": {"weights_sha256": "cd34" * 16}, "tasks": tasks})

    names = suite.add_accuracies(rows, [file])

    assert names == ["pairs"]
    assert rows == [
        {"weights": "ab12"},
        {"weights": "cd34", "pairs": 0.7, "pairs_se": 0.1},
    ]


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
    ends_of_bars = [segment[:, 1] for segment in bars.get_segments()]
    assert ends_of_bars[0] == pytest.approx([2.5, 2.5])
    assert ends_of_bars[1] == pytest.approx([1.75, 2.25])
    assert ends_of_bars[2] == pytest.approx([1.10956, 1.35956])
    assert [text.get_text() for text in axes.texts] == ["1.235"]


def test_the_table_has_the_figures_of_each_checkpoint(workspace):
    with open("suite/suite.csv", newline="") as file:
        rows = list(csv.DictReader(file))

    assert [row["step"] for row in rows] == ["5", "10", "15", "20"]
    assert [row["tokens"] for row in rows] == ["2560", "5120", "7680", "10240"]
    assert [row["pairs"] for row in rows] == ["0.5", "0.6", "0.9", ""]
    evaluations = [f"suite/{STEP_5}", f"suite/{STEP_10}", f"suite/{STEP_15}", "data/evaluation"]
    for row, folder in zip(rows, evaluations, strict=True):
        details = read_json(Path(folder) / "details.json")
        assert row["weights"].startswith(details["weights_sha256"])
        assert float(row["bits_per_byte"]) == pytest.approx(details["bits_per_byte"], rel=1e-6)


def test_the_picture_is_written(workspace):
    assert Path("suite/suite.png").read_bytes()[:4] == b"\x89PNG"


def test_an_evaluation_with_the_same_inputs_is_kept(workspace, monkeypatch):
    monkeypatch.setattr(suite.subprocess, "run", None)

    assert suite.main([]) == 0


def test_the_inputs_of_an_evaluation_are_recorded(workspace):
    inputs = read_json(Path("suite") / STEP_5 / "inputs.json")

    assert inputs["params"]
    assert {"src/eval.py", "data/tokenizer"} < inputs["hashes"].keys()


def test_an_evaluation_with_other_inputs_is_made_again(copied):
    path = Path("suite") / STEP_5 / "inputs.json"
    inputs = read_json(path)
    change_json(path, hashes={})

    assert suite.main([]) == 0

    assert read_json(path) == inputs


def test_accuracies_of_other_weights_are_refused(copied, capsys):
    write_json("other.json", {"model": {"weights_sha256": "ab" * 32}, "tasks": {}})

    status = suite.main(["--tasks", "other.json"])

    refused(status, capsys.readouterr().err, 4, "other.json: is about the weights abab")


def test_changed_parameters_of_eval_are_refused(copied, capsys):
    """The rows, of which dvc.lock says how they were evaluated, are never joined by others."""
    copied.change(**{"eval.stride_fraction": 0.25})
    evaluation = Path("suite") / STEP_10
    shutil.rmtree(evaluation)

    status = suite.main([])

    error = capsys.readouterr().err
    refused(status, error, 4, "dvc.lock: inputs or outputs of the stage eval changed", "run `dvc repro eval`")
    assert not evaluation.exists()


def test_a_missing_evaluation_is_made_with_the_parameters_of_the_run(copied):
    evaluation = Path("suite") / STEP_10
    shutil.rmtree(evaluation)

    assert suite.main([]) == 0

    stride_tokens = copied.get("eval.stride_fraction") * copied.get("train.seq_len")
    assert read_json(evaluation / "details.json")["stride_tokens"] == stride_tokens


def test_evaluations_of_other_weights_are_refused(copied, capsys):
    change_json(Path("suite") / STEP_5 / "details.json", weights_sha256="ab" * 6)

    status = suite.main([])

    error = capsys.readouterr().err
    refused(status, error, 4, f"suite/{STEP_5}: is about other weights than {WEIGHTS}")


def test_a_checkpoint_is_exported_as_a_revision(copied):
    models = WEIGHTS / STEP_10

    assert export_hf.main(["exported", "--models", str(models), "--evaluation", f"suite/{STEP_10}"]) == 0

    assert read_json("exported/model.json")["best"]["step"] == 10
    assert verify.main(["exported"]) == 0
    card = Path("exported/README.md").read_text()
    assert "a checkpoint of the run after step 10 of 20.\n" in card
    assert "did not select the weights" not in card
    assert "python src verify --retrain 10 --weights early" in card
    assert "sha256sum early/best_model_params.pt" in card


def test_the_card_of_a_checkpoint_needs_its_own_evaluation(workspace, capsys):
    assert export_hf.main(["other", "--models", str(WEIGHTS / STEP_10)]) == 4

    error = capsys.readouterr().err
    assert "is about the model" in error
    assert "`python src suite` makes" in error


def test_an_export_of_a_checkpoint_of_another_run_is_noticed(copied, capsys):
    models = WEIGHTS / STEP_10
    assert export_hf.main(["exported", "--models", str(models), "--evaluation", f"suite/{STEP_10}"]) == 0
    change_json(Path("exported/model.json"), fingerprint="0" * 16)

    assert verify.main(["exported"]) == 4

    assert "records another model" in capsys.readouterr().out


def test_a_run_without_checkpoints_is_refused(copied, capsys):
    for record in Path(".runs").glob("*/checkpoint-*.json"):
        record.unlink()

    status = suite.main([])

    refused(status, capsys.readouterr().err, 2, "has no checkpoint of a validation", "verify --retrain STEP")
