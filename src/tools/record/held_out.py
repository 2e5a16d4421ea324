"""test_reads.csv: a row for each time that a model was scored on the test split.

The file is in Git, so that everyone sees how often the test split was used, and for which weights.
"""

from pathlib import Path
from typing import NamedTuple

from lm.core.errors import IntegrityError
from lm.core.files import names_file, write_text
from lm.core.git import git

TEST_READS = Path("test_reads.csv")


class HeldOutScore(NamedTuple):
    """An evaluation on the test split: the score of some weights on a text."""

    commit: str | None  # of HEAD; None without one
    workspace_differs: bool  # from that commit, in any file but test_reads.csv
    weights_sha256: str
    test_sha256: str  # of data/raw/test.parquet
    stride_tokens: int  # from one window to the next
    documents: int
    bits_per_byte: float
    low: float | None  # 95 % interval over documents; None with too few documents
    high: float | None


HEADER = ",".join(HeldOutScore._fields)


def read_test_reads(path: Path) -> list[HeldOutScore]:
    """Return all evaluations of the test split, the oldest first, or [] without a file.

    They come from the last commit and from the file, because `dvc exp apply` may bring back an older file.
    Raise IntegrityError for a line that is not a row.
    """
    committed = git("-C", str(path.parent), "show", f"HEAD:./{path.name}")
    reads = parse_test_reads(committed, f"{path} of the last commit") if committed else []
    if path.exists():
        with names_file(path):
            content = path.read_bytes()
        reads += parse_test_reads(content.decode("utf-8", "replace"), str(path))
    return list(dict.fromkeys(reads))


def write_test_reads(path: Path, reads: list[HeldOutScore]) -> None:
    """Write the evaluations atomically; an error leaves the file as it was."""
    lines = [HEADER, *map(to_line, reads)]
    write_text(path, "\n".join(lines) + "\n")


def parse_test_reads(text: str, where: str) -> list[HeldOutScore]:
    """Return the rows of a file. Raise IntegrityError, which `where` begins, for a line that is not a row."""
    header, *lines = text.splitlines() or [""]
    remedy = "correct it (`git log -p test_reads.csv` shows every committed row), and commit the file"
    if header != HEADER:
        raise IntegrityError(f"{where}: line 1 is {header[:100]!r}; it must be {HEADER}; {remedy}")
    reads = []
    for number, line in enumerate(lines, 2):
        try:
            reads.append(parse_line(line))
        except ValueError:
            problem = f"line {number} is {line[:100]!r}; it must be a row of {HEADER}"
            raise IntegrityError(f"{where}: {problem}; {remedy}") from None
    return reads


def to_line(read: HeldOutScore) -> str:
    """Return a row; floats keep all digits."""
    texts = {None: "", True: "yes", False: "no"}
    return ",".join(texts[value] if value is None or isinstance(value, bool) else str(value) for value in read)


def parse_line(line: str) -> HeldOutScore:
    """Return the row of a line. Raise ValueError if `to_line` would not write it so."""
    commit, differs, weights_sha256, test_sha256, stride_tokens, documents, bits_per_byte, low, high = line.split(",")
    read = HeldOutScore(
        commit=commit or None,
        workspace_differs=differs == "yes",
        weights_sha256=weights_sha256,
        test_sha256=test_sha256,
        stride_tokens=int(stride_tokens),
        documents=int(documents),
        bits_per_byte=float(bits_per_byte),
        low=float(low) if low else None,
        high=float(high) if high else None,
    )
    if to_line(read) != line:
        raise ValueError(line)
    return read
