"""Local text: every type of file, a stable split, one policy for invalid UTF-8."""

import codecs
import gzip
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lm.core.errors import DataError
from lm.text.near_duplicates import NearDuplicates
from lm.text.sources.local import LocalFetch, fetch_local, find_files
from lm.text.sources.text_files import TextFile
from lm.text.splits import SplitParams


def split_params(validation_fraction=0.2, test_documents=None):
    near_duplicates = NearDuplicates(threshold=0.7, ngram_words=5, num_permutations=64)
    return SplitParams(validation_fraction, test_documents, 0.1, near_duplicates)


def fetch_params(**changes):
    values = {"include": "**/*", "column": "text", "separator": None, "split": split_params()}
    return LocalFetch("local", **(values | changes))


def documents(path, **changes):
    file = TextFile(path, "text", changes.get("separator"))
    return list(file.documents()), file.num_replaced


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


@pytest.mark.parametrize(
    ("content", "separator"),
    [
        (b"one<|endoftext|>two", "<|endoftext|>"),
        (b"one\n\ntwo", r"\n\n"),  # as a shell passes it
        (b"one\r\n\r\ntwo", r"\n\n"),
        (b"one\r\n\r\ntwo", "\r\n\r\n"),
        (b"one\ttwo", r"\t"),
    ],
)
def test_a_separator_splits_a_file(tmp_path, content, separator):
    (tmp_path / "a.txt").write_bytes(content)
    assert documents(tmp_path / "a.txt", separator=separator)[0] == ["one", "two"]


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


C4 = '{"text": "one two", "url": "https://a.b"}\n{"text": "three", "timestamp": "2019"}\n'


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("c4-train.00000-of-01024.json.gz", gzip.compress(C4.encode(), mtime=0), ["one two", "three"]),
        ("a.json", C4.encode("utf-16"), ["one two", "three"]),
        ("a.json", b'\n "one"\n "two"\n', ["one", "two"]),
        ("a.json", b'{"text": "one row"}', ["one row"]),
        ("a.json", json.dumps({"id": 1, "text": "one row"}, indent=2).encode(), ["one row"]),
        ("a.json", b'["one", {"text": "two"}]', ["one", "two"]),
        ("a.json", b"", []),
    ],
)
def test_the_content_of_a_json_file_decides_how_it_is_read(tmp_path, name, content, texts):
    (tmp_path / name).write_bytes(content)
    assert documents(tmp_path / name) == (texts, 0)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            json.dumps({"_data_files": [{"filename": "data.arrow"}]}, indent=2),
            "holds one JSON dict and no rows; it must hold an",
        ),
        ('{"name": "package"}', "line 1 has no 'text' but name; set sources.local.fetch.column to one of them"),
        (C4 + "{", "line 3 is not JSON"),
        ('{"a": 1} // not JSON', "the file is not JSON .*; correct or remove it"),
        ("7", "holds one JSON int and no rows"),
    ],
)
def test_a_json_file_without_rows_is_refused(tmp_path, content, sentence):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError, match=f"a.json: {sentence}"):
        documents(tmp_path / "a.json")
    fetch = fetch_params(split=None)
    with pytest.raises(DataError, match=r", or leave it out with sources\.local\.fetch\.include$"):
        fetch_local(fetch, tmp_path / "a.json", tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "a.csv",
            "id,text\n1,Hello\n2,Hello, world\n",
            "line 3 has 3 fields, the first line names 2; put texts that hold ',' ",
        ),
        ("a.csv", "text\nfine\na, b, c\n", "line 3 has 3 fields, the first line names 1"),
        ("a.tsv", "text\tid\na\tb\t1\n", r"line 2 has 3 fields, the first line names 2; put texts that hold '\t' into"),
    ],
)
def test_a_row_with_too_many_fields_is_refused(tmp_path, name, content, sentence):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=re.escape(f"{name}: {sentence}")):
        documents(tmp_path / name)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json"])
@pytest.mark.parametrize("content", [b"", b"\n\n", codecs.BOM_UTF8])
def test_an_empty_table_has_no_document(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert documents(tmp_path / name) == ([], 0)


def arrow_stream(texts):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("text", pa.string())])) as writer:
        writer.write_table(pa.table({"text": texts}))
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstandard.compress])
@pytest.mark.parametrize("kind", ["arrow", "pq", "npy"])
def test_binary_files_are_refused_whatever_their_names(tmp_path, kind, compress):
    texts = [f"{i}: plain words of ASCII that hide a binary header well. " * 20 for i in range(200)]
    if kind == "pq":
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"text": texts}), sink, compression="none", use_dictionary=False)
        content = sink.getvalue().to_pybytes()
    else:
        content = arrow_stream(texts) if kind == "arrow" else b"\x93NUMPY\x01\0v\0" + texts[0].encode()
    path = tmp_path / f"data.{kind}{ {gzip.compress: '.gz', zstandard.compress: '.zst'}.get(compress, '') }"
    path.write_bytes(compress(content))
    sentence = (
        "is a parquet file; give it a name"
        if kind == "pq"
        else r"is not text but binary, .* with its method to_parquet"
    )
    with pytest.raises(DataError, match=f"data.{kind}.*: {sentence}"):
        documents(path)


@pytest.mark.parametrize("name", ["a.txt", "a.csv"])
def test_a_nul_at_the_start_makes_a_file_binary_and_many_are_not_text(tmp_path, name):
    def write(place: int, num_nuls: int) -> None:
        (tmp_path / name).write_bytes(b"text\n" + b"x" * (place - 5) + b"\0" * num_nuls + b"y" * 100)

    write(7_999, 1)
    with pytest.raises(DataError, match="is not text but binary, with a NUL at byte 7999; convert it"):
        documents(tmp_path / name)
    write(8_000, 900)
    assert len(documents(tmp_path / name)[0]) == 1
    write(8_000, 901)
    with pytest.raises(DataError, match="901 of 9001 characters are not UTF-8, or NUL"):
        documents(tmp_path / name)


def test_up_to_a_tenth_of_the_characters_may_be_invalid(tmp_path):
    for name, head in (("a.txt", b""), ("a.csv", b"text\n")):
        for num_invalid, is_refused in ((10, False), (11, True)):
            (tmp_path / name).write_bytes(head + b"\xff" * num_invalid + b"x" * (100 - num_invalid - len(head)))
            if is_refused:
                with pytest.raises(DataError, match=f"{num_invalid} of 100 characters are not UTF-8"):
                    documents(tmp_path / name)
            else:
                assert documents(tmp_path / name)[1] == num_invalid


@pytest.mark.parametrize("split", [None, split_params()])
def test_a_separator_that_occurs_nowhere_is_warned_of(tmp_path, capsys, split):
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / f"in/{name}.txt").write_text(f"text of {name}\n\nand more of {name}")
    fetch_local(fetch_params(split=split, separator="---"), tmp_path / "in", tmp_path / "out")
    assert "fetch.separator is '---', which occurs in none of 3 files" in capsys.readouterr().err
    fetch_local(fetch_params(split=split, separator="\n\n"), tmp_path / "in", tmp_path / "out2")
    assert "which occurs in none" not in capsys.readouterr().err


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
    link = tmp_path / "in/link"
    for target, sentence in (
        (tmp_path / "real", f"links to the folder {tmp_path}/real; set local.path to that"),
        (tmp_path / "nowhere", "links to nothing, or in a circle; remove it"),
        (link, "links to nothing, or in a circle; remove it"),
    ):
        link.symlink_to(target)
        with pytest.raises(DataError, match=f"{link}: {sentence}"):
            find_files(tmp_path / "in", "*.txt")
        link.unlink()


def test_invalid_utf_8_is_replaced_and_counted(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"long enough to be text, one bad \xff byte, and a true \xef\xbf\xbd")
    texts, replaced = documents(tmp_path / "a.txt")
    assert replaced == 1 and texts[0].count("\ufffd") == 2
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "a\ud800b \ud83d\ude00"}) + "\n")
    assert documents(tmp_path / "b.jsonl") == (["a\ufffdb \N{GRINNING FACE}"], 1)
    (tmp_path / "c.png").write_bytes(bytes(range(128, 256)) * 4)
    (tmp_path / "d.txt").write_bytes("ordinary words".encode("utf-16-le"))
    with pytest.raises(DataError, match=r"c\.png: .* are not UTF-8, or NUL; save the file as UTF-8"):
        documents(tmp_path / "c.png")
    with pytest.raises(DataError, match=r"d\.txt: is not text but binary, .* or to UTF-8"):
        documents(tmp_path / "d.txt")


def test_include_selects_files_without_hidden_ones(tmp_path, capsys):
    hidden = (".hidden/d.txt", ".gitkeep", "_SUCCESS", "__pycache__/a.pyc", "deep/_delta_log/e.txt")
    for name in ("a.txt", "b.md", "deep/c.txt", *hidden):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    def names(pattern: str) -> list[str]:
        return [path.relative_to(tmp_path).as_posix() for path in find_files(tmp_path, pattern)]

    assert names("**/*") == ["a.txt", "b.md", "deep/c.txt"]
    said = "warning: 3 files are left out because their names or folders begin with _, first "
    assert f"{said}{tmp_path}/_SUCCESS; to read them, rename them" in capsys.readouterr().err
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

    with pytest.raises(DataError, match=r"the text is one document, .*; cut it at chapters or articles into at least"):
        fetch_local(fetch_params(), tmp_path / "book.txt", tmp_path / "out")

    fetch_local(fetch_params(separator="\n\n"), tmp_path / "book.txt", tmp_path / "out2")
    assert sum(map(len, splits(tmp_path / "out2").values())) == 2


def test_text_that_cannot_be_split_is_told_apart(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    (source / "empty.txt").write_text("")
    with pytest.raises(DataError, match="no document of 1 files has text"):
        fetch_local(fetch_params(), source, tmp_path / "out")

    for name in "ab":
        (source / f"{name}.txt").write_text("the same words in both files\n" * 3)
    with pytest.raises(DataError, match="all documents of 3 files are near-duplicates of each other"):
        fetch_local(fetch_params(), source, tmp_path / "out")


@pytest.mark.parametrize(("num_short", "is_said"), [(200, False), (20, True)])
def test_one_document_never_is_most_of_validation_if_there_are_others(tmp_path, capsys, num_short, is_said):
    """As TinyStories has them: a few documents a hundred times as long as the others."""
    source = tmp_path / "in"
    source.mkdir()
    lengths = [800] * num_short + [num_short * 200] * 2
    for number, length in enumerate(lengths):
        words = " ".join(f"{number}w{i}" for i in range(length // 5))
        (source / f"{number:04d}.txt").write_text(words)

    fetch_local(fetch_params(split=split_params(0.15)), source, tmp_path / "out")

    chosen = sorted(map(len, splits(tmp_path / "out")["validation"]))
    said = capsys.readouterr().err
    assert (chosen[-1] > 0.1 * sum(chosen)) == is_said
    assert ("of its characters, so that few documents decide the score; add text, or cut long" in said) == is_said
    assert not is_said or f"warning: the longest of {len(chosen)} clusters" in said
