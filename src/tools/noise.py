"""Show the noise of training seeds that is known here, and the smallest change that more runs would show.

    python src noise
    python src noise main my-experiment --json

It reads the scores of all finished experiments, of HEAD, branches and tags, and of the workspace. Runs count whose
configuration is that of REV except for train.seed. It trains nothing, and prints the command for missing seeds.
"""

import argparse
import dataclasses

import numpy as np

from evidence.statistics import LEAST_SEEDS, POWER, Deviation, detectable_by_runs, deviation
from lm.core.errors import IntegrityError, ParamsError, exit_with_status
from tools.common.arguments import tool_parser
from tools.common.json_output import print_json
from tools.common.known_runs import KnownRun, KnownRuns, find_known_runs, read_known_run
from tools.common.paths import LOCK
from tools.common.revisions import WORKSPACE
from tools.common.runs import different_entries
from tools.common.seeds import START, free_name, missing_seeds, queue_commands, settings_of

SCHEMA = "reprolm.noise/1"
RUNS_OF_EACH_SIDE = (1, 2, 3, 5, 8)
OTHER_PARAMETERS = "other parameters"
OTHER_INPUTS = "other code or data"
SAME_SEED = "the same seed with another score"
NO_RESULTS = "no finished run"


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A known state that does not count, and why."""

    name: str
    reason: str
    inputs: list[str]  # that differ, with OTHER_INPUTS


@dataclasses.dataclass(frozen=True)
class Noise:
    """The runs of one configuration, one for each seed, and their deviation over seeds."""

    revision: str
    runs: list[KnownRun]
    deviation: Deviation | None  # of two seeds or more
    detectable: dict[int, float]  # runs of each side → difference in bits per byte; {} with fewer than LEAST_SEEDS
    left_out: list[LeftOut]
    commands: list[str]  # that run the missing seeds
    unlike_here: list[str]  # parameters of the files in this folder that the runs do not have


def measure_noise(name: str, known: KnownRuns, confidence: float) -> Noise:
    """Return how far seeds spread the score of a revision's configuration.

    Raise IntegrityError if the revision has no finished run.
    """
    reference = read_known_run(name)
    if reference is None:
        raise IntegrityError(f"{name}: {LOCK} and the metrics are not those of one finished run; run `dvc repro`")

    # Count one run for each seed. One with the same seed and score is the same run in another place.
    runs = [reference]
    left_out: list[LeftOut] = []
    for run in known.runs:
        if run.parameters != reference.parameters:
            left_out.append(LeftOut(run.name, OTHER_PARAMETERS, []))
        elif run.configuration != reference.configuration:
            inputs = [path for path, *_ in different_entries(reference.inputs, run.inputs)]
            left_out.append(LeftOut(run.name, OTHER_INPUTS, inputs))
        elif run.seed not in [other.seed for other in runs]:
            runs.append(run)
        elif (run.seed, run.bits_per_byte) not in [(other.seed, other.bits_per_byte) for other in runs]:
            left_out.append(LeftOut(run.name, SAME_SEED, []))
    left_out += [LeftOut(state, NO_RESULTS, []) for state in known.without_results]
    runs.sort(key=lambda run: run.seed)

    # Say what more runs could show.
    values = np.array([run.bits_per_byte for run in runs])
    spread = deviation(values, confidence) if len(runs) > 1 else None
    detectable = {}
    if spread is not None and spread.num_seeds >= LEAST_SEEDS:
        for count in RUNS_OF_EACH_SIDE:
            detectable[count] = detectable_by_runs(spread.value, spread.degrees_of_freedom, count, confidence)

    # Name the commands for the missing runs.
    seeds = missing_seeds([run.seed for run in runs])
    commands = []
    if seeds:
        experiment = free_name(name, known.experiment_names)
        commands = [*queue_commands(name, reference.params, reference.inputs, seeds, experiment), START]
    unlike_here = (settings_of(reference.params) or []) if name == WORKSPACE else []
    return Noise(name, runs, spread, detectable, left_out, commands, unlike_here)


def describe(noise: Noise, confidence: float) -> list[str]:
    """Return what the command prints about one revision."""
    spread = noise.deviation
    seeds = ", ".join(f"{run.seed} ({run.bits_per_byte:.4f}, {run.name})" for run in noise.runs)
    if spread is None:
        lines = [f"{noise.revision}: the noise of seeds is not known, because only one seed has a run: {seeds}."]
    elif spread.low is None:
        lines = [
            f"{noise.revision}: {spread.value:.4f} bits per byte is the standard deviation over 2 seeds, which are too "
            "few to conclude from.",
            f"seeds: {seeds}",
        ]
    else:
        mean = np.mean([run.bits_per_byte for run in noise.runs])
        lines = [
            f"{noise.revision}: {spread.value:.4f} bits per byte is the standard deviation over {spread.num_seeds} "
            f"seeds ({100 * confidence:g} % interval {spread.low:.4f} to {spread.high:.4f}); the mean is {mean:.4f}.",
            f"seeds: {seeds}",
            f"smallest change shown in about {100 * POWER:g} % of cases, in bits per byte:",
        ]
        for count, difference in noise.detectable.items():
            of_each = "run " if count == 1 else "runs"
            known = ", if this noise is known to be that of both" if count == 1 else ""
            lines.append(f"  {difference:.4f} with {count} {of_each} of each side{known}")
    if noise.unlike_here:
        lines.append(f"The parameter files have changed since this run, which had: {', '.join(noise.unlike_here)}.")
    return [*lines, *describe_left_out(noise.left_out), *describe_commands(noise)]


def describe_left_out(left_out: list[LeftOut]) -> list[str]:
    """Return a line for each reason, with the number of states that are left out and their names."""
    lines = []
    for reason in dict.fromkeys(each.reason for each in left_out):
        states = [each for each in left_out if each.reason == reason]
        inputs = sorted({path for each in states for path in each.inputs})
        why = f"{reason} ({', '.join(inputs)})" if inputs else reason
        names = ", ".join(each.name for each in states[:6]) + (", …" if len(states) > 6 else "")
        lines.append(f"left out, {why}: {len(states)} ({names})")
    return lines


def describe_commands(noise: Noise) -> list[str]:
    """Return the commands for the missing seeds, after a heading."""
    if not noise.commands:
        return []
    return ["To run the missing seeds:", *(f"  {command}" for command in noise.commands)]


def record(noise: Noise) -> dict:
    """Return what `describe` says as a mapping for JSON."""
    spread = noise.deviation
    values = [run.bits_per_byte for run in noise.runs]
    return {
        "revision": noise.revision,
        "num_seeds": len(noise.runs),
        "bits_per_byte": float(np.mean(values)),
        "standard_deviation": None if spread is None else spread.value,
        "low": None if spread is None else spread.low,
        "high": None if spread is None else spread.high,
        "runs": [{"name": run.name, "seed": run.seed, "bits_per_byte": run.bits_per_byte} for run in noise.runs],
        "detectable_by_runs": [
            {"runs_of_each_side": count, "difference": difference} for count, difference in noise.detectable.items()
        ],
        "left_out": [dataclasses.asdict(each) for each in noise.left_out],
        "unlike_here": noise.unlike_here,
        "commands_for_more_seeds": noise.commands,
    }


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; ParamsError if one is out of range."""
    parser = tool_parser("noise", __doc__)
    parser.add_argument(
        "revisions",
        nargs="*",
        metavar="REV",
        default=[WORKSPACE],
        help="experiments, git revisions, or workspace: the last run in this folder (workspace)",
    )
    parser.add_argument("--confidence", type=float, default=0.95, help="confidence of the intervals (0.95)")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md) and nothing else")
    args = parser.parse_args(argv)
    if not 0.5 <= args.confidence <= 0.999:
        raise ParamsError(f"--confidence is {args.confidence}; it must be from 0.5 to 0.999, such as 0.95")
    return args


@exit_with_status
def main(argv: list[str]) -> None:
    """Print the noise of each revision. Raise IntegrityError if one has no finished run."""
    args = parse(argv)
    known = find_known_runs()
    measured = [measure_noise(name, known, args.confidence) for name in args.revisions]
    if args.json:
        content = {"confidence": args.confidence, "configurations": [record(each) for each in measured]}
        print_json(SCHEMA, content)
        return
    blocks = ["\n".join(describe(each, args.confidence)) for each in measured]
    print("\n\n".join(blocks))
