"""The stage select: what it drops and why, what it records, what it refuses."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import select_documents
from lm.core.files import read_json, write_json
from lm.core.params import read_yaml
from lm.text.selection import read_dropped
from support import ROOT
from support.mixture_cases import write_source
from support.refusal import files_below

PROSE = "The ship left the harbour at dawn, and number {} of the crew watched the town grow small behind them. "
STORIES = [
    "".join(PROSE.format(i * 31 + j) + f"Word{i} word{i * j} was said {i + j} times. " for j in range(20))
    for i in range(12)
]
FILTERED = read_yaml(ROOT / "presets.yaml")["selections"]["filtered"]
NONE = read_yaml(ROOT / "presets.yaml")["selections"]["none"]
SPLIT = {"split": "validation", "start_char": 0, "num_chars": None}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The working directory."""
    monkeypatch.chdir(tmp_path)


def write_params(rules=FILTERED, validation=SPLIT) -> None:
    write_json("params.yaml", {"data": {"source": "mine"}, "selection": {"name": "chosen"}})
    write_json("presets.yaml", {"selections": {"chosen": rules}})
    write_json("sources.yaml", {"sources": {"mine": {"validation": validation}}})


def select() -> int:
    return select_documents.main(["--raw", "raw", "--selection", "out/selection"])


def rows() -> list[tuple]:
    """Return (split, document, rule, split and document that it repeats) of each dropped document."""
    names = ("split", "document", "rule", "repeats_split", "repeats_document")
    return [tuple(row[n] for n in names) for row in pq.read_table("out/selection/dropped.parquet").to_pylist()]


def edited(text: str) -> str:
    """Return a text with one word in two hundred changed."""
    words = text.split(" ")
    return " ".join("changed" if i % 200 == 100 else word for i, word in enumerate(words))


def test_each_rule_drops_junk_and_keeps_prose(project, capsys):
    junk = {
        "min_chars": "too short", "max_line_chars": "x1" * 60_000, "min_alphanumeric_fraction": "-=+*/ #" * 40,
        "max_repeated_line_fraction": "the same line again\n" * 30 + "another line",
    }  # fmt: skip
    near, exact = edited(STORIES[1]), STORIES[2]
    write_source(
        Path("raw"), "mine", train=[*junk.values(), *STORIES[2:], exact, near, "too short"], validation=STORIES[:2]
    )
    write_params()
    assert select() == 0
    assert rows() == [
        *(("train", i, rule, None, None) for i, rule in enumerate(junk)),
        ("train", 14, "exact_duplicates", "train", 4),
        ("train", 15, "near_duplicates", "validation", 1),
        ("train", 16, "min_chars", None, None),  # a dropped document has no duplicates
    ]
    printed = capsys.readouterr().out.strip()
    assert printed.startswith("out/selection: 7 of 19 documents dropped: min_chars 2, max_line_chars 1, ")
    details = read_json("out/selection/details.json")
    found = details["documents"]["mine"]
    assert (found["train"]["documents"], found["train"]["kept"]) == (17, 10)
    assert found["train"]["dropped"]["near_duplicates"] == {"documents": 1, "characters": len(near)}
    assert found["validation"] == {"documents": 2, "kept": 2, "dropped": {}}
    assert (details["selection"], details["rules"]) == ("chosen", FILTERED)
    dropped = read_dropped(Path("out/selection"), Path("raw"))
    assert {key: numbers.tolist() for key, numbers in dropped.items()} == {("mine", "train"): [0, 1, 2, 3, 14, 15, 16]}


def test_with_none_nothing_is_dropped_and_no_text_is_read(project):
    write_source(Path("raw"), "mine", train=STORIES[:9], validation=["x", "x"])
    write_params(NONE)
    for path in Path("raw").rglob("*.parquet"):
        path.unlink()
    assert select() == 0
    assert rows() == [] and read_dropped(Path("out/selection"), Path("raw")) == {}
    details = read_json("out/selection/details.json")
    assert details["documents"]["mine"] == {
        "train": {"documents": 9, "kept": 9, "dropped": {}}, "validation": {"documents": 2, "kept": 2, "dropped": {}},
    }  # fmt: skip
    assert details["examples"] == {}


def test_copies_in_another_source_are_dropped(project):
    sources = {}
    texts = {
        "a": {"train": [STORIES[0], STORIES[1], STORIES[2]], "validation": [STORIES[3]]},
        "b": {"train": [STORIES[1], STORIES[4], edited(STORIES[3])], "validation": [STORIES[2]]},
    }
    for source, splits in texts.items():
        entry = write_source(Path("raw", source), source, **splits)
        for split in entry["splits"].values():
            split["files"] = [file | {"path": f"{source}/{file['path']}"} for file in split["files"]]
        sources[source] = entry | {"train": SPLIT | {"split": "train"}, "validation": SPLIT}
    manifest = {"format_version": 1, "source": "mine", "kind": "mixture", "column": "text", "sources": sources}
    write_json("raw/manifest.json", manifest)
    write_params()
    assert select() == 0
    found = [(row["source"], row["document"], row["rule"], row["repeats_source"], row["repeats_document"])
             for row in pq.read_table("out/selection/dropped.parquet").to_pylist()]  # fmt: skip
    assert sorted(found) == [
        ("a", 2, "exact_duplicates", "b", 0), ("b", 0, "exact_duplicates", "a", 1),
        ("b", 2, "near_duplicates", "a", 0),
    ]  # fmt: skip
    details = read_json("out/selection/details.json")["documents"]
    assert {source: {split: each["kept"] for split, each in splits.items()} for source, splits in details.items()} == {
        "a": {"train": 2, "validation": 1}, "b": {"train": 1, "validation": 1},
    }  # fmt: skip


def test_validation_documents_of_one_split_stay(project):
    texts = [STORIES[0], STORIES[1], STORIES[0]]
    write_source(Path("raw"), "mine", text=texts)
    start = len(STORIES[0]) + len(STORIES[1])
    write_params(validation={"split": "text", "start_char": start, "num_chars": None})
    assert select() == 0
    assert rows() == [("text", 0, "exact_duplicates", "text", 2)]


def test_the_bytes_do_not_depend_on_the_files_and_batches(project, monkeypatch):
    texts = [*STORIES, *map(edited, STORIES), "short", *STORIES[:3]]
    written = []
    for batch_rows in (8192, 1, 5):
        monkeypatch.setattr("lm.text.parquet.MAX_BATCH_ROWS", batch_rows)
        write_source(Path("raw"), "mine", train=texts, validation=STORIES[:1])
        write_params()
        assert select() == 0
        written.append(files_below(Path("out")))
    assert written[0] == written[1] == written[2] and len(rows()) == 17
