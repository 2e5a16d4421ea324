"""A comparison as JSON for programs; docs/json.md describes it."""

from evidence.intervals import Estimate, effective_documents
from evidence.statistics import bits_per_byte, detectable_difference
from tools.common.runs import (
    SEED,
    Comparison,
    Group,
    Run,
    different_inputs,
    different_parameters,
    verdict,
)
from tools.compare.answer import answer, detectable_by_seeds
from tools.compare.notes import notes_of

SCHEMA = "reprolm.compare/1"


def record(groups: list[Group], alone: list[Comparison], corrected: list[Comparison], confidence: float) -> dict:
    """Return groups and comparisons as a mapping; `corrected` are `alone` with p after Holm's correction."""
    first = corrected[0]
    baseline = first.baseline
    return {
        "confidence": confidence,
        "documents": {
            "number": len(first.sizes),
            "utf8_bytes": int(first.sizes.sum()),
            "effective_number": effective_documents(first.sizes),
        },
        "baseline": {
            "name": first.a.name,
            "bits_per_byte": baseline.value,
            "standard_error": baseline.se,
            "low": baseline.low,
            "high": baseline.high,
        },
        "groups": [group_record(group) for group in groups],
        "comparisons": [
            comparison_record(one, with_holm, len(corrected), confidence)
            for one, with_holm in zip(alone, corrected, strict=True)
        ],
    }


def group_record(group: Group) -> dict:
    """Return a group with its runs."""
    values = group.bits_per_byte
    return {
        "name": group.name,
        "num_seeds": len(group.runs),
        "bits_per_byte": float(values.mean()),
        "standard_deviation": float(values.std(ddof=1)) if len(values) > 1 else None,
        "runs": [run_record(run) for run in group.runs],
    }


def run_record(run: Run) -> dict:
    """Return the figures of a run."""
    return {
        "name": run.name,
        "seed": run.params[SEED],
        "bits_per_byte": bits_per_byte(run.nats, run.utf8_bytes),
        "tokens_seen": run.tokens_seen,
        "best_tokens_seen": run.best_tokens_seen,
        "parameters": run.num_parameters,
        "train_seconds": run.train_seconds,
        "lossy_tokenizer": run.is_lossy,
    }


def comparison_record(alone: Comparison, corrected: Comparison, num_comparisons: int, confidence: float) -> dict:
    """Return the verdict on B with what it rests on."""
    a = corrected.a
    b = corrected.b
    deciding = corrected.deciding
    detectable = detectable_by_seeds(corrected, confidence)
    of_documents = estimate_record(alone.documents, corrected.documents, confidence)
    of_seeds = estimate_record(alone.seeds, corrected.seeds, confidence)
    sources = []
    for name, estimate in alone.sources.items():
        sources.append({"name": name, **estimate_record(estimate, corrected.sources[name], confidence)})
    return {
        "baseline": a.name,
        "candidate": b.name,
        "verdict": verdict(deciding, confidence),
        "basis": corrected.basis,
        "sentence": answer(corrected, num_comparisons, confidence),
        "difference": deciding.value,
        "p_value_holm": deciding.p_value,
        "detectable_difference": detectable_difference(deciding),
        "documents": {"number": len(corrected.sizes), **of_documents},
        "seeds": {"of_baseline": len(a.runs), "of_candidate": len(b.runs), **of_seeds},
        "sources": sources,
        "detectable_by_seeds": [
            {"seeds_of_each_side": runs, "difference": difference} for runs, difference in (detectable or {}).items()
        ],
        "parameters": [
            {"name": name, "baseline": of_a, "candidate": of_b} for name, of_a, of_b in different_parameters(a, b)
        ],
        "inputs": [
            {"path": path, "files": files, "baseline": of_a, "candidate": of_b}
            for path, files, of_a, of_b in different_inputs(a, b)
        ],
        "warnings": [note._asdict() for note in notes_of(corrected)],
    }


def estimate_record(alone: Estimate, corrected: Estimate, confidence: float) -> dict:
    """Return a difference B - A with its interval, p before and after Holm's correction, and its verdict."""
    return {
        "verdict": verdict(corrected, confidence),
        "difference": alone.value,
        "standard_error": alone.se,
        "low": alone.low,
        "high": alone.high,
        "p_value": alone.p_value,
        "p_value_holm": corrected.p_value,
        "p_is_upper_bound": alone.p_is_bound,
        "degrees_of_freedom": alone.degrees_of_freedom,
        "detectable_difference": detectable_difference(alone),
    }
