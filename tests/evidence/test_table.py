"""Tables of losses and of scores become runs, and a bad table is refused with what is wrong and where."""

import csv
import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import evidence
from evidence.errors import WrongInput
from evidence.runs import make_groups
from evidence.table import read_run

GOOD = [
    {"run": "a", "document": "x", "nats": "7.5", "utf8_bytes": "10"},
    {"run": "a", "document": "y", "nats": "2", "utf8_bytes": "20"},
    {"run": "b", "document": "y", "nats": "3", "utf8_bytes": "20"},
    {"run": "b", "document": "x", "nats": "8", "utf8_bytes": "10"},
]
SCORED = [
    {"run": run, "document": document, "score": score, "higher_is_better": "True"}
    for run, document, score in [("a", "x", "1"), ("a", "x", "0"), ("a", "y", "1")]
]


def write(path: Path, rows: list[dict]) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def read(tmp_path):
    """Return the runs of a CSV file with these rows."""
    return lambda rows: evidence.read([write(tmp_path / "t.csv", rows)])


def test_runs_have_their_losses_in_the_order_of_the_documents_of_the_first(read):
    a, b = read(GOOD)

    assert (a.name, b.name) == ("a", "b")
    assert a.kind == "a table with the column nats"
    assert a.values * np.log(2) == pytest.approx([7.5, 2])
    assert b.values * np.log(2) == pytest.approx([8, 3])
    assert b.sizes.tolist() == [10, 20]
    assert [b.name_of_document(i) for i in (0, 1)] == ["x", "y"]


OF_SEEDS = [row | {"seed": seed, "nats": float(row["nats"]) + seed} for row in GOOD for seed in (1, 2)]
SINGLE = [{"run": run, "loss": 3 + i / 8} for i, run in enumerate(["a-1", "a-2", "b_seed1", "a-3"])]


@pytest.mark.parametrize(
    ("rows", "groups"),
    [
        (OF_SEEDS, [("a", [1, 2]), ("b", [1, 2])]),
        ([row | {"group": "both"} for row in GOOD], [("both", [None, None])]),
        ([row | {"run": f"{row['run']}-seed7"} for row in GOOD], [("a", [7]), ("b", [7])]),
        ([row | {"run": f"{row['run']}-7"} for row in GOOD], [("a-7", [None]), ("b-7", [None])]),
        (SINGLE, [("a", [1, 2, 3]), ("b", [1])]),
        ([row | {"run": f"{row['run']}-seed{row['seed']}"} for row in OF_SEEDS], [("a", [1, 2]), ("b", [1, 2])]),
    ],
)
def test_a_group_has_the_runs_of_one_name_of_one_group_or_of_names_that_end_in_seeds(read, rows, groups):
    """A number alone is a seed only where a run has a single loss."""
    assert [(group.name, group.seeds) for group in make_groups(read(rows))] == groups


@pytest.mark.parametrize("delimiter", [";", "\t", ", "])
def test_a_table_with_semicolons_tabs_or_blanks_and_a_byte_order_mark_is_read(tmp_path, read, delimiter):
    """As Excel, or a person, writes it."""
    commas = write(tmp_path / "a.csv", GOOD)
    other = tmp_path / "b.csv"
    other.write_text(commas.read_text().replace(",", delimiter), encoding="utf-8-sig")

    assert [run.values.tolist() for run in evidence.read([other])] == [run.values.tolist() for run in read(GOOD)]


def test_a_table_that_names_its_separator_or_ends_lines_with_cr_and_a_compressed_one_are_read(tmp_path, read):
    """An empty row of a spreadsheet does not count."""
    table = write(tmp_path / "a.csv", GOOD).read_text()
    old = tmp_path / "old.csv"
    old.write_text(table, newline="\r")
    named = tmp_path / "named.csv"
    named.write_text("sep=;\n" + table.replace(",", ";") + ";;;\n")
    compressed = tmp_path / "a.csv.gz"
    compressed.write_bytes(gzip.compress(table.encode()))

    for path in (named, old, compressed):
        assert [run.values.tolist() for run in evidence.read([path])] == [run.values.tolist() for run in read(GOOD)]


def test_a_parquet_file_and_several_tables_give_the_runs_of_one_csv_file(read, tmp_path):
    rows = [row | {"nats": float(row["nats"]), "utf8_bytes": int(row["utf8_bytes"]), "source": "s"} for row in GOOD]
    pq.write_table(pa.Table.from_pylist(rows[:2]), tmp_path / "a.parquet")

    apart = evidence.read([tmp_path / "a.parquet", write(tmp_path / "b.csv", rows[2:])])

    for one, other in zip(read(rows), apart, strict=True):
        assert (one.name, one.label) == (other.name, other.label)
        assert one.values.tolist() == other.values.tolist()
        assert one.sources.tolist() == other.sources.tolist() == ["s", "s"]


def test_the_table_of_one_run_needs_no_name_and_has_its_documents_by_name(tmp_path):
    """Other columns do not count."""
    rows = [{"document": name, "nats": nats, "utf8_bytes": 9, "score": 1} for name, nats in (("b", 2.5), ("a", 1.5))]

    losses = read_run(write(tmp_path / "t.csv", rows))

    assert list(losses.documents) == ["a", "b"]
    assert losses.values * np.log(2) == pytest.approx([1.5, 2.5])
    with pytest.raises(WrongInput, match=r"t\.csv: has document a twice"):
        read_run(write(tmp_path / "t.csv", [*rows, rows[1]]))


def test_scores_of_several_items_of_a_document_are_added(read, tmp_path):
    (run,) = read(SCORED)

    assert run.values.tolist() == [1, 1]
    assert run.sizes.tolist() == [2, 1]
    assert run.score == pytest.approx(2 / 3)
    assert run.measure.is_higher_better
    (loss,) = evidence.read([write(tmp_path / "losses.csv", SINGLE[:1])], better="higher")
    assert loss.measure.is_higher_better


def changed(position: int, **values: str) -> list[dict]:
    """Return the good rows, with other values in one of them."""
    return [row | (values if i == position else {}) for i, row in enumerate(GOOD)]


def without(column: str) -> list[dict]:
    return [{name: value for name, value in row.items() if name != column} for row in GOOD]


def every(rows: list[dict] = GOOD, **values: str) -> list[dict]:
    return [row | values for row in rows]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (without("nats"), "columns run, document, utf8_bytes, and no nats;"),
        (GOOD[:3], "run b: document x is not in all runs"),
        (GOOD[1:], "run b: document x is not in all runs"),
        ([*SINGLE, SINGLE[0]], "run a-1: has document  twice"),
        (GOOD + GOOD[:1], "run a: has document x twice"),
        (changed(1, nats="nan"), "run a: nats of document y is nan; it must be a finite number"),
        (changed(1, nats="2,5"), "is 2,5; it must be a finite number, with a decimal point"),
        (every(utf8_bytes="1000"), "has too few bits per byte for text; nats must be the sum"),
        (changed(1, utf8_bytes="1.5"), "utf8_bytes of document y is 1.5; it must be a whole number"),
        (every(utf8_bytes="0"), "has too few bits per byte for text"),
        (changed(3, utf8_bytes="11"), "document x has 11 bytes or items in run b and 10 in run a"),
        (every(seed="one"), "run a-one: seed of document x is one; it must be"),
        (every(SCORED, higher_is_better=""), "higher_is_better must be true or false"),
        (
            [*SCORED, SCORED[0] | {"higher_is_better": "false"}],
            "higher_is_better must be true or false, the same for all",
        ),
        (
            [*SCORED, SCORED[0] | {"run": "b"}, SCORED[2] | {"run": "b"}],
            "document x has 1 bytes or items in run b and 2 in run a",
        ),
        (
            [row | {"higher_is_better": "TRUE"} for row in SCORED]
            + [row | {"run": "b", "higher_is_better": "false"} for row in SCORED],
            "compare equal measures",
        ),
    ],
)
def test_a_bad_table_is_refused_with_what_is_wrong(read, rows, said):
    with pytest.raises(WrongInput) as caught:
        read(rows)

    assert str(caught.value).partition("t.csv: ")[1]
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run,document,nats,utf8_bytes\n", "t.csv: has no rows"),
        ("", "t.csv: has no rows"),
        ("run,loss,loss\na,1,2\n", "t.csv: has two columns loss; rename or delete one"),
        (
            "run,document,nats,utf8_bytes\na,x,5,9\na,y,5,9,3\n",
            "t.csv: row 2 has more fields than the first line names",
        ),
        (
            "run,document,nats,utf8_bytes\na,x,5,9\nrun,document,nats,utf8_bytes\nb,x,5,9\n",
            "t.csv: row 2 repeats the names of the columns",
        ),
        ("run,document,nats,utf8_bytes\na,\xfc,5,9\n", "t.csv: is not UTF-8; save it as CSV in UTF-8"),
        (None, "t.csv: cannot be read"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, text, said):
    path = tmp_path / "t.csv"
    if text is not None:
        path.write_text(text, encoding="latin-1")

    with pytest.raises(WrongInput, match=said):
        evidence.read([path])


def test_a_run_in_two_tables_is_refused(tmp_path):
    tables = [write(tmp_path / name, GOOD) for name in ("t.csv", "again.csv")]

    with pytest.raises(WrongInput, match=r"again\.csv: run a is also in"):
        evidence.read(tables)
