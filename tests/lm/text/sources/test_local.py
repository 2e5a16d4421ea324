"""Local text: every type of file, a stable split, one policy for invalid UTF-8."""

import gzip
import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lm.core.errors import DataError
from lm.text.sources.local import LocalFetch, fetch_local, find_files, read_documents


def fetch_params(**changes):
    values = {"include": "**/*", "column": "text", "separator": None, "validation_fraction": 0.2}
    return LocalFetch("local", **(values | changes))


def documents(path, **changes):
    replaced = Counter()
    fetch = fetch_params(**changes)
    return list(read_documents(path, fetch.column, fetch.separator, replaced)), replaced["characters"]


def splits(folder):
    return {
        split: pq.read_table(folder / split / "0000.parquet")["text"].to_pylist() for split in ("train", "validation")
    }


def test_each_type_of_file_gives_its_documents(tmp_path):
    (tmp_path / "a.txt").write_bytes("é\r\nb".encode())
    (tmp_path / "b.py").write_text("x = 1\n")
    (tmp_path / "c.jsonl").write_text('{"text": "one"}\n\n{"text": null}\n{"text": "two"}\n')
    pq.write_table(pa.table({"text": ["p", None, "q"]}), tmp_path / "d.parquet")
    (tmp_path / "e.txt.gz").write_bytes(gzip.compress(b"zipped"))
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
    with pytest.raises(DataError, match=r"c\.png: .* characters are not UTF-8; remove the file"):
        documents(tmp_path / "c.png")


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


def test_the_split_depends_on_content_and_has_about_the_wanted_fraction(tmp_path):
    texts = [f"document {i} " * (i % 7 + 1) for i in range(200)] + ["document 3 " * 4]
    source = tmp_path / "in"
    source.mkdir()
    (source / "all.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    manifest = fetch_local(fetch_params(), source, tmp_path / "out")
    found = splits(tmp_path / "out")
    assert sorted(found["train"] + found["validation"]) == sorted(texts)
    assert not set(found["train"]) & set(found["validation"])
    share = sum(map(len, found["validation"])) / sum(map(len, texts))
    assert 0.2 <= share < 0.25
    assert manifest["splits"]["train"]["documents"] == len(found["train"])
    # The same text in other files and another order: the same documents validate.
    (source / "all.jsonl").rename(source / "second.jsonl")
    (source / "first.txt").write_text("a new document")
    fetch_local(fetch_params(), source, tmp_path / "again")
    moved = set(splits(tmp_path / "again")["validation"]) ^ set(found["validation"])
    assert len(moved) <= 2


def test_without_a_fraction_there_is_one_split_in_path_order(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    for name in ("b", "a", "c"):
        (source / name).write_text(f"text of {name}")
    manifest = fetch_local(fetch_params(validation_fraction=None), source, tmp_path / "out")
    assert list(manifest["splits"]) == ["text"]
    texts = pq.read_table(tmp_path / "out" / "text" / "0000.parquet")["text"].to_pylist()
    assert texts == ["text of a", "text of b", "text of c"]


def test_one_document_cannot_be_split_and_the_separator_is_named(tmp_path):
    (tmp_path / "book.txt").write_text("all in one\n\nand a second paragraph")
    with pytest.raises(DataError, match=r"found 1 distinct documents.*set sources\.local\.fetch\.separator"):
        fetch_local(fetch_params(), tmp_path / "book.txt", tmp_path / "out")
    fetch_local(fetch_params(separator="\n\n"), tmp_path / "book.txt", tmp_path / "out2")
    assert sum(map(len, splits(tmp_path / "out2").values())) == 2
