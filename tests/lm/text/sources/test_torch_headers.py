"""The default corpus: the torch headers that are the same in every wheel."""

import dataclasses
import hashlib
import os
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lm.core.errors import DataError, EnvironmentFailure, IntegrityError
from lm.core.params import read_section
from lm.text.near_duplicates import find_clusters
from lm.text.sources.torch_headers import TorchHeadersFetch, fetch_torch_headers, read_headers
from support import ROOT

FETCH = read_section(ROOT / "sources.yaml", "sources.torch_headers.fetch", TorchHeadersFetch)


@pytest.fixture(scope="module")
def pinned(tmp_path_factory) -> tuple[dict, list[str], list[str]]:
    """The manifest of the default corpus, its texts for training and for validation."""
    folder = tmp_path_factory.mktemp("pinned")
    manifest = fetch_torch_headers(FETCH, folder)
    return manifest, texts_of(folder, "train"), texts_of(folder, "validation")


def test_the_installed_headers_are_split_by_clusters_and_sorted_by_hash(pinned):
    manifest, train, validation = pinned

    assert len(train) == manifest["splits"]["train"]["documents"] == 1649
    assert len(validation) == manifest["splits"]["validation"]["documents"] == 97
    assert sum(entry["utf8_bytes"] for entry in manifest["splits"].values()) == 11_091_945
    assert manifest["splits"]["validation"]["characters"] == 1_665_244
    for texts in (train, validation):
        digests = [hashlib.sha256(text.encode()).digest() for text in texts]
        assert digests == sorted(digests)
    clusters = find_clusters([train + validation], FETCH.split.near_duplicates)
    assert set(clusters[: len(train)]).isdisjoint(clusters[len(train) :])


def test_a_test_split_is_taken_from_the_training_text(pinned, tmp_path):
    _, train, validation = pinned
    split = dataclasses.replace(FETCH.split, test_documents=30)
    with_test = dataclasses.replace(FETCH, split=split)

    fetch_torch_headers(with_test, tmp_path)

    test = texts_of(tmp_path, "test")
    assert len(test) == 30
    assert texts_of(tmp_path, "validation") == validation
    assert texts_of(tmp_path, "train") == [text for text in train if text not in set(test)]


def texts_of(folder: Path, split: str) -> list[str]:
    return pq.read_table(folder / split / "0000.parquet")["text"].to_pylist()


def header(number: int) -> str:
    words = [f"word{number}_{j}" for j in range(40)]
    return f"// header {number}\n" + " ".join(words)


# The headers of torch 0.0.1, as they are read: with the line ends of Unix.
HEADERS = {f"c10/core/{number}.h": header(number) for number in range(20)}
JOINED = "".join(f"{name}\0{HEADERS[name]}\0" for name in sorted(HEADERS))
OTHER = dataclasses.replace(FETCH, torch_version="0.0.1", sha256=hashlib.sha256(JOINED.encode()).hexdigest())


def write_wheel(folder: Path) -> Path:
    """Write a wheel of torch 0.0.1 that has HEADERS, with the line ends of Windows, and other files."""
    path = folder / "torch-0.0.1-py3-none-any.whl"
    info = "torch-0.0.1.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in HEADERS.items():
            wheel.writestr(f"torch/include/{name}", text.replace("\n", "\r\n"))
        wheel.writestr("torch/include/c10/core/generated/a.h", "left out")
        wheel.writestr("torch/c10/core/b.h", "left out")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def fetched_texts(fetch: TorchHeadersFetch, folder: Path) -> list[str]:
    """Return the texts of all splits, sorted."""
    manifest = fetch_torch_headers(fetch, folder)
    texts = []
    for split in manifest["splits"]:
        texts += texts_of(folder, split)
    return sorted(texts)


def test_a_wheel_replaces_another_installed_version(tmp_path):
    fetch = dataclasses.replace(OTHER, wheel=str(write_wheel(tmp_path)))

    texts = fetched_texts(fetch, tmp_path / "out")

    assert texts == sorted(HEADERS.values())
    with pytest.raises(IntegrityError, match=f"sha256 is {OTHER.sha256}, sources"):
        fetch_torch_headers(dataclasses.replace(fetch, sha256="0" * 64), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_pip_downloads_a_version_that_is_not_installed(tmp_path, monkeypatch, capfd):
    """If it cannot, what it says is shown."""
    write_wheel(tmp_path)
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path), "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)

    assert fetched_texts(OTHER, tmp_path / "out") == sorted(HEADERS.values())
    assert "torch 0.0.1 is not installed; pip downloads it" in capfd.readouterr().err

    unknown = dataclasses.replace(OTHER, torch_version="0.0.2")
    with pytest.raises(EnvironmentFailure, match=r"torch 0\.0\.2, whose.*fetch\.wheel"):
        fetch_torch_headers(unknown, tmp_path / "none")
    assert "No matching distribution found for torch==0.0.2" in capfd.readouterr().err


def test_a_wheel_that_is_missing_or_cut_is_refused(tmp_path):
    cut = write_wheel(tmp_path)
    cut.write_bytes(cut.read_bytes()[:-100])

    for path in (tmp_path / "none.whl", cut):
        fetch = dataclasses.replace(OTHER, wheel=str(path))
        with pytest.raises(DataError, match=f"torch_headers.fetch.wheel: {path} is not a whole wheel"):
            fetch_torch_headers(fetch, tmp_path / "out")


def test_headers_that_differ_between_wheels_are_left_out():
    kept = {
        "c10/core/A.h": b"// a\nint x;",
        "torch/csrc/b.cuh": b"b",
        "ATen/native/c.hpp": b"c",
    }
    dropped = {
        "c10/cuda/D.h": b"d",
        "ATen/core/TensorBody.h": b"e",
        "ATen/native/metal/f.h": b"f",
        "torch/csrc/generated/g.h": b"g",
        "ATen/core/h_generated.h": b"h",
        "c10/core/i.cpp": b"i",
        "c10/core/j.h": b"// @generated by x",
        "torch/csrc/k.h": b"b",  # the text of another header
    }

    found = dict(read_headers(kept | dropped))

    assert found == {name: content.decode() for name, content in kept.items()}
