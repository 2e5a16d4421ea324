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
    pq.write_table(pa.table({"text": texts}), file, compression="none", use_dictionary=False, **options)
    return file.getvalue()


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


GERMAN = "Grüße, und „schöne“ Wörter; viele"
LETTER = "From the window one saw 1999 houses.\nNote: it rained.\n\nReceived: nothing.\n"
TABLE = 'id;text;note\n1;"one; two, three";x\n2;four;y\n'
LINES = b'{"text": "one"}\n\n{"text": null, "url": "https://a.b"}\n{"text": "two"}\n'
NESTED = b'{"id": 1, "content": {"title": "t", "body": {"en": "one"}}}\n{"content": null}\n'
ROWS = ['é, "quoted"\nline 2', "", "two"]
OBJECTS = [{"id": 1, "text": row} for row in ROWS]
CSV = 'id,text\r\n1,"é, ""quoted""\r\nline 2"\r\n2,\r\n3,two\r\n'.encode()
STRINGS = pa.array(["p", None, "q", "p"])

READ = [
    # Plain text.
    ("a.txt", "é\r\nb".encode(), {}, ["é\nb"]),
    ("a.txt", b"word,text\nSome lines.\n", {}, ["word,text\nSome lines.\n"]),
    ("a.txt", b"one\r\n\r\ntwo", {"separator": r"\r\n\r\n"}, ["one", "two"]),  # as a shell passes it
    # Encodings.
    ("a.txt", codecs.BOM_UTF32_LE + GERMAN.encode("utf-32-le"), {"encoding": "cp1252"}, [GERMAN]),
    ("a.txt", "数".encode("utf-16-le"), {"encoding": "utf-16-le"}, ["数"]),
    ("a.txt", LETTER.encode("utf-16-be"), {"encoding": "UTF-16BE"}, [LETTER]),
    ("a.txt", LETTER.encode(), {"encoding": "UTF-16BE"}, [LETTER]),
    # Tables.
    ("a.csv-00000-of-00002", CSV, {}, ROWS),
    ("a.CSV.gz", packed(codecs.BOM_UTF8 + CSV), {}, ROWS),
    ("a.csv", TABLE.encode(), {}, ["one; two, three", "four"]),
    ("a.csv", b'id\ttext\n1\tone, "two"\n', {}, ['one, "two"']),
    ("a.csv", b"\nsep=;\n\nid,a;text\n0,5;one, two\n", {}, ["one, two"]),
    ("a.csv", b"id,text\n1\n2,two\n", {}, [None, "two"]),
    # JSON.
    ("a.jsonl.zst", zstandard.compress(LINES), {}, ["one", None, "two"]),
    ("part-00000.gz", packed(LINES), {"separator": "o"}, ["one", None, "two"]),
    ("a.jsonl", NESTED, {"column": "content.body.en"}, ["one", None]),
    ("a.json", b'{\n"a": {"b": "one"}\n}', {"column": "a.b"}, ["one"]),
    ("a.json", json.dumps(OBJECTS, indent=1).encode("utf-16"), {}, ROWS),
    # Parquet.
    ("a.parquet", parquet(STRINGS.cast(pa.dictionary(pa.int32(), pa.large_string()))), {}, ["p", None, "q", "p"]),
]


@pytest.mark.parametrize(("name", "content", "changes", "texts"), READ)
def test_a_file_is_read(tmp_path, name, content, changes, texts):
    (tmp_path / name).write_bytes(content)

    file = text_file(tmp_path / name, **changes)

    assert list(file.documents()) == texts
    assert file.num_replaced == 0


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
        ("b.jsonl", b'{"text": "a\\ud800b \\ud83d\\ude00"}', "a\ufffdb \N{GRINNING FACE}"),
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


PAGE = b"\n<!doctype HTML>\n<title>404 Not Found</title>"


@pytest.mark.parametrize(
    ("name", "content", "is_doubtful"),
    [
        ("a.txt", PAGE, True),
        ("a.html", PAGE, False),
        ("a.txt", b"<?xml version='1.0'?>\n<Error><Code>AccessDenied</Code></Error>", True),
        ("a.txt", b"404: Not Found", True),
        ("a.txt", b"She was not found at home.", False),
        ("a.csv", b"text\nBread &#38; butter\n" + b"a &lt; b\n" * 4, True),
        ("a.txt", b"Bread &amp; butter " * 4, False),
        ("a.txt", b"Gr=C3=BC=C3=9Fe " * 5, True),
        ("a.txt", b"Gr%C3%BC%C3%9Fe " * 5, True),
        ("a.txt", "Grüße “привет” ".encode().decode("cp1252", "replace").encode() * 3, True),
        ("a.txt", "NÃO, «déjà»: Âge, 50 % = 1/2; Ðе “€”\n===\n".encode() * 9, False),
    ],
)
def test_answers_of_servers_and_text_in_other_forms_are_doubtful(tmp_path, name, content, is_doubtful):
    (tmp_path / name).write_bytes(content)
    file = text_file(tmp_path / name)

    assert len(list(file.documents())) > 0

    assert file.is_doubtful == is_doubtful


# What is refused.


NUMBERED = [f"row {i}" for i in range(300)]
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
SET_ENCODING = "set sources.yaml:sources.local.fetch.encoding"
SED = "; if marks are text, put each field into marks: `sed"

REFUSED = [
    # Other things than text.
    ("a.txt", LFS, {}, ["is a pointer of Git LFS, not the file; fetch it with git lfs pull"]),
    ("a.jsonl.gz", LFS, {}, ["is a pointer of Git LFS"]),
    ("a.txt.dvc", b"outs:\n- md5: 1f0c\n", {}, ["is DVC's record of a file that is not there; fetch it with dvc pull"]),
    ("a.txt.part", b"the beginning", {}, ["is a part of a download by its name (.part); complete it"]),
    (".a.txt.icloud", b"bplist00", {}, ["stands for a text that is not in it (.icloud); put the text on this disk"]),
    ("dataset_info.json", b'{"features": 1}', {}, ["belongs to a dataset that save_to_disk wrote"]),
    ("a.gz", packed(b"%PDF-1.4\n"), {}, ["is a PDF file; save it as plain text"]),
    ("a.docx", b"PK\3\4\0\0text", {}, ["is a ZIP archive, such as .docx"]),
    ("inbox", b"From a@b.c Sat Jan  3 01:05:34 1996\nSubject: words\n\nHello.\n", {}, ["is mail", "JSONL"]),
    ("a.pq.gz", packed(parquet(NUMBERED)), {}, ["is a parquet file; give it a name"]),
    ("a.csv", b"x" * 7_999 + b"\0" + b"y" * 100, {}, ["is not text but binary", "with a NUL at byte 7999"]),
    ("a.txt", b"short and cut off" + b"\0" * 500, {}, ["cut off, with a NUL at byte 17"]),
    # Encodings.
    ("a.txt", GERMAN.encode("utf-16-le"), {}, ["UTF-16 without a mark", SET_ENCODING]),
    ("a.txt", ("数据文本" * 9).encode("gb18030"), {}, [" characters are not utf-8", SET_ENCODING]),
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
    ("a.jsonl", b'{"text": [1]}\n', {}, ["line 1 holds list in 'text'; convert each row to one string"]),
    ("a.json", b'{"name": "package"}', {}, ["line 1 has no text in 'text' but name", "set sources.yaml:"]),
    ("a.json", b'{"a": 1} // not JSON', {}, ["the file is not JSON"]),
    # Damaged files, and files of another content than their names say.
    ("a.parquet", parquet(NUMBERED)[:-100], {}, ["not a whole parquet file"]),
    ("a.parquet", parquet(NUMBERED, write_page_checksum=True).replace(b"row 150", b"row 151"), {}, ["row group 0"]),
    ("a.parquet", parquet([5]), {}, ["int64, not strings"]),
    ("a.txt.gz", packed(b"some words of text " * 99)[:-9], {}, ["not a whole .gz file"]),
]


@pytest.mark.parametrize(("name", "content", "changes", "facts"), REFUSED)
def test_a_file_is_refused(tmp_path, name, content, changes, facts):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError) as error:
        documents(tmp_path / name, **changes)

    said = str(error.value)
    assert [fact for fact in (f"{name}: ", *facts) if fact not in said] == [], said
