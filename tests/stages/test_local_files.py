"""Own text of many kinds, read by the stage fetch: other encodings, tables, archives, other scripts."""

import random
import re
import subprocess
from pathlib import Path

import pytest

from lm.core.files import read_json
from lm.core.params import read_yaml
from support import ROOT
from support.mixture_cases import texts_of
from support.stages import change_params, run_here, stage_folder

FETCH = "sources.local.fetch"


@pytest.fixture
def fetch(tmp_path, monkeypatch):
    """Return a function that writes files into texts/ beside the repository and runs the stage fetch on them."""
    monkeypatch.chdir(stage_folder(tmp_path / "repository"))

    def run(files: dict[str, bytes], **changes) -> int:
        texts = tmp_path / "texts"
        texts.mkdir()
        for name, content in files.items():
            (texts / name).write_bytes(content)
        values = {f"{FETCH}.{key}": value for key, value in {"split": None, **changes}.items()}
        change_params(Path(), {"data.source": "local", "local.path": str(texts), **values})
        return run_here("fetch")

    return run


GERMAN = "Grüße, und „schöne“ Wörter; viele"
NESTED = b'{"id": 1, "content": {"title": "t", "body": {"en": "one"}}}\n{"content": null}\n'
CHAT = b'{"id": 1, "messages": [{"role": "user", "content": "one"}]}\n'


@pytest.mark.parametrize(
    ("name", "content", "changes", "texts"),
    [
        ("a.txt", GERMAN.encode("cp1252"), {"encoding": "cp1252"}, [GERMAN]),
        ("a.jsonl", NESTED, {"column": "content.body.en"}, ["one"]),
        ("a.txt", b"one", {"include": ["*.md", "*.txt"], "exclude": ["*.pdf"]}, ["one"]),
    ],
)
def test_files_are_read_as_the_parameters_say(fetch, name, content, changes, texts):
    assert fetch({name: content}, **changes) == 0

    assert texts_of("text") == texts


def test_all_files_that_cannot_be_read_are_named(fetch, capsys):
    files = {"a.txt.gz": b"words", "b.csv": b"id,body\n1,b\n", "c.pdf": b"%PDF-1.4\n", "d.txt": b"text"}

    status = fetch(files)

    said = capsys.readouterr().err
    for reason in ("a.txt.gz: not a whole .gz file", "has no 'text' but id, body", "c.pdf: is a PDF file"):
        assert reason in said
    remedy = "3 of 4 files cannot be read; correct them, or leave them out by sources.yaml:sources.local.fetch.exclude"
    assert remedy in said
    assert status == 3


def test_the_lines_of_the_page_make_text_of_a_chat(fetch):
    (lines,) = re.findall("```python tested\n(.*?)```", (ROOT / "docs/data.md").read_text(), re.DOTALL)
    Path("chats").mkdir()
    Path("chats/a.jsonl").write_bytes(CHAT)

    exec(lines, {})

    assert fetch({"a.jsonl": Path("data/local/a.jsonl").read_bytes()}) == 0
    assert texts_of("text") == ["user: one"]


def test_files_of_two_encodings_are_read_right_and_counted(fetch, capsys):
    files = {"1.txt": GERMAN.encode("cp1252"), "2.txt": GERMAN.encode(), "3.txt": b"ASCII", "4.txt": GERMAN.encode()}

    assert fetch(files, encoding="cp1252") == 0

    assert texts_of("text") == [GERMAN, GERMAN, "ASCII", GERMAN]
    assert "warning: 2 of 4 files are UTF-8 and were read so, not in sources.local.fetch" in capsys.readouterr().err
    assert read_json("data/raw/manifest.json")["sources"]["local"]["utf_8_files"] == 2


def test_damaged_files_are_listed_in_the_manifest_and_named(fetch, capsys):
    long = b"plain words " * 1000
    latin = long + "é é".encode("cp1252")
    files = {f"{number}.txt": latin for number in range(5)} | {"n.txt": long + b"\0" * 9, "whole.txt": long}

    assert fetch(files) == 0

    said = capsys.readouterr().err
    assert "10 characters in 5 of 7 files are not utf-8" in said
    assert "and 2 more (damaged_files in data/raw/manifest.json)" in said
    assert "9 characters in 1 of 7 files are NUL" in said
    source = read_json("data/raw/manifest.json")["sources"]["local"]
    assert source["replaced_characters"] == 10
    *others, nuls = source["damaged_files"]
    assert [file["replaced_characters"] for file in others] == [2] * 5
    path = str(Path("../texts/n.txt").resolve())
    assert nuls == {"path": path, "replaced_characters": 0, "nul_characters": 9}


THAI = "กขคงจชซญดตถทนบปผพฟมยรลวสหอ"


def with_other_letters(text: str) -> str:
    """Return the text with another letter in 200."""
    return text[3].join(text[i : i + 199] for i in range(0, len(text), 200))


def test_near_copies_in_a_script_without_spaces_are_in_one_split(fetch):
    """The rule of the source `local`."""
    split = read_yaml("sources.yaml")["sources"]["local"]["fetch"]["split"] | {"validation_fraction": 0.3}
    originals = ["".join(random.Random(seed).choices(THAI, k=2000)) for seed in range(20)]
    copies = [with_other_letters(text) for text in originals]
    files = {f"{number}.txt": text.encode() for number, text in enumerate(originals + copies)}

    assert fetch(files, split=split) == 0

    validation = set(texts_of("validation"))
    is_in_validation = [text in validation for text in originals]
    assert is_in_validation == [text in validation for text in copies]
    assert 0 < sum(is_in_validation) < len(originals)
    assert read_json("data/raw/manifest.json")["sources"]["local"]["split"] == split


def test_git_is_not_asked_about_text_outside_the_repository(fetch, capsys):
    subprocess.run(["git", "init", "-q"], check=True)

    assert fetch({"a.txt": b"words"}) == 0

    assert capsys.readouterr().err == ""
