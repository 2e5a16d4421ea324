"""Local text: which files are read, what is warned of, and how it is split."""

import dataclasses
from pathlib import Path

import pytest

from lm.core.errors import DataError
from lm.core.params import read_section
from lm.text.sources.local import LocalFetch, fetch_local, find_files
from lm.text.splits import SplitParams
from support import ROOT

SHIPPED = read_section(ROOT / "sources.yaml", "sources.local.fetch", LocalFetch)
SPLIT = read_section(ROOT / "sources.yaml", "sources.local.fetch.split", SplitParams)


def fetch(folder: Path, contents: dict[str, str], validation_fraction=0.2, **changes) -> dict:
    """Write text files into `folder`/in, fetch them into `folder`/out and return the manifest."""
    write_files(folder / "in", contents)
    split = dataclasses.replace(SPLIT, validation_fraction=validation_fraction)
    params = dataclasses.replace(SHIPPED, **{"split": split} | changes)
    return fetch_local(params, folder / "in", folder / "out")


def write_files(folder: Path, contents: dict[str, str]) -> Path:
    """Write text files into a new folder and return it."""
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_text(content)
    return folder


# Which files are read.


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("real", "links to the folder .*/real; set local.path"),
        ("nowhere", "links to nothing"),
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


def test_include_and_exclude_select_files_without_hidden_ones(tmp_path, capsys):
    shown = ["a.txt", "b.md", "deep/c.txt"]
    hidden = [".hidden/d.txt", "_SUCCESS", "__pycache__/a.pyc", "deep/_delta_log/e.txt"]
    for name in shown + hidden:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    assert find_files(tmp_path, "**/*.txt", "deep/**/*") == [tmp_path / "a.txt"]
    assert find_files(tmp_path, ("a.*", "b.*"), ("*.txt~", "a.*")) == [tmp_path / "b.md"]
    capsys.readouterr()
    assert find_files(tmp_path, "**/*") == [tmp_path / name for name in shown]

    warning = "warning: 3 files are left out because their names or folders begin with _, first "
    assert f"{warning}{tmp_path / '_SUCCESS'}" in capsys.readouterr().err


def test_files_that_programs_put_beside_text_are_left_out(tmp_path, capsys):
    beside = ["a.txt:Zone.Identifier", "desktop.ini", "a.txt.dvc", "$RECYCLE.BIN/b.txt"]
    backups = ["a.txt~", "#a.txt#", "a.csv.bak", "a.txt.ORIG"]
    for name in ("a.txt", "Zone.Identifiers.txt", ".b.txt.icloud", "c.txt.dvc", *beside, *backups):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    found = find_files(tmp_path, "**/*")

    assert [path.name for path in found] == [".b.txt.icloud", "Zone.Identifiers.txt", "a.txt", "c.txt.dvc"]
    said = capsys.readouterr().err
    assert "warning: 4 files are left out because the operating system or DVC wrote them, first " in said
    assert f"warning: 4 files are left out because they are backups by their names, first {tmp_path}/#a.txt#;" in said

    find_files(tmp_path, "*.txt")
    assert capsys.readouterr().err == "", "those that include does not take are not counted"


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


# What is warned of, and what is refused.


@pytest.mark.parametrize(("separator", "is_said"), [("---", True), ("\n\n", False)])
def test_a_separator_that_occurs_nowhere_is_warned_of(tmp_path, capsys, separator, is_said):
    fetch(tmp_path, {f"{name}.txt": f"text of {name}\n\nand more of {name}" for name in "abc"}, separator=separator)

    warning = f"fetch.separator is {separator!r}, which occurs in none of 3 files"
    assert (warning in capsys.readouterr().err) == is_said


@pytest.mark.parametrize(
    ("lengths", "asked", "has_another_size", "has_few_documents"),
    [
        pytest.param([100_000, 30, 20, 40, 10], 0.05, True, True, id="one book and four short texts"),
        pytest.param([800] * 20 + [4000] * 2, 0.15, False, True, id="few short texts"),
        pytest.param([800] * 200 + [40_000] * 2, 0.15, False, False, id="many short texts"),
    ],
)
def test_a_validation_of_another_size_or_of_few_documents_is_warned_of(
    tmp_path, capsys, lengths, asked, has_another_size, has_few_documents
):
    contents = {}
    for number, length in enumerate(lengths):
        words = [f"{number}w{i}" for i in range(length // 5)]
        contents[f"{number}.txt"] = " ".join(words)

    fetch(tmp_path, contents, asked)

    said = capsys.readouterr().err
    assert (f"not {asked:.2%} (validation_fraction)" in said) == has_another_size
    warning = "of its characters, so few documents decide the score; add text, or cut long"
    assert (warning in said) == has_few_documents


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        ({"a.txt": ""}, "no document of 1 files has text"),
        ({"a.txt": "all in one"}, "the text is one document, .*; cut it"),
        ({"a.txt": "the same", "b.txt": "the same"}, "all documents of 2 files are near-duplicates"),
    ],
)
def test_text_that_cannot_be_split_is_refused(tmp_path, contents, sentence):
    with pytest.raises(DataError, match=sentence):
        fetch(tmp_path, contents)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_suffix_with_another_share_of_validation_is_warned_of(tmp_path, capsys, is_shared):
    """Files that share much with each other, such as generated code, are the last that validation takes."""
    shared = "static int shared ( void ) { return 0 ; } " * 3 if is_shared else ""
    contents = {}
    for number in range(60):
        contents[f"{number}.txt"] = " ".join(f"word{number}x{k}" for k in range(40))
        contents[f"{number}.c"] = shared + " ".join(f"name{number}x{k}" for k in range(40))

    counts = fetch(tmp_path, contents)["characters_by_suffix"]

    train, validation = (counts[split][".c"] / sum(counts[split].values()) for split in ("train", "validation"))
    said = capsys.readouterr().err
    warning = f".c files have {train:.0%} of the characters of train, but {validation:.0%} of validation"
    assert (warning in said) == is_shared
    assert said.count("of the characters of train") == is_shared


def test_files_without_text_or_with_doubtful_text_are_counted(tmp_path, capsys):
    longest = "é" * 32_767
    contents = {"a.csv": f'text\n"{longest}"\n', "b.jsonl": f'"{longest}"\n"{longest}x"\n', "c.txt": longest}
    contents |= {"d.csv": "", "e.txt": "", "f.txt": "404: Not Found"}

    manifest = fetch(tmp_path, contents)

    assert manifest["splits"]["train"]["dropped_rows"]["empty"] == 1
    said = capsys.readouterr().err
    assert f"warning: 2 of 6 files hold no text; first {tmp_path / 'in/d.csv'}\n" in said
    assert "warning: 1 of 6 files are answers of a server, such as web pages, or" in said
    warning = "warning: 2 texts have exactly 32,767 characters, the most that a cell of Excel holds; their ends may be"
    assert warning in said


def test_a_remedy_that_all_unreadable_files_have_is_named_once(tmp_path):
    with pytest.raises(DataError) as error:
        fetch(tmp_path, {f"{number}.jsonl": '{"body": "text"}\n' for number in range(12)}, split=None)

    *problems, what_to_do = str(error.value).splitlines()
    assert [problem.partition(": ")[2] for problem in problems] == ["line 1 has no text in 'text' but body"] * 10
    assert "12 of 12 files cannot be read; set sources.yaml:sources.local.fetch.column to one of them, or" in what_to_do
