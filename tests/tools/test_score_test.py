"""`python src score_test`: the score is that of eval on the same text, and recorded before it is seen."""

import errno
import json
import os
from pathlib import Path

import pytest

from lm.core.files import read_json, sha256_file, write_json
from support.git import git
from support.json_documents import check_document
from support.project import SPLIT, TEST_DOCUMENTS
from support.refusal import files_below, refused
from support.stages import change_params, run_stages, work_in_copy
from tools import score_test as tool
from tools.record.held_out import TEST_READS, HeldOutScore, read_test_reads, write_test_reads
from tools.record.paths import MANIFEST, MODEL, VALIDATION_SIDECAR

TEST = Path("data/raw/test.parquet")


@pytest.fixture
def run(held_out, tmp_path, monkeypatch):
    """The working directory: a copy of `held_out`."""
    work_in_copy(monkeypatch, held_out, tmp_path / "project")
    return tmp_path / "project"


def score(capsys) -> dict:
    """Return what `--json` prints."""
    capsys.readouterr()
    assert tool.main(["--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    check_document(document)
    return document


def refuse(capsys, code: int, said: str) -> None:
    """Check that the command is refused with one sentence, prints no score, and changes no file."""
    before = files_below(Path())
    capsys.readouterr()
    status = tool.main([])
    out, err = capsys.readouterr()
    refused(status, err, code, said)
    assert out == ""
    assert files_below(Path()) == before


def change_json(path: Path, **values) -> None:
    write_json(path, read_json(path) | values)


def commit_all() -> str:
    """Put the working directory into Git, and return the commit."""
    for command in ("init -q", "add -A", "commit -qm state"):
        git(*command.split())
    return git("rev-parse", "HEAD")


# The score.


def test_the_score_is_that_of_eval_on_the_same_text(run, capsys):
    found = score(capsys)

    # Let eval score the same weights on this text, as if it were for validation.
    manifest = read_json(MANIFEST)
    change_json(MANIFEST, splits=manifest["splits"] | {"validation": manifest["test"]})
    run_stages(["tokenize_val", "audit"])
    validation = read_json(VALIDATION_SIDECAR)["sha256"]
    change_json(MODEL, data_sha256=read_json(MODEL)["data_sha256"] | {"validation": validation})
    run_stages(["eval"])

    details = read_json("data/evaluation/details.json")
    assert (found["commit"], found["workspace_differs"]) == (None, True)  # outside a repository
    assert [found["low"], found["high"]] == details["bits_per_byte_interval"]
    for name in ("documents", "tokens", "utf8_bytes", "stride_tokens", "bits_per_byte", "nats_per_token"):
        assert found[name] == details[name], name


# The record.


def test_an_evaluation_is_recorded_with_what_decides_it_and_a_second_one_adds_no_row(run, capsys):
    commit = commit_all()

    first = score(capsys)
    second = score(capsys)
    tool.main([])

    (read,) = read_test_reads(TEST_READS)
    assert read.commit == commit
    assert read.workspace_differs is False
    assert read.weights_sha256 == sha256_file("data/models/best_model_params.pt")
    assert read.test_sha256 == sha256_file(TEST)
    assert first | read._asdict() | {"is_new": True, "looks": 1} == first
    assert second == first | {"is_new": False}
    assert "nothing was added" in capsys.readouterr().out


def test_another_stride_is_another_evaluation_and_another_text_does_not_count(run, capsys):
    of_another = HeldOutScore(None, True, "a" * 64, "b" * 64, 16, 8, bits_per_byte=1.5, low=1.4, high=1.6)
    write_test_reads(TEST_READS, [of_another])
    commit_all()

    first = score(capsys)
    change_params(Path(), {"eval.stride_fraction": 1.0})
    of_stride = score(capsys)

    assert [each["looks"] for each in (first, of_stride)] == [1, 2]
    assert [each["workspace_differs"] for each in (first, of_stride)] == [False, True]
    _, *reads = read_test_reads(TEST_READS)
    assert [read.bits_per_byte for read in reads] == [first["bits_per_byte"], of_stride["bits_per_byte"]]


def test_a_row_with_another_score_is_refused(run, capsys):
    found = score(capsys)
    right = repr(found["bits_per_byte"])
    wrong = repr(found["bits_per_byte"] * 1.001)
    TEST_READS.write_text(TEST_READS.read_text().replace(right, wrong))

    refuse(capsys, 4, f"test_reads.csv: the row of the weights {found['weights_sha256'][:12]}… says {wrong} ")


def test_fast_numerics_may_differ_a_little_from_the_row(tmp_path, monkeypatch):
    """Another machine computes other bits."""
    monkeypatch.chdir(tmp_path)
    row = HeldOutScore(None, True, "a" * 64, "b" * 64, 128, 50, bits_per_byte=1.5, low=1.4, high=1.6)
    write_test_reads(TEST_READS, [row])

    near = row._replace(bits_per_byte=1.501)
    assert tool.record_evaluation(near, tool.TOLERANCES["fast"]) == (row, [row], False)


def test_a_full_disk_hides_the_score(run, monkeypatch, capsys):
    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)

    refuse(capsys, 5, "test_reads.csv: No space left on device")


# What does not belong together.


def lose_test() -> None:
    write_json(MANIFEST, {name: value for name, value in read_json(MANIFEST).items() if name != "test"})


def fetch_again() -> None:
    """Let other documents be for test, which the model may have been trained on."""
    change_params(Path(), {f"{SPLIT}.test_documents": TEST_DOCUMENTS + 1})
    run_stages(["fetch"])


def damage_test() -> None:
    TEST.unlink()
    TEST.write_bytes(b"x")


OTHER_TEXT = (
    "model.json: trained or selected on other text than data/raw has now, which may have held the test documents "
)
OTHER = "0" * 64
REFUSED = [
    (lose_test, 2, "manifest.json: has no test split; set split.test_documents of sources.local.fetch"),
    (lambda: change_params(Path(), {"data.source": "x"}), 4, "has the text of local, but data.source is x"),
    (fetch_again, 4, OTHER_TEXT),
    (
        lambda: change_json(MODEL, data_sha256={"train": OTHER, "validation": None}),
        4,
        f"{OTHER_TEXT}(data/processed_datasets/train.json); run `dvc repro`",
    ),
    (lambda: change_json(VALIDATION_SIDECAR, sha256=OTHER), 4, f"{OTHER_TEXT}({VALIDATION_SIDECAR})"),
    (lambda: change_json(MODEL, tokenizer_sha256=OTHER), 4, "model.json: trained with tokenizer 000000000000"),
    (damage_test, 4, "data/raw/test.parquet: sha256 is"),
]


@pytest.mark.parametrize(("damage", "code", "said"), REFUSED)
def test_what_does_not_belong_together_is_refused(run, capsys, damage, code, said):
    damage()

    refuse(capsys, code, said)


def test_a_model_of_unknown_text_is_warned_of(run, monkeypatch, capsys):
    """It is imported, or began with other weights. Changed code is warned of, too."""
    checked = []
    monkeypatch.setattr(tool, "warn_of_changed_code", checked.append)
    data_sha256 = read_json(MODEL)["data_sha256"]
    for values in ({"data_sha256": {"train": None, "validation": None}}, {"init_sha256": "0" * 64}):
        change_json(MODEL, **{"data_sha256": data_sha256, **values})

        status = tool.main([])

        errors = capsys.readouterr().err
        assert status == 0
        assert "warning: data/models" in errors
        assert "trained on the test documents" in errors
    assert len(checked) == 2
