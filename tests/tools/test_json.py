"""The JSON of compare, noise and verdict is what docs/json.md documents, and has finite numbers only."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest

from support import ROOT
from support.json_documents import check_document, documented, read_document
from support.made_up_runs import PARTS, run, seeds_of
from tools import noise, verdict
from tools.common.json_output import plain, print_json
from tools.common.known_runs import KnownRun, KnownRuns
from tools.common.runs import Group, compare_groups, corrected, group_by_seed
from tools.compare import record as comparing
from tools.compare.notes import notes_of


def document_of(*runs) -> dict:
    """Return the document of `compare` about made-up runs, as a program reads it."""
    groups = group_by_seed(list(runs))
    sides = groups if len(groups) > 1 else [Group([each]) for each in runs]
    alone = [compare_groups(sides[0], side, 1, 0.95, 999) for side in sides[1:]]
    content = comparing.record(groups, alone, corrected(alone), 0.95)
    content |= {"unfinished": [{"name": "x", "state": "Queued"}], "commands_for_more_seeds": ["dvc queue start"]}
    content["files"] = {"report": "a.md", "documents": "a.csv"}
    return json.loads(json.dumps(plain({"schema": comparing.SCHEMA, **content}), allow_nan=False))


def test_every_documented_key_of_compare_is_in_a_document_and_no_other():
    of_seeds = [*seeds_of("a", (1, 2, 3)), *seeds_of("b", (4, 5, 6), 0.01, p=1)]
    mixtures = [dataclasses.replace(each, sources=PARTS) for each in of_seeds]
    changed_code = [run("a", code="1"), run("b", code="2")]

    found = check_document(document_of(*mixtures)) | check_document(document_of(*changed_code))

    assert found == documented(comparing.SCHEMA).keys()


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([run("a"), run("b", 2, -0.05, {"p": 1})], ("better", "documents")),
        ([*seeds_of("a", (1, 2)), run("b", 3, 0.05, {"p": 1})], ("worse", "documents")),
        ([*seeds_of("a", (1, 2, 3)), *seeds_of("b", (4, 5), -0.05, p=1)], ("better", "seeds")),
        ([*seeds_of("a", (1, 2, 3)), *seeds_of("b", (4, 5), 0.0, p=1)], ("not shown", "seeds")),
        (seeds_of("a", (1, 2)), ("not shown", "documents")),
    ],
)
def test_two_seeds_of_each_side_decide_what_the_verdict_is_over(runs, expected):
    (comparison,) = document_of(*runs)["comparisons"]

    assert (comparison["verdict"], comparison["basis"]) == expected
    deciding = comparison[comparison["basis"]]
    for key in ("verdict", "difference", "p_value_holm", "detectable_difference"):
        assert comparison[key] == deciding[key], key


def test_documents_do_not_decide_where_seeds_do():
    """Both intervals exist and disagree: every document is a little worse, less than seeds differ."""
    a = [run(f"a-{seed}", seed, shift) for seed, shift in ((1, 0.0), (2, 0.2))]
    b = [run(f"b-{seed}", seed, shift, {"p": 1}) for seed, shift in ((3, 0.05), (4, 0.2))]

    (comparison,) = document_of(*a, *b)["comparisons"]

    assert comparison["documents"]["verdict"] == "worse"
    assert comparison["seeds"]["verdict"] == comparison["verdict"] == "not shown"


def test_p_is_given_before_and_after_the_correction():
    runs = [run("a"), *(run(f"b{i}", i + 2, shift, params={"p": i}) for i, shift in enumerate((0.001, 0.05, 0.0)))]

    first, *_ = document_of(*runs)["comparisons"]

    of_documents = first["documents"]
    assert of_documents["p_value"] <= 0.05 < of_documents["p_value_holm"]
    assert first["verdict"] == "not shown" and of_documents["low"] > 0


def test_nothing_is_extrapolated_from_two_seeds():
    (two,) = document_of(*seeds_of("a", (1, 2)), *seeds_of("b", (4, 5), p=1))["comparisons"]
    (three,) = document_of(*seeds_of("a", (1, 2, 3)), run("b", 4, params={"p": 1}))["comparisons"]

    assert two["detectable_by_seeds"] == []
    assert [each["seeds_of_each_side"] for each in three["detectable_by_seeds"]] == [2, 3, 5, 10]
    differences = [each["difference"] for each in three["detectable_by_seeds"]]
    assert differences == sorted(differences, reverse=True)


def test_the_documented_kinds_of_warnings_are_those_of_the_code():
    page = (ROOT / "docs" / "json.md").read_text()
    (row,) = re.findall(r"^\| `comparisons\[\]\.warnings\[\]\.kind` \| string \| (.*) \|$", page, re.M)
    sizes = np.array([9000, *range(500, 539)])
    a = dataclasses.replace(run("a", params={"train.seq_len": 1}), utf8_bytes=sizes, nats=sizes * math.log(2))
    b = dataclasses.replace(a, name="b", nats=a.nats * (1 + np.log(sizes) / 10), is_lossy=True, num_earlier_looks=2)
    other = dataclasses.replace(b, params={**a.params, "train.seq_len": 2})

    kinds = set()
    for side in (b, other):
        kinds |= {note.kind for note in notes_of(compare_groups(Group([a]), Group([side]), 1, 0.95, 99))}

    assert kinds == set(re.findall(r"`(\w+)`", row))


def test_numbers_that_are_not_finite_become_null(capsys):
    print_json("x/1", {"a": float("nan"), "b": [np.float64("inf"), np.int64(3)], "c": {"d": -math.inf}})

    assert read_document(capsys.readouterr().out) == {"schema": "x/1", "a": None, "b": [None, 3], "c": {"d": None}}


def test_every_documented_key_of_noise_is_in_a_document_and_no_other(monkeypatch, capsys):
    runs = [KnownRun(f"s{seed}", 1 + seed / 100, seed, {"p": 1}, {"src/x": "1"}) for seed in (1, 2, 3)]
    other = KnownRun("other", 1.5, 4, {"p": 1}, {"src/x": "2"})
    monkeypatch.setattr(noise, "find_known_runs", lambda: KnownRuns([*runs, other], ["empty"], []))
    monkeypatch.setattr(noise, "read_known_run", lambda name: runs[0])
    monkeypatch.chdir(ROOT)

    status = noise.main(["s1", "--json"])

    document = read_document(capsys.readouterr().out)
    assert status == 0 and check_document(document) == documented(noise.SCHEMA).keys()


def test_the_documented_keys_of_a_verdict_that_has_no_comparison(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(verdict, "compare_with_committed", lambda: None)
    monkeypatch.setattr(verdict, "score", lambda: {"bits_per_byte": 1.0, "standard_error": None, "documents": None})

    status = verdict.main(["--json"])

    document = read_document(capsys.readouterr().out)
    check_document(document)
    assert (status, document["identical"], document["num_outputs"]) == (0, None, None)
