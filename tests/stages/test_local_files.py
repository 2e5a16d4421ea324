"""Own text of many kinds, read by the stage fetch: other encodings, tables, archives, other scripts."""

import codecs
import gzip
import io
import pickle
import random
import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lm.core.files import read_json
from lm.core.params import read_yaml
from support import ROOT
from support.refusal import refused
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


def texts_of(split: str) -> list[str]:
    return pq.read_table(f"data/raw/{split}.parquet")["text"].to_pylist()


GERMAN = "Grüße, und „schöne“ Wörter; viele"
LETTER = "From the window one saw 1999 houses.\nNote: it rained.\n\nReceived: nothing.\n"
MAIL = b"From: a@b.c\nSubject: words\n and more\nMessage-ID: <1>\n\nHello.\n"
NESTED = b'{"id": 1, "content": {"title": "t", "body": {"en": "one"}}}\n{"content": null}\n'
CHAT = b'{"id": 1, "messages": [{"role": "user", "content": "one"}]}\n'
TABLE = 'id;text;note\n1;"one; two, three";x\n2;four;y\n'


@pytest.mark.parametrize(
    ("name", "content", "changes", "texts"),
    [
        ("a.txt", GERMAN.encode("cp1252"), {"encoding": "cp1252"}, [GERMAN]),
        ("a.txt", GERMAN.encode("utf-16-le"), {"encoding": "utf-16-le"}, [GERMAN]),
        ("a.txt", (codecs.BOM_UTF8 + GERMAN.encode()), {"encoding": "gb18030"}, [GERMAN]),
        ("a.txt", (codecs.BOM_UTF8 + GERMAN.encode()), {"encoding": "utf-16-le"}, [GERMAN]),
        ("a.txt", (codecs.BOM_UTF32_BE + GERMAN.encode("utf-32-be")), {}, [GERMAN]),
        ("a.txt", ("数据文本" * 9).encode("utf-16-le"), {"encoding": "utf-16-le"}, ["数据文本" * 9]),
        ("a.txt", "数".encode("utf-16-le"), {"encoding": "utf-16-le"}, ["数"]),
        ("a.txt", "Größe".encode(), {"encoding": "cp1252"}, ["Größe"]),
        ("a.csv", f"{TABLE}3;ß;".encode(), {"encoding": "koi8-r"}, ["one; two, three", "four", "ß"]),
        ("a.txt", GERMAN.encode(), {"encoding": "utf-16-le"}, [GERMAN]),
        ("a.txt", LETTER.encode(), {"encoding": "UTF-16BE"}, [LETTER]),
        ("a.txt", "联通".encode("gb18030"), {"encoding": "gb18030"}, ["联通"]),
        ("a.txt", "日本".encode("iso2022_jp"), {"encoding": "iso2022_jp"}, ["日本"]),
        ("a.csv", TABLE.encode("utf-16-be"), {"encoding": "utf-16-be"}, ["one; two, three", "four"]),
        ("a.csv", TABLE.encode(), {}, ["one; two, three", "four"]),
        ("a.csv", b'id\ttext\n1\tone, "two"\n', {}, ['one, "two"']),
        ("a.tsv", b"id|text|n\n1|one, two|3\n", {}, ["one, two"]),
        ("a.csv", b"\n\ntext\none\n", {}, ["one"]),
        ("a.csv", b"\nsep=;\n\nid,a;text\n0,5;one, two\n", {}, ["one, two"]),
        ("b.tsv", b"sep=\t\nid\ttext\n0\tthree\n", {}, ["three"]),
        ("a.tsv", b"text\none, two\n", {}, ["one, two"]),
        ("a.csv", b"id,text\n1\n2,two\n", {}, ["two"]),
        ("a.csv", b'id,text\r1,"one\rtwo"\r2,three\r', {}, ["one\ntwo", "three"]),
        ("a.tsv", b"id\ttext\r\r1\tone\r2\ttwo", {}, ["one", "two"]),
        ("a.txt", b"word, text\n", {}, ["word, text\n"]),
        ("a.txt", b"word,text\nSome lines.\n", {}, ["word,text\nSome lines.\n"]),
        ("a.txt.gz", gzip.compress(b"words", mtime=0) + b"\0" * 512, {}, ["words"]),
        ("a.jsonl", b'"one"\n' + codecs.BOM_UTF8 + b'"two"\n', {"encoding": "UTF8"}, ["one", "two"]),
        ("a.jsonl", NESTED, {"column": "content.body.en"}, ["one"]),
        ("a.jsonl", b'{"a.b": "one", "a": {"b": "two"}}\nnull\n', {"column": "a.b"}, ["one"]),
        ("a.json", b'{\n"a": {"b": "one"}\n}', {"column": "a.b"}, ["one"]),
        ("a.txt", LETTER.encode(), {"include": ["*.md", "*.txt"], "exclude": ["*.pdf"]}, [LETTER]),
    ],
)
def test_a_file_is_read(fetch, name, content, changes, texts):
    assert fetch({name: content}, **changes) == 0

    assert texts_of("text") == texts


def parquet(table: pa.Table, **options) -> bytes:
    """Return a table as parquet."""
    file = io.BytesIO()
    pq.write_table(table, file, compression="none", use_dictionary=False, **options)
    return file.getvalue()


def flipped(content: bytes) -> bytes:
    """Return bytes with another bit in their middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


ROWS = pa.table({"text": [f"row {i}" for i in range(300)]})
NOT_UTF_8 = pa.array([*[b"good"] * 150, b"\xff\xfe", *[b"good"] * 149]).view(pa.string())
LONG_WINDOW = bytes.fromhex("28b52ffd 00a8 19000068690a")  # a frame of zstd with a window of 2 GiB
GZIP = gzip.compress(b"some words of text " * 99, mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "changes", "facts"),
    [
        ("a.gz", gzip.compress(b"WARC/1.0\r\nWARC-Type: warcinfo\r\n", mtime=0), {}, ["is a web archive", "JSONL"]),
        ("a.wet", b"WARC/1.1\r\nWARC-Type: conversion\r\n", {}, ["is a web archive"]),
        ("a.arc", b"filedesc://a.arc 0.0.0.0 20010101\n", {}, ["is a web archive"]),
        ("a.txt", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nHello.", {}, ["web server"]),
        ("inbox", b"From a@b.c Sat Jan  3 01:05:34 1996\nSubject: words\n\nHello.\n", {}, ["is mail", "JSONL"]),
        ("a.eml", MAIL, {}, ["is mail"]),
        ("a.txt", b"short and cut off" + b"\0" * 500, {}, ["cut off, with a NUL at byte 17"]),
        ("a.txt", GERMAN.encode("utf-16-le"), {}, ["UTF-16 without a mark", f"set sources.yaml:{FETCH}.encoding"]),
        (
            "a.txt",
            ("数据文本" * 9).encode("gb18030"),
            {},
            [" characters are not utf-8", f"set sources.yaml:{FETCH}.encoding"],
        ),
        ("a.csv", TABLE.encode(), {"column": "id;text;note"}, ["cut at ';'", "but id, text, note"]),
        ("a.csv", b"text|text\n1|2\n", {}, ["several columns are named 'text'"]),
        ("a.csv", b"id;text\n1;a;b\n", {}, ["line 2 has 3 fields", "that hold ';'"]),
        ("a.csv", b"id,body\n1,b\n", {}, ["has no 'text' but id, body"]),
        ("a.jsonl", NESTED, {}, ["line 1 has no text in 'text' but content.title, content.body.en;"]),
        ("a.jsonl", NESTED, {"column": "content"}, ["line 1 has no text in 'content'", "content.body.en"]),
        ("a.jsonl", NESTED * 2 + b'{"text": "t"}\n', {}, ["4 of 5 lines have no text in 'text', first line 1, which"]),
        ("a.json", b'["t", {"body": "b"}]', {}, ["1 of 2 items have no text in 'text', first item 2, which has body"]),
        ("a.dat", b"id,text\r\n1,one\r\n", {}, ["begins like a table with a column 'text', but is not named so"]),
        ("d", b'"id"\t"text"\n1\tone\n', {}, ["begins like a table"]),
        ("a.pkl", pickle.dumps({"text": "t"}, protocol=0), {}, ["is a pickle of Python"]),
        ("a.jsonl", CHAT, {}, ["line 1 has no text in 'text' nor in another field", "docs/data.md#your-own-text"]),
        ("a.jsonl", NESTED, {"column": "id.x"}, ["line 1 has no text in 'id.x'"]),
        ("a.jsonl", b'{"text": [1]}\n', {}, ["line 1 holds list in 'text'; convert each row to one string"]),
        ("a.jsonl", b"5\n", {}, ["line 1 holds int; it must hold a string, or an object with one in 'text'"]),
        ("a.docx", b"PK\3\4\0\0text", {}, ["is a ZIP archive, such as .docx"]),
        # Damaged files, and files of another content than their names say.
        ("a.parquet", parquet(ROWS)[:-100], {}, ["not a whole parquet file"]),
        ("a.parquet", flipped(parquet(ROWS, write_page_checksum=True)), {}, ["row group 0"]),
        ("a.parquet", parquet(pa.table({"text": NOT_UTF_8}), row_group_size=100), {}, ["row group 1"]),
        ("a.parquet", parquet(pa.table({"body": ["a"]})), {}, ["columns are body"]),
        ("a.parquet", parquet(pa.table({"text": [5]})), {}, ["int64, not strings"]),
        ("a.txt.gz", GZIP[:-9], {}, ["not a whole .gz file"]),
        ("a.txt.zst", b"no such format", {}, ["not a whole .zst file"]),
        ("a.txt.zst", LONG_WINDOW, {}, ["needs a long window; unpack it with `zstd -d --long=31`"]),
    ],
)
def test_a_file_is_refused(fetch, capsys, name, content, changes, facts):
    status = fetch({name: content}, **changes)

    refused(status, capsys.readouterr().err, 3, f"{name}: ", *facts)


def test_the_lines_of_the_page_make_text_of_a_chat(fetch):
    (lines,) = re.findall("```python tested\n(.*?)```", (ROOT / "docs/data.md").read_text(), re.DOTALL)
    Path("chats").mkdir()
    Path("chats/a.jsonl").write_bytes(CHAT)

    exec(lines, {})

    assert fetch({"a.jsonl": Path("data/local/a.jsonl").read_bytes()}) == 0
    assert texts_of("text") == ["user: one"]


def test_a_source_without_text_is_refused(fetch, capsys):
    status = fetch({"a.jsonl": b""})

    refused(status, capsys.readouterr().err, 3, "texts: ", "has no document")


def test_files_of_two_encodings_are_read_right_and_counted(fetch, capsys):
    files = {"1.txt": GERMAN.encode("cp1252"), "2.txt": GERMAN.encode(), "3.txt": b"ASCII", "4.txt": GERMAN.encode()}

    assert fetch(files, encoding="cp1252") == 0

    assert texts_of("text") == [GERMAN, GERMAN, "ASCII", GERMAN]
    assert "warning: 2 of 4 files are UTF-8 and were read so, not in sources.local.fetch" in capsys.readouterr().err
    assert read_json("data/raw/manifest.json")["sources"]["local"]["utf_8_files"] == 2


@pytest.mark.parametrize("encoding", ["utf-99", "hex", "a\0b"])
def test_an_encoding_that_python_does_not_have_is_refused(fetch, capsys, encoding):
    status = fetch({"a.txt": b"words"}, encoding=encoding)

    refused(status, capsys.readouterr().err, 2, f"sources.yaml: {FETCH}.encoding is {encoding!r}; it must be")


def test_damaged_files_are_listed_in_the_manifest_and_named(fetch, capsys):
    long = b"plain words " * 1000
    latin = long + "é é".encode("cp1252")
    nuls = b'"\\u0000 ' + long + b'"'
    table = parquet(pa.table({"text": [long.decode() + "\0"]}))
    files = {f"{number}.txt": latin for number in range(5)}
    files |= {"n.txt": long + b"\0" * 9, "o.jsonl": nuls, "p.parquet": table, "whole.txt": long}

    assert fetch(files) == 0

    said = capsys.readouterr().err
    texts = Path("../texts").resolve()
    first = ", ".join(f"{texts}/{number}.txt" for number in range(3))
    assert "10 characters in 5 of 9 files are not utf-8" in said
    assert f"in {first} and 2 more (damaged_files in data/raw/manifest.json)" in said
    assert "11 characters in 3 of 9 files are NUL" in said
    source = read_json("data/raw/manifest.json")["sources"]["local"]
    assert source["encoding"] == "utf-8"
    assert source["replaced_characters"] == 10
    damaged = [(file["path"], file["replaced_characters"], file["nul_characters"]) for file in source["damaged_files"]]
    assert damaged == [
        *[(f"{texts}/{number}.txt", 2, 0) for number in range(5)],
        (f"{texts}/n.txt", 0, 9),
        (f"{texts}/o.jsonl", 0, 1),
        (f"{texts}/p.parquet", 0, 1),
    ]


def sentences_of(seed: int, letters: str, space: str) -> str:
    """Return 2,000 letters in words of five."""
    numbers = random.Random(seed)
    return space.join("".join(numbers.choices(letters, k=5)) for _ in range(400))


def with_other_letters(text: str) -> str:
    """Return the text with another letter in 200."""
    return text[3].join(text[i : i + 199] for i in range(0, len(text), 200))


@pytest.mark.parametrize(
    ("letters", "space", "copied"),
    [
        pytest.param("กขคงจชซญดตถทนบปผพฟมยรลวสหอ", "", with_other_letters, id="Thai"),
        pytest.param("абвгдежзийклмнопрстуфхцчшщ", " ", str.upper, id="capitals"),
    ],
)
def test_near_copies_in_any_script_are_in_one_split(fetch, letters, space, copied):
    """The rule of the source `local`; by rule 1, copies are in both splits."""
    split = read_yaml("sources.yaml")["sources"]["local"]["fetch"]["split"] | {"validation_fraction": 0.3}
    originals = [sentences_of(seed, letters, space) for seed in range(20)]
    copies = [copied(text) for text in originals]
    files = {f"{number}.txt": text.encode() for number, text in enumerate(originals + copies)}

    def num_separated() -> int:
        validation = set(texts_of("validation"))
        return sum((a in validation) != (b in validation) for a, b in zip(originals, copies, strict=True))

    assert fetch(files, split=split) == 0
    assert num_separated() == 0
    recorded = read_json("data/raw/manifest.json")["sources"]["local"]["split"]
    assert recorded == split
    assert recorded["near_duplicates"]["rule"] == 3

    change_params(Path(), {f"{FETCH}.split.near_duplicates.rule": 1})
    assert run_here("fetch") == 0
    assert num_separated() > 0


def test_git_is_not_asked_about_text_outside_the_repository(fetch, capsys):
    subprocess.run(["git", "init", "-q"], check=True)

    assert fetch({"a.txt": b"words"}) == 0

    assert capsys.readouterr().err == ""
