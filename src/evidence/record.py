"""Comparisons as JSON for programs; docs/json.md describes the documents, and a test compares them with it."""

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from evidence.answer import answer, notes_of, signature
from evidence.difference import Comparisons, Difference
from evidence.intervals import Estimate, effective_documents
from evidence.runs import BITS_PER_BYTE, Group, Run
from evidence.spread import Power, detectable_difference, detectable_over_seeds, noise_of, what_more_seeds_show

COMPARE = "reprolm.compare/2"


def record(found: Comparisons) -> dict:
    """Return groups and comparisons as a mapping."""
    first = found.groups[0]
    run = first.runs[0]
    baseline = found.baseline
    documents: dict[str, float] = {"number": len(run.sizes)}
    if run.measure == BITS_PER_BYTE:
        documents["utf8_bytes"] = int(run.sizes.sum())
    comparisons = []
    for alone, corrected in zip(found.alone, found.corrected, strict=True):
        comparisons.append(difference_record(alone, corrected, found))
    for recorded, equivalence in zip(comparisons, found.equivalences, strict=False):
        recorded["equivalence"] = equivalence._asdict()
    return {
        "confidence": found.confidence,
        "num_tests": found.num_tests,
        "documents": documents | {"effective_number": effective_documents(run.sizes)},
        "baseline": {
            "name": first.name,
            run.measure.key: baseline.value,
            "standard_error": baseline.se,
            "low": baseline.low,
            "high": baseline.high,
        },
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


def difference_record(alone: Difference, corrected: Difference, found: Comparisons) -> dict:
    """Return the verdict on B with what it rests on."""
    a = alone.a
    b = alone.b
    confidence = found.confidence
    detectable = detectable_over_seeds(alone, confidence)
    of_seeds = estimate_record(alone, alone.seeds, confidence, detectable)
    of_documents = estimate_record(alone, alone.documents, confidence, detectable_difference(alone.documents))
    sources = []
    for name, estimate in alone.sources.items():
        recorded = estimate_record(alone, estimate, confidence, detectable_difference(estimate))
        recorded["p_value_holm"] = corrected.sources[name].p_value
        sources.append({"name": name, **recorded})

    # Only what decides is corrected for the number of tests.
    deciding = of_seeds if alone.basis == "seeds" else of_documents
    if alone.is_tested:
        deciding["p_value_holm"] = corrected.deciding.p_value
    left_out = []
    for group, runs in alone.sides.left_out:
        left_out += [{"group": group.name, "run": run.name, "seed": run.seed} for run in runs]
    seeds = {
        "of_baseline": len(a.runs),
        "of_candidate": len(b.runs),
        "are_pairs": alone.is_paired,
        "common": a.seeds if alone.sides.are_pairs else [],
        "left_out": left_out,
    }
    power = None
    if not alone.is_of_one_configuration:
        power = what_more_seeds_show(alone.sides.whole_a, alone.sides.whole_b, confidence)
    return {
        "baseline": a.name,
        "candidate": b.name,
        "verdict": corrected.verdict(corrected.deciding, confidence),
        "basis": alone.basis,
        "sentence": answer(corrected, found.num_tests, confidence),
        "signature": signature(alone, found.options),
        "difference": alone.deciding.value,
        f"baseline_{alone.measure.key}": float(a.scores.mean()),
        f"candidate_{alone.measure.key}": float(b.scores.mean()),
        "p_value_holm": deciding["p_value_holm"],
        "detectable_difference": deciding["detectable_difference"],
        "equivalence": None,
        "documents": {"number": len(alone.sizes), **of_documents},
        "seeds": seeds | of_seeds,
        "sources": sources,
        "power": power_record(power),
        "warnings": [note._asdict() for note in notes_of(alone)],
    }


def estimate_record(found: Difference, estimate: Estimate, confidence: float, detectable: float | None) -> dict:
    """Return a difference B - A with its interval, and the verdict of this interval alone."""
    return {
        "verdict": found.verdict(estimate, confidence),
        "difference": estimate.value,
        "standard_error": estimate.se,
        "low": estimate.low,
        "high": estimate.high,
        "p_value": estimate.p_value,
        "p_value_holm": None,
        "p_is_upper_bound": estimate.p_is_bound,
        "degrees_of_freedom": estimate.degrees_of_freedom,
        "detectable_difference": detectable,
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
