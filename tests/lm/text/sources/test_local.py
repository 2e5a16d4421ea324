"""Local text: every type of file, a stable split, one policy for invalid UTF-8."""

import codecs
import gzip
import json
from pathlib import Path

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
    near_duplicates = NearDuplicates(threshold=0.7, ngram_words=5, num_permutations=64, rule=2)
    return SplitParams(validation_fraction, test_documents, 0.1, near_duplicates)


def fetch_params(**changes):
    values = {
        "include": "**/*",
        "exclude": None,
        "column": "text",
        "encoding": "utf-8",
        "separator": None,
        "split": split_params(),
    }
    return LocalFetch("local", **(values | changes))


def read(path: Path, separator: str | None = None, encoding: str = "utf-8") -> tuple[list[str | None], int]:
    """Return the documents of a file, and how many characters were replaced."""
    file = TextFile(path, "text", separator, encoding)
    return list(file.documents()), file.num_replaced


def documents(path: Path, separator: str | None = None) -> list[str | None]:
    texts, _ = read(path, separator)
    return texts


def texts_of(folder: Path, split: str) -> list[str]:
    """Return the documents of a split as fetch wrote it."""
    return pq.read_table(folder / split / "0000.parquet")["text"].to_pylist()


def write_files(folder: Path, contents: dict[str, str]) -> Path:
    """Write text files into a new folder and return it."""
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_text(content)
    return folder


def test_each_type_of_file_gives_its_documents(tmp_path):
    (tmp_path / "a.txt").write_bytes("é\r\nb".encode())
    (tmp_path / "b.py").write_text("x = 1\n")
    (tmp_path / "c.jsonl").write_text('{"text": "one"}\n\n{"text": null}\n{"text": "two"}\n')
    pq.write_table(pa.table({"text": ["p", None, "q"]}), tmp_path / "d.parquet")
    (tmp_path / "e.txt.gz").write_bytes(gzip.compress(b"zipped", mtime=0))
    (tmp_path / "f.jsonl.zst").write_bytes(zstandard.compress(b'{"text": "three"}\n'))

    found = {path.name: documents(path) for path in find_files(tmp_path, "**/*")}

    assert found == {
        "a.txt": ["é\nb"],
        "b.py": ["x = 1\n"],
        "c.jsonl": ["one", None, "two"],
        "d.parquet": ["p", None, "q"],
        "e.txt.gz": ["zipped"],
        "f.jsonl.zst": ["three"],
    }


def test_a_separator_splits_a_file(tmp_path):
    as_a_shell_passes_them = {r"\n\n": b"one\r\n\r\ntwo", r"\t": b"one\ttwo"}
    as_they_are = {"<|endoftext|>": b"one<|endoftext|>two", "\r\n\r\n": b"one\r\n\r\ntwo"}

    for separator, content in (as_a_shell_passes_them | as_they_are).items():
        (tmp_path / "a.txt").write_bytes(content)
        assert documents(tmp_path / "a.txt", separator) == ["one", "two"]


ROWS = ['é, "quoted"\nline 2', "", "two"]
OBJECTS = [{"id": 1, "text": row} for row in ROWS]
CSV = 'id,text\r\n1,"é, ""quoted""\r\nline 2"\r\n2,\r\n3,two\r\n'.encode()
TSV = 'text\tid\n"é, ""quoted""\nline 2"\t1\n\t2\ntwo\t3\n'.encode()


def json_lines(rows: list) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", CSV),
        ("a.CSV.gz", gzip.compress(codecs.BOM_UTF8 + CSV, mtime=0)),
        ("a.tsv", TSV),
        ("a.json", json.dumps(OBJECTS, indent=1).encode("utf-16")),
        ("a.JSONL", json_lines(OBJECTS)),
        ("a.jsonl", codecs.BOM_UTF8 + json_lines(ROWS)),
    ],
)
def test_tables_and_arrays_have_a_document_per_row(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)

    assert read(tmp_path / name) == (ROWS, 0)


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

    assert read(tmp_path / name) == (texts, 0)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"name":\n"package"}', "one JSON dict and no rows"),
        ('{"name": "package"}', "line 1 has no text in 'text' but name; set sources.yaml:sources.local.fetch.column"),
        (C4 + "{", "line 3 is not JSON"),
        ('{"a": 1} // not JSON', "the file is not JSON"),
        ("7", "one JSON int and no rows"),
    ],
)
def test_a_json_file_without_rows_is_refused(tmp_path, content, sentence):
    (tmp_path / "a.json").write_text(content)

    with pytest.raises(
        DataError, match=f"a.json: .*{sentence}.*, or leave it out by sources.yaml:sources.local.fetch.exclude$"
    ):
        fetch_local(fetch_params(split=None), tmp_path / "a.json", tmp_path / "out")


def test_an_empty_table_has_no_document(tmp_path):
    for name in ("a.csv", "a.tsv", "a.jsonl", "a.json"):
        for content in (b"", b"\n\n", codecs.BOM_UTF8):
            (tmp_path / name).write_bytes(content)
            assert read(tmp_path / name) == ([], 0)


PLAIN_WORDS = [f"{i}: plain words of ASCII that hide a binary header well. " * 20 for i in range(200)]
NUMPY_ARRAY = b"\x93NUMPY\x01\0v\0" + PLAIN_WORDS[0].encode()


def arrow_stream() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("text", pa.string())])) as writer:
        writer.write_table(pa.table({"text": PLAIN_WORDS}))
    return sink.getvalue().to_pybytes()


def parquet_file() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": PLAIN_WORDS}), sink, compression="none", use_dictionary=False)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("data.arrow", arrow_stream(), "not text but binary"),
        ("data.pq", parquet_file(), "a parquet file; give it a name"),
        ("data.npy", NUMPY_ARRAY, "not text but binary"),
        ("data.csv", b"x" * 7_999 + b"\0" + b"y" * 100, "not text but binary, .* with a NUL at byte 7999"),
    ],
)
def test_binary_files_are_refused_whatever_their_names(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))

    for path in tmp_path.iterdir():
        with pytest.raises(DataError, match=f"{name}.*: is {sentence}"):
            documents(path)


@pytest.mark.parametrize(("name", "damage"), [("a.txt", b"\xff"), ("a.csv", b"\xff"), ("a.txt", b"\0")])
def test_up_to_a_tenth_of_the_characters_may_be_damaged(tmp_path, name, damage):
    whole = b"text\n" + b"x" * 8_995
    (tmp_path / name).write_bytes(whole + damage * 1_000)
    assert len(documents(tmp_path / name)) == 1

    (tmp_path / name).write_bytes(whole + damage * 1_001)
    with pytest.raises(DataError, match="1001 of 10001 characters are not utf-8, or NUL"):
        documents(tmp_path / name)


@pytest.mark.parametrize(
    ("split", "separator", "is_said"),
    [(None, "---", True), (split_params(), "---", True), (split_params(), "\n\n", False)],
)
def test_a_separator_that_occurs_nowhere_is_warned_of(tmp_path, capsys, split, separator, is_said):
    contents = {f"{name}.txt": f"text of {name}\n\nand more of {name}" for name in "abc"}
    source = write_files(tmp_path / "in", contents)

    fetch_local(fetch_params(split=split, separator=separator), source, tmp_path / "out")

    warning = f"fetch.separator is {separator!r}, which occurs in none of 3 files"
    assert (warning in capsys.readouterr().err) == is_said


def test_a_byte_order_mark_gives_the_encoding(tmp_path):
    for mark, encoding in ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        (tmp_path / "a.txt").write_bytes(mark + "Zoë\r\n\ufffd".encode(encoding))

        assert read(tmp_path / "a.txt") == (["Zoë\n\ufffd"], 0)


def test_parquet_strings_of_every_type_are_read(tmp_path):
    for data_type in (pa.string_view(), pa.dictionary(pa.int32(), pa.large_string())):
        texts = pa.array(["p", None, "q", "p"]).cast(data_type)
        pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")

        assert documents(tmp_path / "a.parquet") == ["p", None, "q", "p"]


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("real", "links to the folder .*/real; set local.path"),
        ("nowhere", "links to nothing"),
        ("in/link", "links to nothing, or in a circle"),
    ],
)
def test_links_that_dvc_does_not_follow_are_refused(tmp_path, target, sentence):
    write_files(tmp_path / "real", {"a.txt": "a"})
    source = write_files(tmp_path / "in", {"b.txt": "b"})
    link_to_file = source / "a.txt"
    link_to_file.symlink_to(tmp_path / "real/a.txt")
    assert find_files(source, "*.txt") == [link_to_file, source / "b.txt"]
    link = source / "link"
    link.symlink_to(tmp_path / target)

    with pytest.raises(DataError, match=f"{link}: {sentence}"):
        find_files(source, "*.txt")


def test_what_utf_8_does_not_have_is_replaced_and_counted(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"long enough to be text, one bad \xff byte, and a true \xef\xbf\xbd")

    (text,), num_replaced = read(tmp_path / "a.txt")

    assert num_replaced == 1
    assert text.count("\ufffd") == 2

    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "a\ud800b \ud83d\ude00"}) + "\n")

    assert read(tmp_path / "b.jsonl") == (["a\ufffdb \N{GRINNING FACE}"], 1)


def test_include_selects_files_without_hidden_ones(tmp_path, capsys):
    shown = ["a.txt", "b.md", "deep/c.txt"]
    hidden = [".hidden/d.txt", ".gitkeep", "_SUCCESS", "__pycache__/a.pyc", "deep/_delta_log/e.txt"]
    for name in shown + hidden:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    assert find_files(tmp_path, "**/*.txt") == [tmp_path / "a.txt", tmp_path / "deep/c.txt"]
    assert find_files(tmp_path, "**/*") == [tmp_path / name for name in shown]

    warning = "warning: 3 files are left out because their names or folders begin with _, first "
    assert f"{warning}{tmp_path / '_SUCCESS'}" in capsys.readouterr().err


def test_what_dvc_does_not_hash_is_left_out(tmp_path, capsys, monkeypatch):
    """Its changes would not run the stage again."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "texts", {"a.txt": "a"})
    write_files(tmp_path / "texts/drafts", {"b.txt": "b"})
    write_files(tmp_path / "texts/project", {"c.txt": "c", ".dvc": ""})
    (tmp_path / ".dvcignore").write_text("drafts\n")

    assert find_files(Path("texts"), "**/*") == [Path("texts/a.txt")]

    assert "warning: 2 files are left out because DVC does not hash them" in capsys.readouterr().err


def test_a_path_is_a_file_or_a_folder_with_matching_files(tmp_path):
    (tmp_path / "a.txt").write_text("a")

    assert find_files(tmp_path / "a.txt", "**/*.md") == [tmp_path / "a.txt"]
    with pytest.raises(DataError, match="no file matches"):
        find_files(tmp_path, "*.c")
    with pytest.raises(DataError, match="does not exist"):
        find_files(tmp_path / "nowhere", "*")


@pytest.mark.parametrize(
    ("lengths", "asked", "least", "most", "is_said"),
    [
        ([100_000, 30, 20, 40, 10], 0.05, 0, 0.002, True),  # one book and four short files
        ([900] + [10] * 100, 0.05, 0.05, 0.06, False),
    ],
)
def test_validation_never_takes_far_too_much(tmp_path, capsys, lengths, asked, least, most, is_said):
    contents = {}
    for number, length in enumerate(lengths):
        contents[f"{number}.txt"] = f"{number:04d}" + "x" * (length - 4)
    source = write_files(tmp_path / "in", contents)

    manifest = fetch_local(fetch_params(split=split_params(asked)), source, tmp_path / "out")

    fraction = manifest["splits"]["validation"]["characters"] / sum(lengths)
    assert least <= fraction <= most
    said = capsys.readouterr().err
    assert ("warning: validation has" in said) == is_said
    assert (f"not {asked:.2%} (validation_fraction)" in said) == is_said


def test_without_a_fraction_there_is_one_split(tmp_path):
    source = write_files(tmp_path / "in", {name: f"text of {name}" for name in "bac"})

    manifest = fetch_local(fetch_params(split=None), source, tmp_path / "out")

    assert list(manifest["splits"]) == ["text"]
    assert texts_of(tmp_path / "out", "text") == ["text of a", "text of b", "text of c"]


def test_one_document_can_be_split_only_if_a_separator_cuts_it(tmp_path):
    (tmp_path / "book.txt").write_text("all in one\n\nand a second paragraph")

    with pytest.raises(DataError, match=r"the text is one document, .*; cut it"):
        fetch_local(fetch_params(), tmp_path / "book.txt", tmp_path / "out")
    fetch_local(fetch_params(separator="\n\n"), tmp_path / "book.txt", tmp_path / "out")

    assert len(texts_of(tmp_path / "out", "train")) == 1
    assert len(texts_of(tmp_path / "out", "validation")) == 1


SAME_WORDS = "the same words in both files\n" * 3


def test_text_that_cannot_be_split_is_refused(tmp_path):
    source = write_files(tmp_path / "in", {"empty.txt": ""})
    with pytest.raises(DataError, match="no document of 1 files has text"):
        fetch_local(fetch_params(), source, tmp_path / "out")

    for name in ("a.txt", "b.txt"):
        (source / name).write_text(SAME_WORDS)
    with pytest.raises(DataError, match="all documents of 3 files are near-duplicates"):
        fetch_local(fetch_params(), source, tmp_path / "out")


def split_short_and_long(folder: Path, num_short: int) -> list[int]:
    """Split short documents and two as long as a quarter of them all; return the lengths in validation, ascending."""
    contents = {}
    for number, length in enumerate([800] * num_short + [num_short * 200] * 2):
        words = [f"{number}w{i}" for i in range(length // 5)]
        contents[f"{number:04d}.txt"] = " ".join(words)
    source = write_files(folder / "in", contents)
    fetch_local(fetch_params(split=split_params(0.15)), source, folder / "out")
    return sorted(len(text) for text in texts_of(folder / "out", "validation"))


WARNING = "of its characters, so that few documents decide the score; add text, or cut long"


def test_no_document_is_most_of_validation_if_there_are_many_others(tmp_path, capsys):
    """As in TinyStories: a few documents are a hundred times as long as the others."""
    lengths = split_short_and_long(tmp_path, num_short=200)

    assert lengths[-1] <= 0.1 * sum(lengths)
    assert WARNING not in capsys.readouterr().err


def test_a_document_that_is_much_of_validation_is_warned_of(tmp_path, capsys):
    lengths = split_short_and_long(tmp_path, num_short=20)

    assert lengths[-1] > 0.1 * sum(lengths)
    said = capsys.readouterr().err
    assert f"warning: the longest of {len(lengths)} clusters" in said
    assert WARNING in said


@pytest.mark.parametrize(("words_of_c", "is_said"), [(20, False), (400, True)])
def test_a_suffix_with_another_share_of_validation_is_warned_of(tmp_path, capsys, words_of_c, is_said):
    """C files that share much with each other, such as generated code, are the last that validation takes."""
    shared = "static int shared ( void ) { return 0 ; } " * 3
    contents = {f"{n}.txt": " ".join(f"word{n}x{k}" for k in range(40)) for n in range(60)}
    for n in range(40):
        code = " ".join(f"name{n}x{k}" for k in range(words_of_c))
        contents[f"{n}.c"] = shared + code if is_said else code
    source = write_files(tmp_path / "in", contents)

    manifest = fetch_local(fetch_params(), source, tmp_path / "out")

    counts = manifest["characters_by_suffix"]
    shares = {split: chars[".c"] / sum(chars.values()) for split, chars in counts.items()}
    train = sum(map(len, texts_of(tmp_path / "out", "train")))
    assert sum(counts["train"].values()) == train
    said = capsys.readouterr().err
    assert (abs(shares["train"] - shares["validation"]) > 0.2) == is_said
    warning = f".c files have {shares['train']:.0%} of the characters of train, but {shares['validation']:.0%} of"
    assert (warning in said) == is_said
    assert said.count("of the characters of train") == is_said


def test_files_that_hold_no_text_are_named(tmp_path, capsys):
    contents = {"a.txt": "one two", "b.txt": "", "c.txt": "three four", "d.csv": "", "e.txt": ""}
    source = write_files(tmp_path / "in", contents)

    fetch_local(fetch_params(exclude="e.*"), source, tmp_path / "out")

    assert f"warning: 2 of 4 files hold no text; first {source / 'b.txt'}\n" in capsys.readouterr().err


def test_texts_that_excel_may_have_cut_are_counted(tmp_path, capsys):
    longest = "é" * 32_767
    contents = {"a.csv": f'text\n"{longest}"\n', "b.jsonl": f'"{longest}"\n"{longest}x"\n', "c.txt": longest}
    source = write_files(tmp_path / "in", contents)

    fetch_local(fetch_params(split=None), source, tmp_path / "out")

    warning = "warning: 2 texts have exactly 32,767 characters, the most that a cell of Excel holds; their ends may be"
    assert warning in capsys.readouterr().err


def test_a_remedy_that_all_unreadable_files_have_is_named_once(tmp_path):
    source = write_files(tmp_path / "in", {f"{n}.jsonl": '{"body": "text"}\n' for n in range(12)})

    with pytest.raises(DataError) as error:
        fetch_local(fetch_params(split=None), source, tmp_path / "out")

    *problems, what_to_do = str(error.value).splitlines()
    assert [problem.partition(": ")[2] for problem in problems] == ["line 1 has no text in 'text' but body"] * 10
    assert what_to_do == (
        "local.path: 12 of 12 files cannot be read; set sources.yaml:sources.local.fetch.column to one of them, "
        "or leave them out by sources.yaml:sources.local.fetch.exclude"
    )


def test_different_remedies_stay_with_their_files(tmp_path):
    source = write_files(tmp_path / "in", {"a.jsonl": '{"body": "text"}\n', "b.pdf": "%PDF-1.4"})

    with pytest.raises(DataError) as error:
        fetch_local(fetch_params(split=None), source, tmp_path / "out")

    first, second, what_to_do = str(error.value).splitlines()
    assert "; set sources.yaml:" in first
    assert "; " in second
    assert what_to_do.endswith("; correct them, or leave them out by sources.yaml:sources.local.fetch.exclude")


def test_excluded_files_are_not_found(tmp_path):
    (tmp_path / "drafts").mkdir()
    for name in ("a.txt", "b.txt", "drafts/c.txt"):
        (tmp_path / name).write_text(name)

    assert find_files(tmp_path, "**/*.txt", "drafts/**/*") == [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert find_files(tmp_path, "**/*.txt", "b.txt") == [tmp_path / "a.txt", tmp_path / "drafts/c.txt"]
    assert find_files(tmp_path, ("a.*", "b.*"), ("*.txt~", "a.*")) == [tmp_path / "b.txt"]
    with pytest.raises(DataError, match=r"no file matches '\*\*/\*' without '\*\*/\*' .* it has files with .txt$"):
        find_files(tmp_path, "**/*", "**/*")


@pytest.mark.parametrize(
    ("include", "said"),
    [
        ("*.md", r"it has files with .md, .txt; \*\*/\*.md reads subfolders, too$"),
        ("**/*.rst", "it has files with .md, .txt$"),
    ],
)
def test_a_glob_without_files_is_told_what_there_is(tmp_path, include, said):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("a")
    (tmp_path / "b.txt").write_text("b")

    with pytest.raises(DataError, match=said):
        find_files(tmp_path, include)
