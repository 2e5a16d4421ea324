"""Say whether the run in the workspace has the bits of the committed one, else what differs; `make` ends with it.

    python src verdict
    python src verdict --json

It compares the outputs here with dvc.lock, and both with the last commit, and prints two commands to go on with.
"""

import os
import shlex
import sys
from pathlib import Path

from evidence.record import print_json
from lm.core.errors import EnvironmentFailure, IntegrityError, exit_with_status
from lm.core.files import read_json
from lm.core.params import read_yaml
from lm.core.paths import PARAMS, SOURCES
from tools.common.arguments import tool_parser
from tools.common.committed import Comparison, compare_with_committed
from tools.common.figures import fault_of_metrics
from tools.common.lock import read_timing
from tools.common.parameters import Difference
from tools.common.paths import EVAL_METRICS, EVALUATION_DETAILS, MODEL, RAW

SCHEMA = "reprolm.verdict/1"
NUM_LISTED = 12  # lines of a list


def result() -> str:
    """Return the loss of the evaluation with its standard error: "1.353 bits per byte (± 0.040 over 97 documents)"."""
    found = score()
    loss = f"{found['bits_per_byte']:.3f} bits per byte"
    if found["standard_error"] is None or found["documents"] is None:
        return loss
    return f"{loss} (± {found['standard_error']:.3f} over {found['documents']:,} documents)"


def score() -> dict:
    """Return the loss of the evaluation, its standard error, and the number of documents; None if not known."""
    metrics = read_json(EVAL_METRICS)
    documents = read_json(EVALUATION_DETAILS)["documents"] if EVALUATION_DETAILS.exists() else None
    return {
        "bits_per_byte": metrics["bits_per_byte"],
        "standard_error": metrics.get("bpb_se"),
        "documents": documents,
    }


def caveats(comparison: Comparison) -> list[str]:
    """Return sentences that say what the outputs are not a result of: the present inputs, code, or this folder."""
    lines = []
    if comparison.former_stages:
        stages = ", ".join(comparison.former_stages)
        lines.append(f"Not scored: {stages} did not run on the present inputs yet; run `dvc repro`.")
    if comparison.changed_parameters:
        undo = "" if comparison.are_changes_committed else ", `make back` undoes the change"
        lines += [
            "Parameters that changed since this run, then -> now:",
            *listed(table(comparison.changed_parameters)),
            f"The results are of the former values. `dvc repro` computes them again{undo}.",
        ]
        if comparison.are_changes_committed:
            lines.append("The last commit contradicts itself: its parameters are not those of its dvc.lock.")
    if comparison.changed_code:
        lines += [
            "Code that changed since this run:",
            *listed(comparison.changed_code),
            "The results are of the former code. `dvc repro` computes them again, `git restore src` undoes the change.",
        ]
    if comparison.is_identical and not read_timing(read_json(MODEL)):
        lines.append("No training of these weights is recorded here (.runs), so they came from DVC's cache.")
        lines.append("To train a part of the run again and compare it: python src verify --retrain")
    return lines


def readable(value) -> str:
    """Return a value of a list; numbers with five digits, and whole ones with commas."""
    if isinstance(value, float):
        return f"{value:.5g}"
    return f"{value:,}" if type(value) is int else str(value)


def listed(lines: list[str]) -> list[str]:
    """Return the first lines, indented, and how many more there are."""
    more = len(lines) - NUM_LISTED
    shown = lines[:NUM_LISTED] + ([f"and {more} more"] if more > 0 else [])
    return [f"  {line}" for line in shown]


def table(differences: list[Difference]) -> list[str]:
    """Return a line for each difference: name, committed value, value now."""
    width = max((len(each.name) for each in differences), default=0)
    return [f"{each.name:{width}}  {readable(each.committed)} -> {readable(each.now)}" for each in differences]


def describe(comparison: Comparison) -> list[str]:
    """Return the verdict, what differs if something does, and the score if it is of this run."""
    ending = caveats(comparison)
    if not comparison.former_stages:
        ending.append(result())
    if comparison.is_identical:
        causes = table(comparison.parameters) + comparison.inputs
        return [comparison.headline, *listed(causes), *ending]
    lines = [comparison.headline]
    if comparison.parameters:
        lines += ["parameters, committed -> now:", *listed(table(comparison.parameters))]
    if comparison.inputs:
        lines += ["inputs that differ:", *listed(comparison.inputs)]
    if comparison.metrics:
        lines += ["metrics, committed -> now:", *listed(table(comparison.metrics))]
    else:
        lines += ["No metric differs. Outputs that differ:", *listed(comparison.outputs)]
    if comparison.explanation:
        lines.append(comparison.explanation)
    return lines + ending


def record(comparison: Comparison | None, reason: str) -> dict:
    """Return the verdict as a mapping for JSON; `reason` says why there is no comparison."""
    commands = [{"command": command, "purpose": purpose} for command, purpose in next_commands(comparison)]
    if comparison is None:
        return {
            "identical": None,
            "sentence": f"Not compared: {reason}.",
            "score": score(),
            "num_outputs": None,
            "outputs": [],
            "parameters": [],
            "inputs": [],
            "metrics": [],
            "explanation": "",
            "former_stages": [],
            "changed_parameters": [],
            "changed_code": [],
            "caveats": [],
            "next": commands,
        }
    return {
        "identical": comparison.is_identical,
        "sentence": comparison.headline,
        "score": None if comparison.former_stages else score(),
        "num_outputs": comparison.num_outputs,
        "outputs": comparison.outputs,
        "parameters": [each._asdict() for each in comparison.parameters],
        "inputs": comparison.inputs,
        "metrics": [each._asdict() for each in comparison.metrics],
        "explanation": comparison.explanation,
        "former_stages": comparison.former_stages,
        "changed_parameters": [each._asdict() for each in comparison.changed_parameters],
        "changed_code": comparison.changed_code,
        "caveats": [line for line in caveats(comparison) if not line.startswith("  ")],  # without the list of files
        "next": commands,
    }


def next_commands(comparison: Comparison | None) -> list[tuple[str, str]]:
    """Return two commands to go on with, each with what it is for."""
    report = ("python src report", "one page: curves, metrics, samples")
    if comparison is not None and (comparison.changed_parameters or comparison.former_stages):
        return [("dvc repro", "compute what changed"), report]
    if comparison is None or comparison.is_identical:
        prompt = first_prompt()
        generate = f"python src generate {shlex.quote(prompt)}" if prompt else "python src generate"
        return [(generate, "let the model write"), report]
    compare = ("python src compare HEAD workspace", "is the difference larger than the noise of the documents?")
    if str(RAW) in comparison.outputs:  # `compare` rejects runs on different text
        compare = report
    if comparison.parameters or comparison.inputs:
        return [compare, ("make back", "go back to the committed run")]
    if comparison.contradictions:
        return [("git log -p -1 -- dvc.lock metrics plots", "what the last commit changed"), compare]
    if comparison.numerics == "fast":
        return [compare, report]
    return [("make prove", "does this machine give the committed bits?"), compare]


def first_prompt() -> str:
    """Return the first prompt of the source that says something, on one line; "" if none does."""
    source = read_yaml(PARAMS)["data"]["source"]
    prompts = read_yaml(SOURCES)["sources"].get(source, {}).get("prompts", [])
    return next((prompt.strip() for prompt in prompts if prompt.strip()), "")


def activation() -> list[str]:
    """Return the line that activates the environment if the shell does not have it yet: `make` runs without it."""
    activate = Path(sys.prefix, "bin", "activate")
    if "VIRTUAL_ENV" in os.environ or not activate.exists():
        return []
    is_here = activate.is_relative_to(Path.cwd())
    return [f"  source {activate.relative_to(Path.cwd()) if is_here else activate}"]


@exit_with_status
def main(argv: list[str]) -> None:
    """Print the verdict and the next commands. Raise IntegrityError if a part of the run is missing."""
    parser = tool_parser("verdict", __doc__)
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md) and nothing else")
    args = parser.parse_args(argv)
    try:
        comparison = compare_with_committed()
        reason = "this folder has no commit with a dvc.lock"
    except EnvironmentFailure as error:  # git cannot read the repository
        comparison = None
        reason = str(error)
    fault = fault_of_metrics() if EVALUATION_DETAILS.exists() else None
    if fault:
        raise IntegrityError(f"{EVAL_METRICS}: {fault}; `python src verify` has a command to repair it")
    if args.json:
        print_json(SCHEMA, record(comparison, reason))
        return
    if comparison is None:
        print(f"Not compared: {reason}.")
        print(result())
    else:
        print("\n".join(describe(comparison)))
    commands = next_commands(comparison)
    width = max(len(command) for command, _ in commands)
    print("\n".join(["next:", *activation(), *(f"  {command:{width}}  # {purpose}" for command, purpose in commands)]))
