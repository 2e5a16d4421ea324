"""Tables of losses and of scores become runs, and a bad table is refused with what is wrong and where."""

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evidence.errors import WrongInput
from evidence.runs import make_groups
from evidence.table import read_losses, read_tables

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
    return lambda rows: read_tables([write(tmp_path / "t.csv", rows)])


def test_runs_have_their_losses_in_the_order_of_the_documents_of_the_first(read):
    a, b = read(GOOD)

    assert (a.name, b.name) == ("a", "b")
    assert a.values * np.log(2) == pytest.approx([7.5, 2])
    assert b.values * np.log(2) == pytest.approx([8, 3])
    assert b.sizes.tolist() == [10, 20]
    assert [b.name_of_document(i) for i in (0, 1)] == ["x", "y"]


def test_runs_of_one_name_with_several_seeds_and_those_of_one_group_are_groups(read):
    of_seeds = [row | {"seed": seed, "nats": float(row["nats"]) + seed} for row in GOOD for seed in (1, 2)]
    of_groups = [row | {"group": "both"} for row in GOOD]

    by_seed = make_groups(read(of_seeds))
    by_group = make_groups(read(of_groups))

    assert [(group.name, group.seeds) for group in by_seed] == [("a", [1, 2]), ("b", [1, 2])]
    assert [(group.name, group.seeds) for group in by_group] == [("both", [None, None])]


@pytest.mark.parametrize("delimiter", [";", "\t", ", "])
def test_a_table_with_semicolons_tabs_or_blanks_and_a_byte_order_mark_is_read(tmp_path, delimiter):
    """As Excel, or a person, writes it."""
    commas = write(tmp_path / "a.csv", GOOD)
    other = tmp_path / "b.csv"
    other.write_text(commas.read_text().replace(",", delimiter), encoding="utf-8-sig")

    runs = read_tables([other])

    assert [run.values.tolist() for run in runs] == [run.values.tolist() for run in read_tables([commas])]


def test_a_parquet_file_and_several_tables_give_the_runs_of_one_csv_file(read, tmp_path):
    whole = read([row | {"source": "s"} for row in GOOD])
    rows = [row | {"nats": float(row["nats"]), "utf8_bytes": int(row["utf8_bytes"]), "source": "s"} for row in GOOD]
    pq.write_table(pa.Table.from_pylist(rows[:2]), tmp_path / "a.parquet")

    apart = read_tables([tmp_path / "a.parquet", write(tmp_path / "b.csv", rows[2:])])

    for one, other in zip(whole, apart, strict=True):
        assert (one.name, one.label) == (other.name, other.label)
        assert one.values.tolist() == other.values.tolist()
        assert one.sources.tolist() == other.sources.tolist() == ["s", "s"]


def test_the_table_of_one_run_needs_no_name_and_has_its_documents_by_name(tmp_path):
    """Other columns do not count."""
    rows = [{"document": name, "nats": nats, "utf8_bytes": 9, "score": 1} for name, nats in (("b", 2.5), ("a", 1.5))]

    losses = read_losses(write(tmp_path / "t.csv", rows))

    assert list(losses.documents) == ["a", "b"]
    assert losses.values * np.log(2) == pytest.approx([1.5, 2.5])
    with pytest.raises(WrongInput, match=r"t\.csv: has document a twice"):
        read_losses(write(tmp_path / "t.csv", [*rows, rows[1]]))


def test_scores_of_several_items_of_a_document_are_added(read):
    (run,) = read(SCORED)

    assert run.values.tolist() == [1, 1]
    assert run.sizes.tolist() == [2, 1]
    assert run.score == pytest.approx(2 / 3)
    assert run.measure.is_higher_better


def changed(position: int, **values: str) -> list[dict]:
    """Return the good rows, with other values in one of them."""
    return [row | (values if i == position else {}) for i, row in enumerate(GOOD)]


def without(column: str) -> list[dict]:
    return [{name: value for name, value in row.items() if name != column} for row in GOOD]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (without("nats"), ["columns run, document, utf8_bytes, and no nats;"]),
        (GOOD[:3], ["run b", "lacks document x"]),
        (GOOD[1:], ["run b", "document x", "first run lacks"]),
        (changed(1, nats=""), ["nats of document y is ; it must be a finite number"]),
        ([row | {"utf8_bytes": "1000"} for row in GOOD], ["bits per byte, too few", "not their mean"]),
        (changed(3, utf8_bytes="11"), ["document x", "10 bytes in run a", "11 in run b"]),
        (changed(1, nats="nan"), ["run a", "nats of document y is nan", "finite"]),
        (changed(1, nats="2,5"), ["is 2,5", "with a decimal point"]),
        ([row | {"nats": "-7"} for row in GOOD], ["run a", "bits per byte, too few"]),
        (changed(1, utf8_bytes="1.5"), ["run a", "utf8_bytes of document y is 1.5", "whole number"]),
        ([row | {"utf8_bytes": "0"} for row in GOOD], ["utf8_bytes are all 0"]),
        (GOOD + GOOD[:1], ["run a", "document x twice"]),
        ([row | {"group": row["document"]} for row in GOOD], ["run a", "group is 'x' and 'y'"]),
        ([row | {"seed": "one"} for row in GOOD], ["seed of document x is one", "number"]),
        ([row | {"higher_is_better": "maybe"} for row in SCORED], ["higher_is_better is 'maybe'", "true or false"]),
        (
            [*SCORED, SCORED[0] | {"run": "b"}, SCORED[2] | {"run": "b"}],
            ["document x has 2 items", "1 in run b"],
        ),
    ],
)
def test_a_bad_table_is_refused_with_what_is_wrong(read, rows, said):
    with pytest.raises(WrongInput) as caught:
        read(rows)

    assert "t.csv: " in str(caught.value)
    for words in said:
        assert words in str(caught.value)


def test_a_table_without_rows_a_run_in_two_tables_and_a_missing_file_are_refused(tmp_path):
    table = write(tmp_path / "t.csv", GOOD)
    again = write(tmp_path / "again.csv", GOOD)
    empty = tmp_path / "empty.csv"
    empty.write_text("run,document,nats,utf8_bytes\n")
    nothing = tmp_path / "nothing.csv"
    nothing.touch()
    long = tmp_path / "long.csv"
    long.write_text("run,document,nats,utf8_bytes\na,x,5,9\na,y,5,9,3\n")
    other = tmp_path / "other.csv"
    other.write_text("run,document,nats,utf8_bytes\na,ü,5,9\n", encoding="utf-16")

    for paths, said in [
        ([empty], "empty.csv: has no rows"),
        ([nothing], "nothing.csv: has the columns , and no run"),
        ([long], "long.csv: row 2 has more fields than the first line names"),
        ([other], r"other.csv: is not UTF-8; save it as CSV in UTF-8"),
        ([table, again], "again.csv: run a is also in"),
        ([tmp_path / "none.csv"], "none.csv: cannot be read"),
    ]:
        with pytest.raises(WrongInput, match=said):
            read_tables(paths)
