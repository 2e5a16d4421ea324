"""Local text: every type of file, a stable split, one policy for invalid UTF-8."""

import codecs
import gzip
import json
import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lm.core.errors import DataError
from lm.text.near_duplicates import NearDuplicates
from lm.text.sources.local import LocalFetch, fetch_local, find_files, read_documents
from lm.text.splits import SplitParams


def split_params(validation_fraction=0.2):
    return SplitParams(validation_fraction, 0.1, NearDuplicates(threshold=0.7, ngram_words=5, num_permutations=64))


def fetch_params(**changes):
    values = {"include": "**/*", "column": "text", "separator": None, "split": split_params()}
    return LocalFetch("local", **(values | changes))


def documents(path, **changes):
    replaced = Counter()
    fetch = fetch_params(**changes)
    return list(read_documents(path, fetch.column, fetch.separator, replaced)), replaced.total()


def splits(folder):
    return {
        split: pq.read_table(folder / split / "0000.parquet")["text"].to_pylist() for split in ("train", "validation")
    }


def test_each_type_of_file_gives_its_documents(tmp_path):
    (tmp_path / "a.txt").write_bytes("é\r\nb".encode())
    (tmp_path / "b.py").write_text("x = 1\n")
    (tmp_path / "c.jsonl").write_text('{"text": "one"}\n\n{"text": null}\n{"text": "two"}\n')
    pq.write_table(pa.table({"text": ["p", None, "q"]}), tmp_path / "d.parquet")
    (tmp_path / "e.txt.gz").write_bytes(gzip.compress(b"zipped", mtime=0))
    (tmp_path / "f.jsonl.zst").write_bytes(zstandard.compress(b'{"text": "three"}\n'))
    found = {path.name: documents(path)[0] for path in find_files(tmp_path, "**/*")}
    assert found == {
        "a.txt": ["é\nb"],
        "b.py": ["x = 1\n"],
        "c.jsonl": ["one", None, "two"],
        "d.parquet": ["p", None, "q"],
        "e.txt.gz": ["zipped"],
        "f.jsonl.zst": ["three"],
    }


def test_a_separator_splits_a_file(tmp_path):
    (tmp_path / "a.txt").write_text("one<|endoftext|>two")
    assert documents(tmp_path / "a.txt", separator="<|endoftext|>")[0] == ["one", "two"]
    (tmp_path / "b.txt").write_text("one\n\ntwo")
    assert documents(tmp_path / "b.txt", separator=r"\n\n")[0] == ["one", "two"], "as a shell passes it"


ROWS = ['é, "quoted"\nline 2', "", "two"]
TABLE = 'id,text\r\n1,"é, ""quoted""\r\nline 2"\r\n2,\r\n3,two\r\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", TABLE.encode()),
        ("a.CSV.gz", gzip.compress(codecs.BOM_UTF8 + TABLE.encode(), mtime=0)),
        ("a.tsv", b'text\tid\n"\xc3\xa9, ""quoted""\nline 2"\t1\n\t2\ntwo\t3\n'),
        ("a.json", json.dumps(ROWS).encode()),
        ("a.json", json.dumps([{"id": 1, "text": row} for row in ROWS], indent=1).encode("utf-16")),
        ("a.JSONL", "".join(json.dumps({"text": row}) + "\n" for row in ROWS).encode()),
        ("a.jsonl", codecs.BOM_UTF8 + "".join(json.dumps(row) + "\n" for row in ROWS).encode()),
    ],
)
def test_tables_and_arrays_have_a_document_per_row(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert documents(tmp_path / name) == (ROWS, 0)


def test_a_json_object_is_one_document(tmp_path):
    for text in ('{"name": "package"}', "[section]\n", '{"a": 1} // not JSON'):
        name = "a.json" if text[0] == "{" else "a.toml"
        (tmp_path / name).write_text(text)
        assert documents(tmp_path / name) == ([text], 0)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-be"])
def test_a_byte_order_mark_gives_the_encoding(tmp_path, encoding):
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    (tmp_path / "a.txt").write_bytes(mark + "Zoë\r\n\ufffd".encode(encoding))
    assert documents(tmp_path / "a.txt") == (["Zoë\n\ufffd"], 0)


def test_replaced_characters_are_counted_per_file(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("fine")
    for name in ("b", "c"):
        (tmp_path / f"in/{name}.txt").write_bytes("a café, and eleven more words of plain text".encode("cp1252"))
    fetch_local(fetch_params(split=None), tmp_path / "in", tmp_path / "out")
    warning = f"warning: 2 characters in 2 of 3 files are not UTF-8 and became U+FFFD, first in {tmp_path}/in/b.txt"
    assert warning in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["dictionary", "string_view", "large_dictionary"])
def test_parquet_strings_of_every_type_are_read(tmp_path, kind):
    texts = pa.array(["p", None, "q", "p"], pa.large_string() if kind == "large_dictionary" else pa.string())
    texts = texts.cast(pa.string_view()) if kind == "string_view" else texts.dictionary_encode()
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    assert documents(tmp_path / "a.parquet")[0] == ["p", None, "q", "p"]


def test_links_that_dvc_does_not_follow_are_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real/a.txt").write_text("a")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/file.txt").symlink_to(tmp_path / "real/a.txt")
    assert find_files(tmp_path / "in", "**/*") == [tmp_path / "in/file.txt"]
    cases = {
        tmp_path / "real": f"links to the folder {tmp_path}/real; set local.path to that",
        tmp_path / "nowhere": "links to nothing, or in a circle; remove it",
        tmp_path / "in/link": "links to nothing, or in a circle; remove it",
        Path("/dev/zero"): "is a pipe or a device, needed: a file; remove it",
    }
    for target, sentence in cases.items():
        link = tmp_path / "in/link"
        link.symlink_to(target)
        with pytest.raises(DataError, match=f"{link}: {sentence}"):
            find_files(tmp_path / "in", "*.txt")
        link.unlink()
    os.mkfifo(tmp_path / "in/pipe")
    with pytest.raises(DataError, match=r"in/pipe: is a pipe or a device, needed: a file; remove it"):
        find_files(tmp_path / "in", "*.txt")
    (tmp_path / "in/pipe").rename(tmp_path / "in" / os.fsdecode(b"\xff.txt"))
    with pytest.raises(DataError, match=r"the name b'\\xff.txt' is not UTF-8; rename it"):
        find_files(tmp_path / "in", "*.txt")


def test_invalid_utf_8_is_replaced_and_counted(tmp_path):
    (tmp_path / "a.txt").write_bytes(
        b"long enough to be text, one bad \xff byte, a true \xef\xbf\xbd and NUL \x00 kept"
    )
    texts, replaced = documents(tmp_path / "a.txt")
    assert replaced == 1
    assert texts[0].count("\ufffd") == 2 and "\0" in texts[0]
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "a\ud800b \ud83d\ude00"}) + "\n")
    assert documents(tmp_path / "b.jsonl") == (["a\ufffdb \N{GRINNING FACE}"], 1)
    (tmp_path / "c.png").write_bytes(bytes(range(128, 256)) * 4)
    (tmp_path / "d.txt").write_bytes("ordinary words".encode("utf-16-le"))
    for name in ("c.png", "d.txt"):
        with pytest.raises(DataError, match=f"{name}: .* are not UTF-8, or NUL; save the file as UTF-8"):
            documents(tmp_path / name)


def test_include_selects_files_without_hidden_ones(tmp_path):
    for name in ("a.txt", "b.md", "deep/c.txt", ".hidden/d.txt", ".gitkeep"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    names = lambda pattern: [p.relative_to(tmp_path).as_posix() for p in find_files(tmp_path, pattern)]  # noqa: E731
    assert names("**/*") == ["a.txt", "b.md", "deep/c.txt"]
    assert names("**/*.txt") == ["a.txt", "deep/c.txt"]
    assert find_files(tmp_path / "a.txt", "**/*.md") == [tmp_path / "a.txt"]
    with pytest.raises(DataError, match="no file matches"):
        find_files(tmp_path, "*.c")
    with pytest.raises(DataError, match="does not exist"):
        find_files(tmp_path / "nowhere", "*")


@pytest.mark.parametrize(
    ("lengths", "fraction", "share", "is_said"),
    [
        ([100_000, 30, 20, 40, 10], 0.05, (0, 0.002), True),  # one book and four short files
        ([500, 500], 0.05, (0.5, 0.5), True),
        ([900] + [10] * 100, 0.05, (0.05, 0.06), False),
        ([100] * 10, 0.9, (0.9, 0.9), False),
    ],
)
def test_validation_never_takes_far_too_much(tmp_path, capsys, lengths, fraction, share, is_said):
    (tmp_path / "in").mkdir()
    for number, length in enumerate(lengths):
        (tmp_path / f"in/{number}.txt").write_text(f"{number:04d}" + "x" * (length - 4))
    manifest = fetch_local(fetch_params(split=split_params(fraction)), tmp_path / "in", tmp_path / "out")
    actual = manifest["splits"]["validation"]["characters"] / sum(lengths)
    assert share[0] <= actual <= share[1]
    said = capsys.readouterr().err
    assert ("warning: validation has" in said) == is_said
    assert not is_said or f"not {fraction:.2%} (validation_fraction)" in said


def test_without_a_fraction_there_is_one_split(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    for name in ("b", "a", "c"):
        (source / name).write_text(f"text of {name}")
    manifest = fetch_local(fetch_params(split=None), source, tmp_path / "out")
    assert list(manifest["splits"]) == ["text"]
    texts = pq.read_table(tmp_path / "out" / "text" / "0000.parquet")["text"].to_pylist()
    assert texts == ["text of a", "text of b", "text of c"]


def test_one_document_cannot_be_split(tmp_path):
    (tmp_path / "book.txt").write_text("all in one\n\nand a second paragraph")
    with pytest.raises(
        DataError, match=r"all documents of 1 files are one, or near-duplicates.*sources\.local\.fetch\.separator="
    ):
        fetch_local(fetch_params(), tmp_path / "book.txt", tmp_path / "out")
    fetch_local(fetch_params(separator="\n\n"), tmp_path / "book.txt", tmp_path / "out2")
    assert sum(map(len, splits(tmp_path / "out2").values())) == 2
