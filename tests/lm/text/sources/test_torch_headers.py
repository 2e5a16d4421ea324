"""The default corpus: the torch headers that are the same in every wheel."""

import contextlib
import dataclasses
import functools
import hashlib
import os
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lm.core.errors import DataError, EnvironmentFailure, IntegrityError
from lm.core.params import read_section
from lm.text.near_duplicates import find_clusters
from lm.text.sources.torch_headers import TorchHeadersFetch, fetch_torch_headers, read_headers
from support import ROOT

FETCH = read_section(ROOT / "sources.yaml", "sources.torch_headers.fetch", TorchHeadersFetch)


def test_the_installed_headers_are_the_pinned_ones(tmp_path):
    manifest = fetch_torch_headers(FETCH, tmp_path)
    train, validation = (manifest["splits"][name] for name in ("train", "validation"))
    assert train["documents"] + validation["documents"] == 1746
    assert train["utf8_bytes"] + validation["utf8_bytes"] == 11_091_945
    assert validation["documents"] == 97 and validation["characters"] == 1_665_244
    texts = {
        name: pq.read_table(tmp_path / name / "0000.parquet")["text"].to_pylist() for name in ("train", "validation")
    }
    for own in texts.values():
        digests = [hashlib.sha256(text.encode()).digest() for text in own]
        assert digests == sorted(digests)
    clusters = find_clusters([texts["train"] + texts["validation"]], FETCH.split.near_duplicates)
    assert not set(clusters[: train["documents"]]) & set(clusters[train["documents"] :])


def test_a_test_split_is_taken_from_the_training_text(tmp_path):
    with_test = dataclasses.replace(FETCH, split=dataclasses.replace(FETCH.split, test_documents=30))

    fetch_torch_headers(FETCH, tmp_path / "without")
    manifest = fetch_torch_headers(with_test, tmp_path / "with")

    assert manifest["splits"]["test"]["documents"] == 30
    without = {name: texts_of(tmp_path / "without", name) for name in ("train", "validation")}
    validation = texts_of(tmp_path / "with", "validation")
    test = texts_of(tmp_path / "with", "test")
    assert validation == without["validation"]
    assert texts_of(tmp_path / "with", "train") == [text for text in without["train"] if text not in set(test)]


def texts_of(folder: Path, split: str) -> list[str]:
    return pq.read_table(folder / split / "0000.parquet")["text"].to_pylist()


TEXTS = {f"c10/core/{i}.h": f"// header {i}\r\n" + " ".join(f"word{i}_{j}" for j in range(40)) for i in range(20)}
JOINED = "".join(f"{name}\0{TEXTS[name]}\0" for name in sorted(TEXTS)).replace("\r\n", "\n")
OTHER = dataclasses.replace(FETCH, torch_version="0.0.1", sha256=hashlib.sha256(JOINED.encode()).hexdigest())


def write_wheel(folder: Path) -> Path:
    """Write a wheel of torch 0.0.1 that has TEXTS and other files."""
    path = folder / "torch-0.0.1-py3-none-any.whl"
    info = "torch-0.0.1.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in TEXTS.items():
            wheel.writestr(f"torch/include/{name}", text)
        wheel.writestr("torch/include/c10/core/generated/a.h", "left out")
        wheel.writestr("torch/c10/core/b.h", "left out")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def fetched_texts(fetch: TorchHeadersFetch, folder: Path) -> list[str]:
    manifest = fetch_torch_headers(fetch, folder)
    return sorted(t for n in manifest["splits"] for t in pq.read_table(folder / n / "0000.parquet")["text"].to_pylist())


@contextlib.contextmanager
def package_index(folder: Path, monkeypatch):
    """Serve the wheels of `folder` on loopback as pip's only index."""
    (folder / "torch").mkdir(parents=True)
    for wheel in folder.glob("*.whl"):
        wheel.rename(folder / "torch" / wheel.name)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    for name, value in (("INDEX_URL", f"http://127.0.0.1:{server.server_port}/"), ("NO_CACHE_DIR", "1"),
                        ("CONFIG_FILE", os.devnull), ("RETRIES", "0"), ("DISABLE_PIP_VERSION_CHECK", "1")):  # fmt: skip
        monkeypatch.setenv(f"PIP_{name}", value)
    yield
    server.shutdown()
    server.server_close()


def test_a_wheel_replaces_another_installed_version(tmp_path):
    wheel = write_wheel(tmp_path)
    expected = sorted(text.replace("\r\n", "\n") for text in TEXTS.values())
    assert fetched_texts(dataclasses.replace(OTHER, wheel=str(wheel)), tmp_path / "out") == expected


def test_other_headers_than_the_pinned_ones_are_refused(tmp_path):
    other = dataclasses.replace(OTHER, wheel=str(write_wheel(tmp_path)), sha256="0" * 64)
    with pytest.raises(IntegrityError, match=f"sha256 is {OTHER.sha256}, sources"):
        fetch_torch_headers(other, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pip_downloads_a_version_that_is_not_installed(tmp_path, monkeypatch, capfd):
    (tmp_path / "index").mkdir()
    write_wheel(tmp_path / "index")
    with package_index(tmp_path / "index", monkeypatch):
        assert len(fetched_texts(OTHER, tmp_path / "out")) == len(TEXTS)
        assert "torch 0.0.1 is not installed; pip downloads it to read its headers" in capfd.readouterr().err
        with pytest.raises(EnvironmentFailure, match=r"torch 0\.0\.2, whose.*fetch\.wheel"):
            fetch_torch_headers(dataclasses.replace(OTHER, torch_version="0.0.2"), tmp_path / "out2")
    assert "No matching distribution found for torch==0.0.2" in capfd.readouterr().err


def test_a_wheel_that_is_missing_or_cut_is_refused(tmp_path):
    wheel = write_wheel(tmp_path)
    for path, content in ((tmp_path / "none.whl", None), (wheel, wheel.read_bytes()[:-100])):
        if content:
            path.write_bytes(content)
        with pytest.raises(DataError, match=f"torch_headers.fetch.wheel: {path} is not a whole wheel"):
            fetch_torch_headers(dataclasses.replace(OTHER, wheel=str(path)), tmp_path / "out")


def test_headers_that_differ_between_wheels_are_left_out():
    kept = {"c10/core/A.h": "// a\r\nint x;", "torch/csrc/b.cuh": "b", "ATen/native/c.hpp": "c"}
    dropped = {
        "c10/cuda/D.h": "d",
        "ATen/core/TensorBody.h": "e",
        "ATen/native/metal/f.h": "f",
        "torch/csrc/generated/g.h": "g",
        "ATen/core/h_generated.h": "h",
        "c10/core/i.cpp": "i",
        "c10/core/j.h": "// @generated by x",
        "torch/csrc/k.h": "b",
    }
    found = dict(read_headers({name: text.encode() for name, text in {**kept, **dropped}.items()}))
    assert found == {name: text.replace("\r\n", "\n") for name, text in kept.items()}
