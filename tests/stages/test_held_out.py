"""The test split: what fetch writes of it, and that no other stage reads it."""

import re
from pathlib import Path

import pytest

from lm.core.files import read_json, sha256_file
from support.mixture_cases import RAW, texts_of, write_mixture
from support.project import SPLIT, TEST_DOCUMENTS
from support.refusal import files_below, refused
from support.stages import STAGES, TINY, change_params, run_here, run_stages, stage_folder, write_texts


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The working directory: parameters that select own text, which is there, and no data."""
    folder = stage_folder(tmp_path / "project")
    monkeypatch.chdir(folder)
    change_params(folder, {"data.source": "local", f"{SPLIT}.validation_fraction": 0.2})
    write_texts(Path("data/local/own.jsonl"))
    return folder


def fetch(test_documents: int | None) -> dict:
    """Run fetch with this number of test documents; return the manifest."""
    change_params(Path(), {f"{SPLIT}.test_documents": test_documents})
    assert run_here("fetch") == 0
    return read_json(RAW / "manifest.json")


def test_the_test_documents_leave_training_and_the_manifest_records_them_apart(project):
    without = fetch(None)
    before = files_below(RAW)
    train = texts_of("train")

    manifest = fetch(TEST_DOCUMENTS)

    texts = texts_of("test")
    path = RAW / "test.parquet"
    assert manifest["test"] == {
        "path": "test.parquet",
        "sha256": sha256_file(path),
        "bytes": path.stat().st_size,
        "documents": TEST_DOCUMENTS,
        "characters": sum(map(len, texts)),
        "utf8_bytes": sum(len(text.encode()) for text in texts),
    }
    assert sorted(manifest["splits"]) == ["train", "validation"]
    assert manifest["splits"]["validation"] == without["splits"]["validation"]
    assert len(set(texts)) == TEST_DOCUMENTS
    assert texts_of("train") == [text for text in train if text not in texts]

    fetch(None)
    assert files_below(RAW) == before, "the test split that nobody asks for any more is gone"


@pytest.mark.parametrize("of", ["train", "validation"])
def test_a_slice_of_the_test_split_is_refused(project, capsys, of):
    """A source of the Hub may have a split of this name, on which it was usual to validate."""
    change_params(Path(), {f"sources.local.{of}.split": "test"})

    status = run_here("fetch")

    refused(status, capsys.readouterr().err, 2, f"sources.local.{of}.split is 'test'", "another name")


def test_the_test_splits_of_a_mixture_follow_one_another(tmp_path, monkeypatch):
    """A source with weight 0 is tested too, as it is validated; one without a test split is not."""
    sources = {name: {split: [f"{split} {name}"] for split in ("train", "validation", "test")} for name in "abc"}
    del sources["b"]["test"]

    monkeypatch.chdir(tmp_path)
    write_mixture(RAW, sources, {"a": 1.0, "b": 1.0, "c": 0.0})

    assert sorted(texts_of("train")) == ["train a", "train b"]
    assert texts_of("validation") == ["validation a", "validation b", "validation c"]
    assert texts_of("test") == ["test a", "test c"]


# No other stage reads it.

AFTER_FETCH = [stage for stage in STAGES if stage != "fetch"]


def written_files() -> dict[str, bytes]:
    """Return path → bytes of all that the stages write, but for the test split itself."""
    found = {}
    for name in ("data", "metrics", "plots"):
        found |= {f"{name}/{path}": content for path, content in files_below(Path(name)).items()}
    return {path: found[path] for path in found if not path.startswith(("data/local/", "data/raw/test"))}


def test_no_stage_reads_the_test_split_or_writes_text_of_it(project):
    change_params(project, TINY | {"train.numerics": "fast", "train.dtype": "float32"})
    fetch(TEST_DOCUMENTS)
    run_stages(AFTER_FETCH)
    numbers = [re.search(r":( \d+ and \d+),", text)[1].encode() for text in texts_of("test")]
    before = written_files()

    (RAW / "test.parquet").write_bytes(b"neither parquet nor the bytes of the manifest")
    run_stages(AFTER_FETCH)

    assert written_files() == before
    assert "data/raw/train.parquet" in before
    for path, content in before.items():
        assert not [number for number in numbers if number in content], path
