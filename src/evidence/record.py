"""Comparisons as JSON for programs; docs/json.md describes the documents."""

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from evidence.answer import answer, notes_of
from evidence.difference import Comparison, Comparisons
from evidence.intervals import Estimate, effective_documents
from evidence.runs import Group, Run
from evidence.spread import detectable_by_seeds, detectable_difference

COMPARE = "reprolm.compare/2"


def record(found: Comparisons) -> dict:
    """Return groups and comparisons as a mapping."""
    first = found.corrected[0]
    baseline = first.baseline
    documents: dict[str, float] = {"number": len(first.sizes)}
    if first.measure.key == "bits_per_byte":
        documents["utf8_bytes"] = int(first.sizes.sum())
    comparisons = []
    for alone, corrected in zip(found.alone, found.corrected, strict=True):
        comparisons.append(comparison_record(alone, corrected, len(found.alone), found.confidence))
    for recorded, equivalence in zip(comparisons, found.equivalences, strict=False):
        recorded["equivalence"] = equivalence._asdict()
    return {
        "confidence": found.confidence,
        "documents": documents | {"effective_number": effective_documents(first.sizes)},
        "baseline": {
            "name": first.a.name,
            first.measure.key: baseline.value,
            "standard_error": baseline.se,
            "low": baseline.low,
            "high": baseline.high,
        },
        "groups": [group_record(group) for group in found.groups],
        "comparisons": comparisons,
    }


def group_record(group: Group) -> dict:
    """Return a group with its runs."""
    scores = group.scores
    return {
        "name": group.name,
        "num_seeds": len(group.runs),
        group.runs[0].measure.key: float(scores.mean()),
        "standard_deviation": float(scores.std(ddof=1)) if len(scores) > 1 else None,
        "runs": [run_record(run) for run in group.runs],
    }


def run_record(run: Run) -> dict:
    return {"name": run.name, "seed": run.seed, run.measure.key: run.score}


def comparison_record(alone: Comparison, corrected: Comparison, num_comparisons: int, confidence: float) -> dict:
    """Return the verdict on B with what it rests on."""
    a = corrected.a
    b = corrected.b
    deciding = corrected.deciding

    def estimate_record(alone: Estimate, corrected_estimate: Estimate) -> dict:
        """Return a difference B - A with its interval, p before and after Holm's correction, and its verdict."""
        return {
            "verdict": corrected.verdict(corrected_estimate, confidence),
            "difference": alone.value,
            "standard_error": alone.se,
            "low": alone.low,
            "high": alone.high,
            "p_value": alone.p_value,
            "p_value_holm": corrected_estimate.p_value,
            "p_is_upper_bound": alone.p_is_bound,
            "degrees_of_freedom": alone.degrees_of_freedom,
            "detectable_difference": detectable_difference(alone),
        }

    of_documents = estimate_record(alone.documents, corrected.documents)
    of_seeds = estimate_record(alone.seeds, corrected.seeds)
    sources = []
    for name, estimate in alone.sources.items():
        sources.append({"name": name, **estimate_record(estimate, corrected.sources[name])})
    detectable = detectable_by_seeds(corrected, confidence)
    left_out = []
    for group, runs in corrected.sides.left_out:
        left_out += [{"group": group.name, "run": run.name, "seed": run.seed} for run in runs]
    seeds = {
        "of_baseline": len(a.runs),
        "of_candidate": len(b.runs),
        "are_pairs": corrected.is_paired,
        "common": a.seeds if corrected.sides.are_pairs else [],
        "left_out": left_out,
    }
    return {
        "baseline": a.name,
        "candidate": b.name,
        "verdict": corrected.verdict(deciding, confidence),
        "basis": corrected.basis,
        "sentence": answer(corrected, num_comparisons, confidence),
        "difference": deciding.value,
        f"baseline_{corrected.measure.key}": float(a.scores.mean()),
        f"candidate_{corrected.measure.key}": float(b.scores.mean()),
        "p_value_holm": deciding.p_value,
        "detectable_difference": detectable_difference(deciding),
        "equivalence": None,
        "documents": {"number": len(corrected.sizes), **of_documents},
        "seeds": seeds | of_seeds,
        "sources": sources,
        "detectable_by_seeds": [
            {"seeds_of_each_side": seeds, "difference": difference, "are_pairs": detectable.is_of_pairs}
            for seeds, difference in detectable.differences.items()
        ],
        "warnings": [note._asdict() for note in notes_of(corrected)],
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
