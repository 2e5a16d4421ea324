"""The stage fetch on a mixture: only changed sources are fetched again, and nothing writes through a link."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import fetch
from lm.core.files import sha256_file, write_json
from lm.text.documents import read_manifest
from support.mixture_cases import WHOLE
from support.refusal import files_below, refused
from support.tokenize_cases import ENVIRONMENT, FETCH, LOCAL

SLICES = {split: {"split": split, **WHOLE} for split in ("train", "validation")}


def stories(seed=1, num_documents=5) -> dict:
    return {"kind": "stories", "seed": seed, "num_documents": num_documents, "num_validation_documents": 2}


def write_mixture(**sources) -> None:
    """Write the definition of a mixture of these sources, each the section `fetch` of its preset."""
    definitions = {name: {"fetch": section, **SLICES} for name, section in sources.items()}
    write_json("source.json", {"source": "mix", "kind": "mixture", "sources": definitions})


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    write_json("params.yaml", {"local": {"path": "texts"}})
    return tmp_path


@pytest.fixture
def kept(capsys):
    """Return a function that fetches and returns the names of the sources that were kept."""

    def kept() -> list[str]:
        capsys.readouterr()
        assert fetch.main(FETCH) == 0
        lines = capsys.readouterr().out.splitlines()
        return [line.removesuffix(": unchanged, kept") for line in lines if line.endswith(": unchanged, kept")]

    return kept


def test_only_changed_sources_are_fetched_again(project, kept):
    write_mixture(a=stories(), b=stories(2))
    assert kept() == []
    manifest, first = read_manifest(Path("raw")), files_below(Path("raw"))
    assert (manifest["source"], manifest["kind"], list(manifest["sources"])) == ("mix", "mixture", ["a", "b"])
    source = manifest["sources"]["b"]
    assert (source["source"], source["seed"], source["train"]) == ("b", 2, SLICES["train"])
    assert source["splits"]["train"]["files"][0]["path"] == "b/train/0000.parquet"
    write_mixture(a=stories(), b=stories(3))
    assert kept() == ["a"]
    second = files_below(Path("raw"))
    changed = {name for name in first if first[name] != second[name]}
    assert changed == {"b/train/0000.parquet", "b/validation/0000.parquet", "manifest.json"}
    write_mixture(b=stories(3), a=stories())
    assert kept() == ["b", "a"]
    write_mixture(c=stories())  # a source of another name is another source
    assert kept() == [] and len(list(Path(".sources").iterdir())) == 1


def test_own_text_is_read_again_each_time(project, kept):
    Path("texts").mkdir()
    Path("texts/x.txt").write_text("before")
    write_mixture(a=stories(), own=LOCAL)
    assert kept() == []
    Path("texts/x.txt").write_text("after")
    assert kept() == ["a"]
    assert pq.read_table("raw/own/text")["text"].to_pylist() == ["after"]


def test_a_damaged_part_is_fetched_again(project, kept):
    write_mixture(a=stories(), b=stories(2))
    kept()
    good = files_below(Path("raw"))
    path = sorted(Path(".sources").glob("*/train/0000.parquet"))[0]
    path.unlink()
    path.write_bytes(b"damaged")
    assert len(kept()) == 1
    assert files_below(Path("raw")) == good


def test_other_code_of_the_sources_fetches_again(project, kept, monkeypatch, tmp_path):
    from lm.text import source_cache

    write_mixture(a=stories())
    kept()
    shutil.copytree(source_cache.CODE, tmp_path / "code")
    monkeypatch.setattr(source_cache, "CODE", tmp_path / "code")
    assert kept() == ["a"]
    path = tmp_path / "code/sources/stories/words.txt"
    path.write_text(path.read_text() + "\n")
    assert kept() == []


def test_nothing_is_written_through_a_link(project, kept):
    """A hard link stands for DVC's cache, which holds the files of the folder that a run replaces."""
    write_mixture(a=stories(), b=stories(2))
    kept()
    cache = {}
    for number, path in enumerate(sorted(Path("raw").rglob("*.parquet"))):
        os.link(path, f"cache-{number}")
        Path(f"cache-{number}").chmod(0o444)
        cache[f"cache-{number}"] = sha256_file(path)
    for b in (stories(3), stories(3, num_documents=9), stories(2)):
        write_mixture(a=stories(), b=b)
        kept()
    assert {name: sha256_file(name) for name in cache} == cache


def test_a_copy_of_the_repository_shares_the_sources(project, kept, monkeypatch):
    """DVC runs `--queue` and `--temp` in a copy, with DVC_ROOT."""
    write_mixture(a=stories())
    kept()
    Path("copy").mkdir()
    for name in ("source.json", "params.yaml"):
        shutil.copy(name, "copy")
    monkeypatch.setenv("DVC_ROOT", str(project))
    monkeypatch.chdir(project / "copy")
    assert kept() == ["a"]
    assert files_below(Path("raw")) == files_below(project / "raw")


def test_another_disk_gets_copies(project, kept, monkeypatch):
    write_mixture(a=stories())
    kept()

    def refuse(*paths):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    before = files_below(Path("raw"))
    assert kept() == ["a"] and files_below(Path("raw")) == before
    assert Path("raw/a/train/0000.parquet").stat().st_nlink == 1


KILLED = """
import os, signal, sys
import fetch
from lm.text.sources import kinds
original = kinds.fetch_stories
def fetch_stories(section, folder):
    described = original(section, folder)
    if section.seed == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return described
kinds.fetch_stories = fetch_stories
sys.exit(fetch.main(sys.argv[1:]))
"""


def test_finished_sources_survive_a_kill(project, kept):
    write_mixture(a=stories(), b=stories(2))
    done = subprocess.run([sys.executable, "-c", KILLED, *FETCH], env=ENVIRONMENT, check=False)
    assert done.returncode == -signal.SIGKILL and not Path("raw").exists()
    assert kept() == ["a"]
    assert not [name for name in os.listdir() if name.endswith(".tmp")]
    assert len(list(Path(".sources").iterdir())) == 2  # the unfinished one is gone
    read_manifest(Path("raw"))


def test_a_failed_fetch_leaves_the_folder(project, kept, capsys):
    write_mixture(a=stories())
    kept()
    before = files_below(Path("raw"))
    write_mixture(a=stories(), b=stories(num_documents=0))
    sentence = "presets.yaml: sources.b.fetch.num_documents is 0, needed: at least 1"
    refused(fetch.main(FETCH), capsys.readouterr().err, 2, sentence)
    assert files_below(Path("raw")) == before
