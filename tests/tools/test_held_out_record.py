"""test_reads.csv: rows survive being written and read, and what is not a row is named by its line."""

import pytest

from lm.core.errors import IntegrityError
from support.git import git
from tools.record.held_out import HEADER, HeldOutScore, read_test_reads, write_test_reads

READ = HeldOutScore(
    commit="1" * 40,
    workspace_differs=True,
    weights_sha256="a" * 64,
    test_sha256="b" * 64,
    stride_tokens=128,
    documents=50,
    bits_per_byte=1.352741386947632,
    low=1.3,
    high=1.4,
)
OTHER = READ._replace(commit=None, workspace_differs=False, weights_sha256="c" * 64, documents=1, low=None, high=None)
LINE = f"{'1' * 40},yes,{'a' * 64},{'b' * 64},128,50,1.352741386947632,1.3,1.4"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "test_reads.csv"


def test_rows_are_read_as_they_were_written(path):
    write_test_reads(path, [READ, OTHER])
    assert path.read_text() == f"{HEADER}\n{LINE}\n,no,{'c' * 64},{'b' * 64},128,1,1.352741386947632,,\n"
    assert read_test_reads(path) == [READ, OTHER]


def test_rows_of_the_last_commit_count_although_the_file_lacks_them(path):
    """`dvc exp apply` of an older experiment replaces the file by the one of that time."""
    write_test_reads(path, [READ])
    git("init", "-q", folder=path.parent)
    git("add", "-A", folder=path.parent)
    git("commit", "-qm", "an evaluation", folder=path.parent)
    path.unlink()
    assert read_test_reads(path) == [READ]
    write_test_reads(path, [OTHER])
    assert read_test_reads(path) == [READ, OTHER]
    write_test_reads(path, [READ, OTHER])
    assert read_test_reads(path) == [READ, OTHER]


@pytest.mark.parametrize(
    "line",
    [
        "",  # an empty line
        "<<<<<<< HEAD",  # a conflict of a merge
        LINE[:70],  # half a row, as of an interrupted copy
        LINE.replace("yes", "maybe"),  # neither yes nor no
        LINE.replace(",50,", ",050,"),  # a number as nobody writes it
        LINE.replace("1.352741386947632", "good"),  # not a number
    ],
)
def test_a_line_that_is_not_a_row_is_named(path, line):
    path.write_text(f"{HEADER}\n{LINE}\n{line}\n{LINE}\n")
    with pytest.raises(IntegrityError, match=r"test_reads\.csv: line 3 is "):
        read_test_reads(path)


@pytest.mark.parametrize("content", [b"", LINE.encode(), b"\xff\xfe"])
def test_a_file_without_the_header_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"line 1 is .*commit,workspace_differs"):
        read_test_reads(path)
