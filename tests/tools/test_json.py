"""The JSON of compare, noise and verdict is what docs/json.md documents, and has finite numbers only."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from support import ROOT
from support.json_documents import check_document, documented, read_document
from support.loss_cases import LN2
from support.made_up_runs import SOURCES, run, seeds_of
from tools import noise, verdict
from tools.common.json_output import plain, print_json
from tools.common.known_runs import KnownRun, KnownRuns
from tools.common.runs import Group, Run, compare_groups, corrected, group_by_seed
from tools.compare import record as comparing
from tools.compare.notes import notes_of

WIDER = {"p": 1}  # the parameters of another configuration


# compare


def document_of(*runs: Run) -> dict:
    """Return the document of `compare` about made-up runs, as a program reads it."""
    groups = group_by_seed(list(runs))
    sides = groups if len(groups) > 1 else [Group([each]) for each in runs]
    first, *others = sides
    alone = [compare_groups(first, other, 1, 0.95, 999) for other in others]
    content = comparing.record(groups, alone, corrected(alone), 0.95)
    content["unfinished"] = [{"name": "x", "state": "Queued"}]
    content["commands_for_more_seeds"] = ["dvc queue start"]
    content["files"] = {"report": "a.md", "documents": "a.csv"}
    text = json.dumps(plain({"schema": comparing.SCHEMA, **content}), allow_nan=False)
    return json.loads(text)


def test_a_document_of_compare_has_every_documented_key_and_no_other():
    runs = [
        *seeds_of("a", (1, 2, 3)),
        *seeds_of("b", (4, 5, 6), shift=0.01, params=WIDER),
    ]
    of_mixtures = document_of(*[replace(each, sources=SOURCES) for each in runs])
    of_changed_code = document_of(run("a", code="1"), run("b", code="2"))

    keys = check_document(of_mixtures) | check_document(of_changed_code)

    assert keys == documented(comparing.SCHEMA).keys()


@pytest.mark.parametrize(
    ("a", "b", "verdict", "basis"),
    [
        ([run("a")], [run("b", 2, -0.05, WIDER)], "better", "documents"),
        (seeds_of("a", (1, 2)), [run("b", 3, 0.05, WIDER)], "worse", "documents"),
        (seeds_of("a", (1, 2, 3)), seeds_of("b", (4, 5), -0.05, WIDER), "better", "seeds"),
        (seeds_of("a", (1, 2, 3)), seeds_of("b", (4, 5), 0.0, WIDER), "not shown", "seeds"),
        ([run("a", 1)], [run("a", 2)], "not shown", "documents"),
    ],
)
def test_two_seeds_of_each_side_decide_what_the_verdict_is_over(a, b, verdict, basis):
    (comparison,) = document_of(*a, *b)["comparisons"]

    assert comparison["verdict"] == verdict
    assert comparison["basis"] == basis
    deciding = comparison[basis]
    for key in ("verdict", "difference", "p_value_holm", "detectable_difference"):
        assert comparison[key] == deciding[key], key


def test_documents_do_not_decide_where_seeds_do():
    """Both intervals exist and disagree: every document is a little worse, less than seeds differ."""
    a = [run("a-1", seed=1), run("a-2", seed=2, shift=0.2)]
    b = [run("b-3", seed=3, shift=0.05, params=WIDER), run("b-4", seed=4, shift=0.2, params=WIDER)]

    (comparison,) = document_of(*a, *b)["comparisons"]

    assert comparison["documents"]["verdict"] == "worse"
    assert comparison["seeds"]["verdict"] == "not shown"
    assert comparison["verdict"] == "not shown"


def test_p_is_given_before_and_after_the_correction():
    a = run("a", seed=1)
    near = run("near", seed=2, shift=0.001, params={"p": 0})
    far = run("far", seed=3, shift=0.05, params={"p": 1})
    same = run("same", seed=4, params={"p": 2})

    of_near, *_ = document_of(a, near, far, same)["comparisons"]

    of_documents = of_near["documents"]
    assert of_documents["low"] > 0
    assert of_documents["p_value"] <= 0.05 < of_documents["p_value_holm"]
    assert of_near["verdict"] == "not shown"


def test_what_more_seeds_could_show_is_extrapolated_from_three():
    (comparison,) = document_of(*seeds_of("a", (1, 2, 3)), run("b", 4, params=WIDER))["comparisons"]

    rows = comparison["detectable_by_seeds"]
    differences = [row["difference"] for row in rows]
    assert [row["seeds_of_each_side"] for row in rows] == [2, 3, 5, 10]
    assert differences == sorted(differences, reverse=True)


def test_nothing_is_extrapolated_from_two_seeds():
    (comparison,) = document_of(*seeds_of("a", (1, 2)), *seeds_of("b", (4, 5), params=WIDER))["comparisons"]

    assert comparison["detectable_by_seeds"] == []


def warnings_about(a: Run, b: Run) -> set[str]:
    """Return the kinds of the warnings of a comparison of single runs."""
    comparison = compare_groups(Group([a]), Group([b]), 1, 0.95, 99)
    return {note.kind for note in notes_of(comparison)}


def test_the_documented_kinds_of_warnings_are_those_of_the_code():
    sizes = np.array([9000, *range(500, 539)])
    rates = np.log(sizes) / 10
    a = replace(run("a", params={"train.seq_len": 1}), utf8_bytes=sizes, nats=sizes * LN2)
    lossy = replace(a, name="b", nats=a.nats * (1 + rates), is_lossy=True, num_earlier_looks=2)
    of_other_context = replace(lossy, params=a.params | {"train.seq_len": 2})

    kinds = warnings_about(a, lossy) | warnings_about(a, of_other_context)

    page = (ROOT / "docs" / "json.md").read_text()
    (row,) = re.findall(r"^\| `comparisons\[\]\.warnings\[\]\.kind` \| string \| (.*) \|$", page, re.M)
    assert kinds == set(re.findall(r"`(\w+)`", row))


# noise and verdict


def test_a_document_of_noise_has_every_documented_key_and_no_other(monkeypatch, capsys):
    runs = [KnownRun(f"s{seed}", 1 + seed / 100, seed, WIDER, {"src/x": "1"}) for seed in (1, 2, 3)]
    of_other_code = KnownRun("other", 1.5, 4, WIDER, {"src/x": "2"})
    known = KnownRuns([*runs, of_other_code], without_results=["empty"], experiment_names=[])

    monkeypatch.setattr(noise, "find_known_runs", lambda: known)
    monkeypatch.setattr(noise, "read_known_run", lambda name: runs[0])
    monkeypatch.chdir(ROOT)
    status = noise.main(["s1", "--json"])

    document = read_document(capsys.readouterr().out)
    assert status == 0
    assert check_document(document) == documented(noise.SCHEMA).keys()


def test_a_verdict_that_has_no_comparison_has_the_documented_keys(monkeypatch, capsys):
    score = {"bits_per_byte": 1.0, "standard_error": None, "documents": None}
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(verdict, "compare_with_committed", lambda: None)
    monkeypatch.setattr(verdict, "score", lambda: score)

    status = verdict.main(["--json"])

    document = read_document(capsys.readouterr().out)
    check_document(document)
    assert status == 0
    assert document["identical"] is None
    assert document["num_outputs"] is None


# All


def test_numbers_that_are_not_finite_become_null(capsys):
    content = {"a": float("nan"), "b": [np.float64("inf"), np.int64(3)], "c": {"d": -math.inf}}

    print_json("x/1", content)

    document = read_document(capsys.readouterr().out)
    assert document == {"schema": "x/1", "a": None, "b": [None, 3], "c": {"d": None}}
