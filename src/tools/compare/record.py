"""A comparison of recorded runs as JSON for programs; schemas/compare-2.json is its schema."""

from collections.abc import Mapping

from evidence import record as of_losses
from evidence.difference import Comparisons
from tools.compare.facts import different_inputs, different_parameters, notes_of, same_until
from tools.record.run import Facts


def record(found: Comparisons, facts: Mapping[str, Facts]) -> dict:
    """Return groups and comparisons as a mapping."""
    content = of_losses.record(found)
    for group in content["groups"]:
        for run in group["runs"]:
            run |= figures_of(facts[run["name"]])
    for difference, recorded in zip(found.differences, content["comparisons"], strict=True):
        a = difference.a
        b = difference.b
        recorded["parameters"] = [
            {"name": name, "baseline": of_a, "candidate": of_b}
            for name, of_a, of_b in different_parameters(a, b, facts)
        ]
        recorded["inputs"] = [
            {"path": path, "files": files, "baseline": of_a, "candidate": of_b}
            for path, files, of_a, of_b in different_inputs(a, b, facts)
        ]
        recorded["same_until"] = same_until(facts[a.runs[0].name], facts[b.runs[0].name])
        recorded["warnings"] = [note._asdict() for note in notes_of(difference, facts)] + recorded["warnings"]
    return content


def figures_of(facts: Facts) -> dict:
    return {
        "tokens_seen": facts.tokens_seen,
        "best_tokens_seen": facts.best_tokens_seen,
        "parameters": facts.num_parameters,
        "train_seconds": facts.train_seconds,
        "lossy_tokenizer": facts.is_lossy,
    }
