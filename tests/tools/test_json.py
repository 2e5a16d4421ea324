"""The JSON of compare is what docs/json.md documents, follows from the losses, and has finite numbers only."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from evidence.difference import Options, compare
from evidence.record import COMPARE, plain, print_json
from support import ROOT
from support.json_documents import check_document, documented, read_document
from support.made_up_runs import SOURCES, MadeUpRun, facts_of, run, score_of, seeds_of
from tools.compare import record as comparing

WIDER = {"p": 1}  # the parameters of another configuration


# compare


def document_of(*runs: MadeUpRun) -> dict:
    """Return the document of `compare` about made-up runs, as a program reads it."""
    found = compare(runs, Options(within=0.005, resamples=999))
    document = {"schema": COMPARE} | comparing.record(found, facts_of(*runs))
    document["unfinished"] = [{"name": "x", "state": "Queued"}]
    document["commands_for_more_seeds"] = ["dvc queue start"]
    document["files"] = {"report": "a.md", "documents": "a.csv"}
    text = json.dumps(plain(document), allow_nan=False)
    return json.loads(text)


def test_a_document_of_compare_has_every_documented_key_and_no_other():
    narrow = seeds_of("a", (1, 2, 3))
    wide = seeds_of("b", (1, 2, 6), shift=0.01, params=WIDER)
    of_mixtures = document_of(*[replace(each, sources=SOURCES) for each in narrow + wide])
    of_changed_code = document_of(run("a", code="1"), run("b", code="2"))

    of_equal_runs = document_of(run("a"), run("same"), run("b", 2, params=WIDER))

    keys = check_document(of_mixtures) | check_document(of_changed_code) | check_document(of_equal_runs)

    assert keys == documented(COMPARE).keys()


def test_the_figures_of_a_document_of_compare_follow_from_the_losses():
    """Of two sides with unequal numbers of seeds, on a mixture."""
    a = [replace(each, sources=SOURCES).but(train_seconds=61.5) for each in seeds_of("a", (1, 2))]
    b = [replace(each, sources=SOURCES).but(best_tokens_seen=800) for each in seeds_of("b", (4, 5, 6), 0.01, WIDER)]

    document = document_of(*a, *b)

    # Each side, and its runs.
    sizes = a[0].sizes
    effective = sizes.sum() ** 2 / (sizes**2).sum()
    assert document["documents"] == {
        "number": len(sizes),
        "utf8_bytes": sizes.sum(),
        "effective_number": pytest.approx(effective),
    }
    for side, group in zip((a, b), document["groups"], strict=True):
        scores = [score_of(each) for each in side]
        assert group["num_seeds"] == len(side)
        assert group["bits_per_byte"] == pytest.approx(np.mean(scores))
        assert group["standard_deviation"] == pytest.approx(np.std(scores, ddof=1))
        for each, score, found in zip(side, scores, group["runs"], strict=True):
            assert found == {
                "name": each.name,
                "seed": each.seed,
                "bits_per_byte": pytest.approx(score),
                "tokens_seen": each.facts.tokens_seen,
                "best_tokens_seen": each.facts.best_tokens_seen,
                "parameters": each.facts.num_parameters,
                "train_seconds": each.facts.train_seconds,
                "lossy_tokenizer": False,
            }

    # The difference over documents, over those of each source, and over seeds.
    (comparison,) = document["comparisons"]
    bits = np.mean([each.values for each in b], axis=0) - np.mean([each.values for each in a], axis=0)
    parts = {"": np.full(len(sizes), True)} | {name: name == SOURCES for name in ("stories", "headers")}
    found = [comparison["documents"] | {"name": ""}, *comparison["sources"]]
    assert [each["name"] for each in found] == list(parts)
    for each in found:
        own = parts[each["name"]]
        assert each["difference"] == pytest.approx(bits[own].sum() / sizes[own].sum())
        assert each["low"] < each["difference"] < each["high"]
    of_seeds = comparison["seeds"]
    scores_of_a, scores_of_b = ([score_of(each) for each in side] for side in (a, b))
    se = math.sqrt(np.var(scores_of_a, ddof=1) / 2 + np.var(scores_of_b, ddof=1) / 3)
    assert (of_seeds["of_baseline"], of_seeds["of_candidate"]) == (2, 3)
    assert of_seeds["difference"] == pytest.approx(np.mean(scores_of_b) - np.mean(scores_of_a))
    assert of_seeds["standard_error"] == pytest.approx(se)


def test_the_documented_kinds_of_warnings_are_those_of_the_code():
    code = "".join((ROOT / "src" / path).read_text() for path in ("evidence/answer.py", "tools/compare/facts.py"))
    page = (ROOT / "docs" / "json.md").read_text()

    (meaning,) = re.findall(r"^\| `comparisons\[\]\.warnings\[\]\.kind` \| string \| (.*) \|$", page, re.M)

    assert set(re.findall(r"`(\w+)`", meaning)) == set(re.findall(r'Note\("(\w+)"', code))


def test_numbers_that_are_not_finite_become_null(capsys):
    content = {
        "number": math.nan,
        "list": [np.float64("inf"), np.int64(3)],
        "object": {"key": -math.inf},
    }

    print_json("x/1", content)

    assert read_document(capsys.readouterr().out) == {
        "schema": "x/1",
        "number": None,
        "list": [None, 3],
        "object": {"key": None},
    }
