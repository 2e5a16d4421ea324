"""What is read of a file, by its name and its content: documents, replaced characters, and what is refused."""

import codecs
import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lm.core.errors import DataError
from lm.text.sources.text_files import TextFile


def text_file(path: Path, column: str = "text", separator: str | None = None, encoding: str = "utf-8") -> TextFile:
    return TextFile(path, column, separator, encoding)


def documents(path: Path, **changes: str) -> list[str | None]:
    return list(text_file(path, **changes).documents())


def parquet(texts, **options) -> bytes:
    """Return a column of texts as a parquet file."""
    file = io.BytesIO()
    table = texts if isinstance(texts, pa.Table) else pa.table({"text": texts})
    pq.write_table(table, file, compression="none", use_dictionary=False, **options)
    return file.getvalue()


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


GERMAN = "Grüße, und „schöne“ Wörter; viele"
CHINESE = "数据文本" * 9
LETTER = "From the window one saw 1999 houses.\nNote: it rained.\n\nReceived: nothing.\n"
TABLE = 'id;text;note\n1;"one; two, three";x\n2;four;y\n'
NESTED = b'{"id": 1, "content": {"title": "t", "body": {"en": "one"}}}\n{"content": null}\n'
CHAT = b'{"id": 1, "messages": [{"role": "user", "content": "one"}]}\n'
C4 = '{"text": "one two", "url": "https://a.b"}\n{"text": "three", "timestamp": "2019"}\n'
ROWS = ['é, "quoted"\nline 2', "", "two"]
OBJECTS = [{"id": 1, "text": row} for row in ROWS]
CSV = 'id,text\r\n1,"é, ""quoted""\r\nline 2"\r\n2,\r\n3,two\r\n'.encode()
STRINGS = pa.array(["p", None, "q", "p"])
UTF_8_MARK = codecs.BOM_UTF8


def json_lines(rows: list) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


READ = [
    # Plain text.
    ("a.txt", "é\r\nb".encode(), {}, ["é\nb"]),
    ("a.txt.gz", packed(b"words") + b"\0" * 512, {}, ["words"]),
    ("a.txt", b"word,text\nSome lines.\n", {}, ["word,text\nSome lines.\n"]),
    ("a.txt", b"one\r\n\r\ntwo", {"separator": r"\n\n"}, ["one", "two"]),  # as a shell passes it
    ("a.txt", b"one\r\n\r\ntwo", {"separator": "\r\n\r\n"}, ["one", "two"]),
    # Encodings.
    ("a.txt", UTF_8_MARK + GERMAN.encode(), {"encoding": "utf-16-le"}, [GERMAN]),
    ("a.txt", codecs.BOM_UTF32_BE + GERMAN.encode("utf-32-be"), {}, [GERMAN]),
    ("a.txt", CHINESE.encode("utf-16-le"), {"encoding": "utf-16-le"}, [CHINESE]),
    ("a.txt", "数".encode("utf-16-le"), {"encoding": "utf-16-le"}, ["数"]),
    ("a.csv", f"{TABLE}3;ß;".encode(), {"encoding": "koi8-r"}, ["one; two, three", "four", "ß"]),
    ("a.txt", GERMAN.encode(), {"encoding": "utf-16-le"}, [GERMAN]),
    ("a.txt", LETTER.encode(), {"encoding": "UTF-16BE"}, [LETTER]),
    # Tables.
    ("a.csv", CSV, {}, ROWS),
    ("a.CSV.gz", packed(UTF_8_MARK + CSV), {}, ROWS),
    ("a.csv", TABLE.encode(), {}, ["one; two, three", "four"]),
    ("a.csv", b'id\ttext\n1\tone, "two"\n', {}, ['one, "two"']),
    ("a.tsv", b"id|text|n\n1|one, two|3\n", {}, ["one, two"]),
    ("a.csv", b"\nsep=;\n\nid,a;text\n0,5;one, two\n", {}, ["one, two"]),
    ("a.csv", b"id,text\n1\n2,two\n", {}, [None, "two"]),
    ("a.csv", b'id,text\r1,"one\rtwo"\r2,three\r', {}, ["one\ntwo", "three"]),
    # JSON.
    ("a.jsonl", b'{"text": "one"}\n\n{"text": null}\n{"text": "two"}\n', {}, ["one", None, "two"]),
    ("a.jsonl.zst", zstandard.compress(b'{"text": "three"}\n'), {}, ["three"]),
    ("a.jsonl", UTF_8_MARK + json_lines(ROWS), {}, ROWS),
    ("a.jsonl", NESTED, {"column": "content.body.en"}, ["one", None]),
    ("a.jsonl", b'{"a.b": "one", "a": {"b": "two"}}\nnull\n', {"column": "a.b"}, ["one", None]),
    ("a.json", b'{\n"a": {"b": "one"}\n}', {"column": "a.b"}, ["one"]),
    ("a.json", json.dumps(OBJECTS, indent=1).encode("utf-16"), {}, ROWS),
    ("a.json", json.dumps({"id": 1, "text": "one row"}, indent=2).encode(), {}, ["one row"]),
    # Parquet.
    ("a.parquet", parquet(STRINGS.cast(pa.dictionary(pa.int32(), pa.large_string()))), {}, ["p", None, "q", "p"]),
]


@pytest.mark.parametrize(("name", "content", "changes", "texts"), READ)
def test_a_file_is_read(tmp_path, name, content, changes, texts):
    (tmp_path / name).write_bytes(content)

    file = text_file(tmp_path / name, **changes)

    assert list(file.documents()) == texts
    assert file.num_replaced == 0


@pytest.mark.parametrize("name", ["a.jl.gz", "c4.00000-of-01024.json.gz", "part-00000", "a.txt"])
def test_json_lines_are_rows_whatever_their_name(tmp_path, name):
    content = C4.encode()
    (tmp_path / name).write_bytes(packed(content) if name.endswith(".gz") else content)

    file = text_file(tmp_path / name)

    assert list(file.documents()) == ["one two", "three"]
    assert file.has_rows


@pytest.mark.parametrize(
    "content",
    [
        "[Verse 1]\nwords\n",
        '"Yes," he said.\n"No."\n',
        "# Title\n\n```json\n{}\n```\n",
        "<!DOCTYPE html>\n<html></html>\n",
        "version 1 of https://git-lfs.github.com\n",
    ],
)
def test_text_and_markup_that_look_a_little_like_other_formats_are_text(tmp_path, content):
    for name in ("a.html", "a.json5", "a.v2"):
        (tmp_path / name).write_text(content)
        assert documents(tmp_path / name) == [content]


@pytest.mark.parametrize("delimiter", [",", "\t"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_what_a_writer_of_csv_writes_is_read(tmp_path, quoting, delimiter):
    texts = ["plain", 'a "word"', '"all of it"', "", '"begin', 'end"', "'", "two\nlines", "a\ttab", "a, b"]
    with open(tmp_path / "a.tsv", "w", newline="") as file:
        csv.writer(file, delimiter=delimiter, quoting=quoting).writerows(
            [("text", "id"), *zip(texts, texts, strict=True)]
        )

    assert documents(tmp_path / "a.tsv") == texts


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        (
            "a.txt",
            b"long enough, one bad \xff byte, and a true \xef\xbf\xbd",
            "long enough, one bad \ufffd byte, and a true \ufffd",
        ),
        ("a.json", b'{"text": "long enough for one bad \xff byte"}\n', "long enough for one bad \ufffd byte"),
        ("b.jsonl", json_lines([{"text": "a\ud800b \ud83d\ude00"}]), "a\ufffdb \N{GRINNING FACE}"),
    ],
)
def test_what_utf_8_does_not_have_is_replaced_and_counted_once(tmp_path, name, content, text):
    (tmp_path / name).write_bytes(content)

    file = text_file(tmp_path / name)

    assert list(file.documents()) == [text]
    assert file.num_replaced == 1


@pytest.mark.parametrize(("name", "damage"), [("a.csv", b"\xff"), ("a.txt", b"\0")])
def test_up_to_a_tenth_of_the_characters_may_be_damaged(tmp_path, name, damage):
    whole = b"text\n" + b"x" * 8_995
    (tmp_path / name).write_bytes(whole + damage * 1_000)
    assert len(documents(tmp_path / name)) == 1

    (tmp_path / name).write_bytes(whole + damage * 1_001)
    with pytest.raises(DataError, match="1001 of 10001 characters are not utf-8, or NUL"):
        documents(tmp_path / name)


# What is refused.


def flipped(content: bytes) -> bytes:
    """Return bytes with another bit in their middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


PLAIN_WORDS = [f"{i}: plain words of ASCII that hide a binary header well. " * 20 for i in range(200)]
NUMPY_ARRAY = b"\x93NUMPY\x01\0v\0" + PLAIN_WORDS[0].encode()
NUMBERED = [f"row {i}" for i in range(300)]
LONG_WINDOW = bytes.fromhex("28b52ffd 00a8 19000068690a")  # a frame of zstd with a window of 2 GiB
SET_ENCODING = "set sources.yaml:sources.local.fetch.encoding"
SED = "; if marks are text, put each field into marks: `sed"

REFUSED = [
    # Other things than text.
    ("a.gz", packed(b"WARC/1.0\r\nWARC-Type: warcinfo\r\n"), {}, ["is a web archive", "JSONL"]),
    ("inbox", b"From a@b.c Sat Jan  3 01:05:34 1996\nSubject: words\n\nHello.\n", {}, ["is mail", "JSONL"]),
    ("a.docx", b"PK\3\4\0\0text", {}, ["is a ZIP archive, such as .docx"]),
    ("a.pq.gz", packed(parquet(PLAIN_WORDS)), {}, ["is a parquet file; give it a name"]),
    ("a.npy", NUMPY_ARRAY, {}, ["is not text but binary"]),
    ("a.csv", b"x" * 7_999 + b"\0" + b"y" * 100, {}, ["is not text but binary", "with a NUL at byte 7999"]),
    ("a.txt", b"short and cut off" + b"\0" * 500, {}, ["cut off, with a NUL at byte 17"]),
    # Encodings.
    ("a.txt", GERMAN.encode("utf-16-le"), {}, ["UTF-16 without a mark", SET_ENCODING]),
    ("a.txt", CHINESE.encode("gb18030"), {}, [" characters are not utf-8", SET_ENCODING]),
    # Tables.
    ("a.csv", TABLE.encode(), {"column": "id;text;note"}, ["cut at ';'", "but id, text, note"]),
    ("a.csv", b"text|text\n1|2\n", {}, ["several columns are named 'text'"]),
    ("a.csv", b"id;text\n1;a;b\n", {}, ["line 2 has 3 fields", "that hold ';'"]),
    ("a.csv", b"id,body\n1,b\n", {}, ["has no 'text' but id, body"]),
    ("a.dat", b"id,text\r\n1,one\r\n", {}, ["begins like a table with a column 'text', but is not named so"]),
    ("a.tsv", b'id\ttext\n1\t"Hello.\n2\n3\tbye"\n', {}, ["line 4: several lines up to it are one field", SED]),
    ("a.tsv", b'text\n"Hello.\n', {}, ["line 2: unexpected end of data", SED]),
    # JSON.
    ("a.jsonl", NESTED, {}, ["line 1 has no text in 'text' but content.title, content.body.en;"]),
    ("a.jsonl", NESTED * 2 + b'{"text": "t"}\n', {}, ["4 of 5 lines have no text in 'text', first line 1, which"]),
    ("a.jsonl", CHAT, {}, ["line 1 has no text in 'text' nor in another field", "docs/data.md#your-own-text"]),
    ("a.jsonl", b'{"text": [1]}\n', {}, ["line 1 holds list in 'text'; convert each row to one string"]),
    ("a.json", b'{"name": "package"}', {}, ["line 1 has no text in 'text' but name", "set sources.yaml:"]),
    ("a.json", b'{"a": 1} // not JSON', {}, ["the file is not JSON"]),
    # Damaged files, and files of another content than their names say.
    ("a.parquet", parquet(NUMBERED)[:-100], {}, ["not a whole parquet file"]),
    ("a.parquet", flipped(parquet(NUMBERED, write_page_checksum=True)), {}, ["row group 0"]),
    ("a.parquet", parquet([5]), {}, ["int64, not strings"]),
    ("a.txt.gz", packed(b"some words of text " * 99)[:-9], {}, ["not a whole .gz file"]),
    ("a.txt.zst", LONG_WINDOW, {}, ["needs a long window; unpack it with `zstd -d --long=31`"]),
]


@pytest.mark.parametrize(("name", "content", "changes", "facts"), REFUSED)
def test_a_file_is_refused(tmp_path, name, content, changes, facts):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError) as error:
        documents(tmp_path / name, **changes)

    said = str(error.value)
    assert [fact for fact in (f"{name}: ", *facts) if fact not in said] == [], said
