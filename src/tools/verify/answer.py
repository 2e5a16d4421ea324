"""The answer of `verify` about the run in the workspace: lines for a person, and a mapping for JSON."""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from lm.core.files import read_json
from lm.core.params import read_yaml
from lm.core.paths import PARAMS, SOURCES
from tools.record.committed import Changes, Stale
from tools.record.lock import read_timing
from tools.record.parameters import Difference
from tools.record.paths import EVAL_METRICS, EVALUATION_DETAILS, MODEL, RAW

NUM_LISTED = 12  # lines of a list


def describe(changes: Changes, stale: Stale) -> list[str]:
    """Return the answer: identical or not, the differences, the caveats, and the score."""
    lists = {
        "parameters, committed -> now:": table(changes.parameters),
        "inputs that differ:": changes.inputs,
        "outputs that differ:": changes.outputs,
        "metrics, committed -> now:": table(changes.metrics),
        "parameters that changed since this run, then -> now:": table(stale.parameters),
        "files that changed since this run:": stale.files,
    }
    lines = [changes.headline, changes.explanation]
    for title, rows in lists.items():
        if rows:
            lines += [title, *listed(rows)]
    lines += caveats(changes, stale)
    lines.append(score_sentence(score(stale)))
    return [line for line in lines if line]


def caveats(changes: Changes, stale: Stale) -> list[str]:
    """Return a sentence for each thing that the outputs are not a result of: present inputs or code, or this folder."""
    lines = []
    if stale.stages:
        stages = ", ".join(stale.stages)
        lines.append(f"Not scored: {stages} did not run on the present inputs yet; run `dvc repro`.")
    if stale.parameters or stale.files:
        lines.append("The results are from before these changes. `dvc repro` computes them again.")
    if stale.parameters:
        lines.append("`make back` undoes the change of parameters, if it is not committed.")
    if stale.files:
        lines.append("`git restore src` undoes the change of code.")
    if changes.is_identical and not stale.stages and not read_timing(read_json(MODEL)):
        lines.append("No training of these weights is recorded here (.runs), so they came from DVC's cache.")
        lines.append("To train the run, or a part of it, again and compare: python src verify --retrain")
    return lines


def score(stale: Stale) -> dict | None:
    """Return the loss of the evaluation, its standard error and the number of documents; None if it has to run yet."""
    if stale.stages or not EVALUATION_DETAILS.exists():
        return None
    metrics = read_json(EVAL_METRICS)
    return {
        "bits_per_byte": metrics["bits_per_byte"],
        "standard_error": metrics["bpb_se"],
        "documents": read_json(EVALUATION_DETAILS)["documents"],
    }


def score_sentence(found: dict | None) -> str:
    """Return the score in words: "1.353 bits per byte (± 0.040 over 97 documents)"; "" without one."""
    if found is None:
        return ""
    error = found["standard_error"]
    precision = "" if error is None else f" (± {error:.3f} over {found['documents']:,} documents)"
    return f"{found['bits_per_byte']:.3f} bits per byte{precision}"


def table(differences: Sequence[Difference]) -> list[str]:
    """Return a line for each difference: name, committed value, value now."""
    width = max((len(each.name) for each in differences), default=0)
    return [f"{each.name:{width}}  {readable(each.committed)} -> {readable(each.now)}" for each in differences]


def readable(value) -> str:
    """Return a value as YAML writes it, but numbers with five digits, and whole numbers with commas."""
    if isinstance(value, float):
        return f"{value:.5g}"
    if type(value) is int:
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def listed(lines: Sequence[str]) -> list[str]:
    """Return the first lines, indented, and how many more there are."""
    shown = [*lines[:NUM_LISTED]]
    if len(lines) > NUM_LISTED:
        shown.append(f"and {len(lines) - NUM_LISTED} more")
    return [f"  {line}" for line in shown]


# The commands to continue with.


def next_commands(changes: Changes, stale: Stale) -> list[tuple[str, str]]:
    """Return two commands to continue with, each with its purpose."""
    report = ("python src report", "one page: curves, metrics, samples")
    if stale.parameters or stale.stages:
        return [("dvc repro", "compute what changed"), report]
    if changes.not_compared or changes.is_identical:
        prompt = first_prompt()
        generate = f"python src generate {shlex.quote(prompt)}" if prompt else "python src generate"
        return [(generate, "let the model write"), report]
    compare = ("python src compare HEAD workspace", "is the difference larger than the noise of the documents?")
    # `compare` rejects runs that were evaluated on different text.
    other_slice = any(".validation." in each.name for each in changes.parameters)
    if other_slice or str(RAW) in changes.outputs:
        compare = report
    if changes.parameters or changes.inputs:
        return [compare, ("make back", "go back to the committed run")]
    if changes.numerics == "fast":
        return [compare, report]
    return [("make prove", "does this machine give the committed bits?"), compare]


def first_prompt() -> str:
    """Return the first prompt of the source that is not blank, on one line; "" without one."""
    source = read_yaml(PARAMS)["data"]["source"]
    prompts = read_yaml(SOURCES)["sources"].get(source, {}).get("prompts", [])
    return next((prompt.strip() for prompt in prompts if prompt.strip()), "")


def next_lines(commands: list[tuple[str, str]]) -> list[str]:
    """Return the lines that print the commands, and before them the one that activates the environment.

    `make` runs without the environment in the shell.
    """
    lines = ["next:"]
    activate = Path(sys.prefix, "bin", "activate")
    if "VIRTUAL_ENV" not in os.environ and activate.exists():
        is_here = activate.is_relative_to(Path.cwd())
        lines.append(f"  source {activate.relative_to(Path.cwd()) if is_here else activate}")
    width = max(len(command) for command, _ in commands)
    return lines + [f"  {command:{width}}  # {purpose}" for command, purpose in commands]


# JSON.


def record(changes: Changes, stale: Stale) -> dict:
    """Return the answer as a mapping for JSON."""
    commands = next_commands(changes, stale)
    return {
        "fault": None,
        "identical": None if changes.not_compared else changes.is_identical,
        "sentence": changes.headline,
        "explanation": changes.explanation,
        "num_outputs": changes.num_outputs,
        "outputs": list(changes.outputs),
        "parameters": as_records(changes.parameters),
        "inputs": list(changes.inputs),
        "metrics": as_records(changes.metrics),
        "stale_stages": stale.stages,
        "changed_parameters": as_records(stale.parameters),
        "changed_files": stale.files,
        "score": score(stale),
        "next": [{"command": command, "purpose": purpose} for command, purpose in commands],
    }


def as_records(differences: Sequence[Difference]) -> list[dict]:
    """Return differences as mappings."""
    return [each._asdict() for each in differences]
