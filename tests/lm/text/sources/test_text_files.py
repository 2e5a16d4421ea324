"""Files of rows under any name are read row by row, and quotation marks join no rows of a TSV."""

import csv
import gzip
import json
import re
import subprocess

import pytest

from lm.core.errors import DataError
from lm.text.sources.text_files import TextFile

ROWS = '{"text": "one two", "url": "https://a.b"}\n{"text": "three", "timestamp": "2019"}\n'
NAMES = ["a.ldjson", "a.jl", "a.jsonl-00000-of-00002", "a.jsonl_1", "a.json.1", "part-00000", "a.txt"]


def documents(path) -> list[str | None]:
    return list(TextFile(path, "text", None, "utf-8").documents())


def test_json_lines_are_rows_whatever_their_name(tmp_path):
    for name in NAMES:
        (tmp_path / name).write_text(ROWS)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(ROWS.encode()))

    for path in tmp_path.iterdir():
        file = TextFile(path, "text", None, "utf-8")
        assert list(file.documents()) == ["one two", "three"]
        assert file.has_rows


def test_the_number_of_a_part_does_not_hide_the_suffix(tmp_path):
    for end in (".1", "-00000-of-00002"):
        strings = tmp_path / f"a.jsonl{end}"
        strings.write_text('"a string"\n\n"another"\n')
        table = tmp_path / f"a.csv{end}"
        table.write_text('id,text\n1,"one, two"\n')

        assert documents(strings) == ["a string", "another"]
        assert documents(table) == ["one, two"]


def test_a_json_object_without_rows_is_refused_whatever_its_name(tmp_path):
    for name in ("a.ipynb", "a.txt", "a"):
        (tmp_path / name).write_text(json.dumps({"cells": [{"source": ["words"]}]}, indent=1))
        with pytest.raises(DataError, match=f"{name}: holds one JSON dict and no rows"):
            documents(tmp_path / name)


@pytest.mark.parametrize(
    "content",
    [
        "[Verse 1]\nwords\n",
        "{ int x = 1; }\n",
        "{{ template }}\n",
        '"Yes," he said.\n"No."\n',
        '"Yes."\n"No."\n',
        "# Title\n\n```json\n{}\n```\n",
        "<!DOCTYPE html>\n<html></html>\n",
        "<?xml version='1.0'?><svg/>\n",
        "\\documentclass{book}\n",
        "%!TEX root = main.tex\n",
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
    ("content", "sentence"),
    [
        ('id\ttext\n1\t"Hello.\n2\n3\tbye"\n', "line 4: several lines up to it are one field"),
        ('text\n"Hello.\nA row.\nbye"\n', "line 4: several lines up to it are one field"),
        ('id\ttext\n1\t"Hello," she\tx\n', "line 2: '\t' expected after '\"'"),
        ('text\n"Hello.\n', "line 2: unexpected end of data"),
    ],
)
def test_rows_of_a_tsv_are_never_swallowed(tmp_path, content, sentence):
    (tmp_path / "a.tsv").write_text(content)

    with pytest.raises(DataError, match=f"a.tsv: {sentence}.*; if marks are text, put each field into marks: `sed"):
        documents(tmp_path / "a.tsv")


def test_the_remedy_for_quotation_marks_works(tmp_path):
    (tmp_path / "a.tsv").write_text('id\ttext\n1\t"Hello," she said.\n2\t\n3\t"bye\n')
    with pytest.raises(DataError) as error:
        documents(tmp_path / "a.tsv")

    (command,) = re.findall("`(.*)`", str(error.value))
    subprocess.run(f"{command} -i a.tsv", shell=True, cwd=tmp_path, check=True)

    assert documents(tmp_path / "a.tsv") == ['"Hello," she said.', "", '"bye']


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", b"id\ttext\n1\tlong enough for one bad \xff byte\n"),
        ("a.json", b'{"text": "long enough for one bad \xff byte"}\n'),
    ],
)
def test_invalid_bytes_are_counted_once(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)

    file = TextFile(tmp_path / name, "text", None, "utf-8")

    assert list(file.documents()) == ["long enough for one bad \ufffd byte"]
    assert file.num_replaced == 1
