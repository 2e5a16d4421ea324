"""Comparisons as JSON for programs; a test compares them with schemas/compare-2.json."""

import json
import math
from collections.abc import Mapping

import numpy as np

from evidence.answer import answer, notes_of, signature
from evidence.difference import Comparisons, Difference
from evidence.intervals import effective_documents
from evidence.runs import BITS_PER_BYTE, Group
from evidence.spread import noise_of, what_more_seeds_show

COMPARE = "reprolm.compare/2"


def record(found: Comparisons) -> dict:
    """Return groups and comparisons as a mapping."""
    run = found.groups[0].runs[0]
    documents = {"number": len(run.sizes), "effective_number": effective_documents(run.sizes)}
    if run.measure == BITS_PER_BYTE:
        documents["utf8_bytes"] = run.sizes.sum()
    return {
        "confidence": found.options.confidence,
        "documents": documents,
        "groups": [group_record(group, found.options.confidence) for group in found.groups],
        "comparisons": [difference_record(each) for each in found.differences],
    }


def group_record(group: Group, confidence: float) -> dict:
    """Return a group with its runs, and what is known of its noise."""
    scores = group.scores
    key = group.runs[0].measure.key
    return {
        "name": group.name,
        key: scores.mean(),
        "standard_deviation": scores.std(ddof=1) if len(scores) > 1 else None,
        "runs": [{"name": run.name, "seed": run.seed, key: run.score} for run in group.runs],
        "repeats": [run.name for run in group.repeats],
        "noise": noise_of([group], confidence),
    }


def difference_record(found: Difference) -> dict:
    """Return the verdict on B with what it rests on."""
    key = found.measure.key
    seeds = {
        "of_baseline": found.a.seeds,
        "of_candidate": found.b.seeds,
        "are_pairs": found.are_pairs,
        "left_out": found.left_out,
    }
    return {
        "baseline": found.a.name,
        "candidate": found.b.name,
        "verdict": found.verdict,
        "basis": found.basis,
        "sentence": answer(found),
        "signature": signature(found),
        f"baseline_{key}": found.a.scores.mean(),
        f"candidate_{key}": found.b.scores.mean(),
        "p_value_holm": found.p_value,
        "num_tests": found.num_tests,
        "equivalence": found.equivalence,
        "documents": found.documents,
        "seeds": seeds | found.seeds._asdict(),
        "sources": [{"name": name} | each._asdict() for name, each in found.sources.items()],
        "power": what_more_seeds_show(found),
        "warnings": notes_of(found),
    }


def print_json(schema: str, content: Mapping[str, object]) -> None:
    """Print one JSON document that begins with the name of its schema."""
    document = plain({"schema": schema, **content})
    print(json.dumps(document, indent=2, allow_nan=False, default=str))


def plain(value):
    """Return a value made of JSON's types; a number that is not finite becomes None."""
    if isinstance(value, np.generic):
        value = value.item()
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    return None if is_infinite else value
