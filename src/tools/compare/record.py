"""A comparison of recorded runs as JSON for programs; docs/json.md describes it."""

from collections.abc import Mapping

from evidence import record as of_losses
from evidence.difference import Comparison, Comparisons
from evidence.record import COMPARE
from evidence.runs import Run
from tools.common.runs import Facts
from tools.compare.facts import different_inputs, different_parameters, notes_of

SCHEMA = COMPARE


def record(found: Comparisons, facts: Mapping[str, Facts]) -> dict:
    """Return groups and comparisons as a mapping."""
    content = of_losses.record(found)
    for group, recorded in zip(found.groups, content["groups"], strict=True):
        recorded["runs"] = [run_record(run, facts[run.name]) for run in group.runs]
    for comparison, recorded in zip(found.corrected, content["comparisons"], strict=True):
        recorded |= differences_record(comparison, facts)
    return content


def run_record(run: Run, facts: Facts) -> dict:
    """Return the figures of a run."""
    return of_losses.run_record(run) | {
        "tokens_seen": facts.tokens_seen,
        "best_tokens_seen": facts.best_tokens_seen,
        "parameters": facts.num_parameters,
        "train_seconds": facts.train_seconds,
        "lossy_tokenizer": facts.is_lossy,
    }


def differences_record(comparison: Comparison, facts: Mapping[str, Facts]) -> dict:
    """Return what differs between the two sides, and all warnings."""
    a = comparison.a
    b = comparison.b
    return {
        "parameters": [
            {"name": name, "baseline": of_a, "candidate": of_b}
            for name, of_a, of_b in different_parameters(a, b, facts)
        ],
        "inputs": [
            {"path": path, "files": files, "baseline": of_a, "candidate": of_b}
            for path, files, of_a, of_b in different_inputs(a, b, facts)
        ],
        "warnings": [note._asdict() for note in notes_of(comparison, facts)],
    }
