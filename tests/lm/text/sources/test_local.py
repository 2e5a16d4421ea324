"""Local text: which files are read, what is warned of, and how it is split."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lm.core.errors import DataError
from lm.text.near_duplicates import NearDuplicates
from lm.text.sources.local import LocalFetch, fetch_local, find_files
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


def texts_of(folder: Path, split: str) -> list[str]:
    """Return the documents of a split as fetch wrote it."""
    return pq.read_table(folder / split / "0000.parquet")["text"].to_pylist()


def write_files(folder: Path, contents: dict[str, str]) -> Path:
    """Write text files into a new folder and return it."""
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("split", "separator", "is_said"),
    [(split_params(), "---", True), (split_params(), "\n\n", False)],
)
def test_a_separator_that_occurs_nowhere_is_warned_of(tmp_path, capsys, split, separator, is_said):
    contents = {f"{name}.txt": f"text of {name}\n\nand more of {name}" for name in "abc"}
    source = write_files(tmp_path / "in", contents)

    fetch_local(fetch_params(split=split, separator=separator), source, tmp_path / "out")

    warning = f"fetch.separator is {separator!r}, which occurs in none of 3 files"
    assert (warning in capsys.readouterr().err) == is_said


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


def test_include_selects_files_without_hidden_ones(tmp_path, capsys):
    shown = ["a.txt", "b.md", "deep/c.txt"]
    hidden = [".hidden/d.txt", "_SUCCESS", "__pycache__/a.pyc", "deep/_delta_log/e.txt"]
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
        ([50, 70, 80], 0.05, 0.25, 0.25, True),  # the shortest has far more
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


@pytest.mark.parametrize(("num_short", "is_said"), [(200, False), (20, True)])
def test_a_document_is_much_of_validation_only_if_there_are_few_others_and_is_warned_of(
    tmp_path, capsys, num_short, is_said
):
    """As in TinyStories: two documents are as long as a quarter of the short ones together."""
    contents = {}
    for number, length in enumerate([800] * num_short + [num_short * 200] * 2):
        words = [f"{number}w{i}" for i in range(length // 5)]
        contents[f"{number:04d}.txt"] = " ".join(words)
    source = write_files(tmp_path / "in", contents)

    fetch_local(fetch_params(split=split_params(0.15)), source, tmp_path / "out")

    lengths = [len(text) for text in texts_of(tmp_path / "out", "validation")]
    assert (max(lengths) > 0.1 * sum(lengths)) == is_said
    said = capsys.readouterr().err
    warning = "of its characters, so that few documents decide the score; add text, or cut long"
    assert (warning in said) == is_said
    assert (f"warning: the longest of {len(lengths)} clusters" in said) == is_said


@pytest.mark.parametrize(
    ("words", "sharing", "others", "is_said"),
    [(20, ".c", ".txt", False), (400, ".c", ".txt", True), (400, ".txt", ".c", True)],
)
def test_a_suffix_with_another_share_of_validation_is_warned_of(tmp_path, capsys, words, sharing, others, is_said):
    """Files that share much with each other, such as generated code, are the last that validation takes."""
    shared = "static int shared ( void ) { return 0 ; } " * 3
    contents = {f"{n}{others}": " ".join(f"word{n}x{k}" for k in range(40)) for n in range(60)}
    for n in range(40):
        code = " ".join(f"name{n}x{k}" for k in range(words))
        contents[f"{n}{sharing}"] = shared + code if is_said else code
    source = write_files(tmp_path / "in", contents)

    manifest = fetch_local(fetch_params(), source, tmp_path / "out")

    counts = manifest["characters_by_suffix"]
    shares = {split: chars[".c"] / sum(chars.values()) for split, chars in counts.items()}
    train = sum(map(len, texts_of(tmp_path / "out", "train")))
    assert sum(counts["train"].values()) == train
    said = capsys.readouterr().err
    warning = f".c files have {shares['train']:.0%} of the characters of train, but {shares['validation']:.0%} of"
    assert (warning in said) == is_said
    assert said.count("of the characters of train") == is_said


def test_files_that_hold_no_text_are_named(tmp_path, capsys):
    contents = {"a.txt": "one two", "b.txt": "", "c.txt": "three four", "d.csv": "", "e.txt": ""}
    source = write_files(tmp_path / "in", contents)

    fetch_local(fetch_params(exclude="e.*"), source, tmp_path / "out")

    assert "" in texts_of(tmp_path / "out", "train")
    assert "" not in texts_of(tmp_path / "out", "validation")
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
    assert "12 of 12 files cannot be read; set sources.yaml:sources.local.fetch.column to one of them, or" in what_to_do


def test_excluded_files_are_not_found(tmp_path):
    (tmp_path / "drafts").mkdir()
    for name in ("a.txt", "b.txt", "drafts/c.txt"):
        (tmp_path / name).write_text(name)

    assert find_files(tmp_path, "**/*.txt", "drafts/**/*") == [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert find_files(tmp_path, ("a.*", "b.*"), ("*.txt~", "a.*")) == [tmp_path / "b.txt"]
