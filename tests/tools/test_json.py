"""The JSON of compare fits its schema, follows from the losses, and has finite numbers only."""

import json
import math
from dataclasses import replace

import numpy as np

from evidence.difference import Options, compare
from evidence.record import COMPARE, plain, print_json
from support.json_documents import check_document
from support.made_up_runs import SOURCES, MadeUpRun, facts_of, run, seeds_of
from tools.compare import record as comparing

WIDER = {"p": 1}  # the parameters of another configuration


# compare


def document_of(*runs: MadeUpRun) -> dict:
    """Return the document of `compare` about made-up runs, as a program reads it."""
    found = compare(runs, Options(within=0.005, resamples=999))
    document = {"schema": COMPARE} | comparing.record(found, facts_of(*runs))
    document["unfinished"] = [{"name": "x", "state": "Queued"}]
    document["commands_for_more_seeds"] = ["dvc queue start"]
    text = json.dumps(plain(document), allow_nan=False)
    return json.loads(text)


def test_a_document_of_compare_has_every_documented_key_and_no_other():
    narrow = seeds_of("a", (1, 2, 3))
    wide = seeds_of("b", (1, 2, 6), shift=0.01, params=WIDER)

    check_document(document_of(*[replace(each, sources=SOURCES) for each in narrow + wide]))
    check_document(document_of(run("a", code="1"), run("b", code="2")))
    check_document(document_of(run("a"), run("same"), run("b", 2, params=WIDER)))


def test_numbers_that_are_not_finite_become_null(capsys):
    print_json("x/1", {"number": math.nan, "list": [np.float64("inf"), np.int64(3)]})

    assert json.loads(capsys.readouterr().out) == {"schema": "x/1", "number": None, "list": [None, 3]}
