"""Comparisons as JSON for programs; a test compares them with schemas/compare-2.json."""

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from evidence.answer import answer, notes_of, signature
from evidence.difference import Comparisons, Difference
from evidence.intervals import Estimate, effective_documents
from evidence.runs import BITS_PER_BYTE, Group, Run
from evidence.spread import Power, noise_of, what_more_seeds_show

COMPARE = "reprolm.compare/2"


def record(found: Comparisons) -> dict:
    """Return groups and comparisons as a mapping."""
    run = found.groups[0].runs[0]
    documents: dict[str, float] = {"number": len(run.sizes), "effective_number": effective_documents(run.sizes)}
    if run.measure == BITS_PER_BYTE:
        documents["utf8_bytes"] = int(run.sizes.sum())
    comparisons = [difference_record(each, found) for each in found.differences]
    for recorded, equivalence in zip(comparisons, found.equivalences, strict=False):
        recorded["equivalence"] = equivalence._asdict()
    return {
        "confidence": found.confidence,
        "num_tests": found.num_tests,
        "documents": documents,
        "groups": [group_record(group, found.confidence) for group in found.groups],
        "comparisons": comparisons,
    }


def group_record(group: Group, confidence: float) -> dict:
    """Return a group with its runs, and what is known of its noise."""
    scores = group.scores
    return {
        "name": group.name,
        "num_seeds": len(group.runs),
        group.runs[0].measure.key: float(scores.mean()),
        "standard_deviation": float(scores.std(ddof=1)) if len(scores) > 1 else None,
        "runs": [run_record(run) for run in group.runs],
        "repeats": [{"name": repeat.run.name, "of": repeat.of.name} for repeat in group.repeats],
        "unused_seed": group.is_seed_unused,
        "noise": power_record(noise_of([group], confidence)),
    }


def run_record(run: Run) -> dict:
    return {"name": run.name, "seed": run.seed, run.measure.key: run.score}


def power_record(shown: Power | None) -> dict | None:
    """Return what numbers of seeds would show, and the spread for which it holds."""
    if shown is None:
        return None
    differences = [{"seeds_of_each_side": seeds, "difference": each} for seeds, each in shown.differences.items()]
    return {
        "are_pairs": shown.are_pairs,
        "standard_deviation": shown.spread.sd,
        "low": shown.low,
        "high": shown.high,
        "upper_factor": shown.upper_factor,
        "detectable": differences,
    }


def difference_record(found: Difference, comparisons: Comparisons) -> dict:
    """Return the verdict on B with what it rests on."""
    a = found.a
    b = found.b
    confidence = comparisons.confidence
    left_out = []
    for group, runs in found.sides.left_out:
        left_out += [{"group": group.name, "run": run.name, "seed": run.seed} for run in runs]
    seeds = {
        "of_baseline": len(a.runs),
        "of_candidate": len(b.runs),
        "are_pairs": found.is_paired,
        "common": a.seeds if found.sides.are_pairs else [],
        "left_out": left_out,
    }
    return {
        "baseline": a.name,
        "candidate": b.name,
        "verdict": found.verdict(confidence),
        "basis": found.basis,
        "sentence": answer(found, comparisons.num_tests, confidence),
        "signature": signature(found, comparisons.options),
        f"baseline_{found.measure.key}": float(a.scores.mean()),
        f"candidate_{found.measure.key}": float(b.scores.mean()),
        "p_value_holm": found.p_value if found.is_tested else None,
        "equivalence": None,
        "documents": estimate_record(found.documents),
        "seeds": seeds | estimate_record(found.seeds),
        "sources": [{"name": name} | estimate_record(estimate) for name, estimate in found.sources.items()],
        "power": power_record(what_more_seeds_show(found, confidence)),
        "warnings": [note._asdict() for note in notes_of(found)],
    }


def estimate_record(found: Estimate) -> dict:
    """Return a difference B - A with its interval."""
    return {
        "difference": found.value,
        "standard_error": found.se,
        "low": found.low,
        "high": found.high,
        "p_value": found.p_value,
        "p_is_upper_bound": found.p_is_bound,
        "degrees_of_freedom": found.degrees_of_freedom,
    }


def print_json(schema: str, content: Mapping[str, object]) -> None:
    """Print one JSON document that begins with the name of its schema."""
    document = plain({"schema": schema, **content})
    print(json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False))


def plain(value):
    """Return a value made of JSON's types; a number that is not finite becomes None, any other object its text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    return str(value)
