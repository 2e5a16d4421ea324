"""Show the noise of training seeds that is known here, and the smallest change that more runs would show.

    python src noise
    python src noise main my-experiment --json

It reads the scores of all finished experiments, of HEAD, branches and tags, and of the workspace. Runs count whose
configuration is that of REV except for train.seed. It trains nothing, and prints the command for missing seeds.
"""

import argparse
import dataclasses

from evidence.noise import NOISE, Noise, ScoredRun, describe, measure_noise, noise_record
from evidence.record import print_json
from lm.core.errors import IntegrityError, ParamsError, exit_with_status
from tools.common.arguments import tool_parser
from tools.common.parameters import differences
from tools.common.paths import LOCK, VALIDATION
from tools.common.runs import (
    WORKSPACE,
    KnownRun,
    KnownRuns,
    Revision,
    find_known_runs,
    read_known_run,
)
from tools.common.seeds import START, free_name, missing_seeds, queue_commands, settings_of

SCHEMA = NOISE
OTHER_PARAMETERS = "other parameters"
OTHER_INPUTS = "other code or data"
SAME_SEED = "the same seed with another score"
NO_RESULTS = "no finished run"
VALIDATED = str(VALIDATION)  # the tokens that a run was scored on


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A known state that does not count, and why."""

    name: str
    reason: str
    inputs: list[str]  # that differ, with OTHER_INPUTS


@dataclasses.dataclass(frozen=True)
class KnownNoise:
    """The noise of a revision's configuration, and what is known of other states."""

    noise: Noise
    left_out: list[LeftOut]
    commands: list[str]  # that run the missing seeds
    unlike_here: list[str]  # parameters of the files in this folder that the runs do not have


def find_noise(name: str, known: KnownRuns, confidence: float) -> KnownNoise:
    """Return how far seeds spread the score of a revision's configuration.

    Raise IntegrityError if the revision has no finished run.
    """
    reference = read_known_run(Revision(name))
    if reference is None:
        raise IntegrityError(f"{name}: {LOCK} and the metrics are not those of one finished run; run `dvc repro`")

    # Count one run for each seed. One with the same seed and score is the same run in another place.
    runs = [reference]
    left_out: list[LeftOut] = []
    others: dict[str, dict[int, ScoredRun]] = {}  # other configurations with the same validation text: seed → run
    for run in known.runs:
        has_other_configuration = run.configuration != reference.configuration
        if has_other_configuration and run.inputs.get(VALIDATED) == reference.inputs.get(VALIDATED):
            others.setdefault(run.configuration, {}).setdefault(run.seed, scored(run))
        if run.parameters != reference.parameters:
            left_out.append(LeftOut(run.name, OTHER_PARAMETERS, []))
        elif run.configuration != reference.configuration:
            inputs = sorted(each.name for each in differences(reference.inputs, run.inputs))
            left_out.append(LeftOut(run.name, OTHER_INPUTS, inputs))
        elif run.seed not in [other.seed for other in runs]:
            runs.append(run)
        elif (run.seed, run.bits_per_byte) not in [(other.seed, other.bits_per_byte) for other in runs]:
            left_out.append(LeftOut(run.name, SAME_SEED, []))
    left_out += [LeftOut(state, NO_RESULTS, []) for state in known.without_results]
    runs.sort(key=lambda run: run.seed)
    pairs = [list(by_seed.values()) for by_seed in others.values()]
    noise = measure_noise(name, [scored(run) for run in runs], pairs, confidence)

    # Name the commands for the missing runs.
    used = [run.seed for run in runs]
    seeds = missing_seeds(used, [used])
    commands = []
    if seeds:
        experiment = free_name(name, known.experiment_names)
        commands = [*queue_commands(name, reference.params, reference.inputs, seeds, experiment), START]
    unlike_here = (settings_of(reference.params) or []) if name == WORKSPACE else []
    return KnownNoise(noise, left_out, commands, unlike_here)


def scored(run: KnownRun) -> ScoredRun:
    return ScoredRun(run.name, run.seed, run.bits_per_byte)


def describe_known(known: KnownNoise, confidence: float) -> list[str]:
    """Return what the command prints about one revision."""
    lines = describe(known.noise, confidence)
    if known.unlike_here:
        lines.append(f"The parameter files have changed since this run, which had: {', '.join(known.unlike_here)}.")
    lines += describe_left_out(known.left_out)
    if known.commands:
        lines += ["To run the missing seeds:", *(f"  {command}" for command in known.commands)]
    return lines


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


def record(known: KnownNoise) -> dict:
    """Return what `describe_known` says as a mapping for JSON."""
    return noise_record(known.noise) | {
        "left_out": [dataclasses.asdict(each) for each in known.left_out],
        "unlike_here": known.unlike_here,
        "commands_for_more_seeds": known.commands,
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
    """Print the noise of each revision. Raise IntegrityError if a revision has no finished run."""
    args = parse(argv)
    known = find_known_runs()
    measured = [find_noise(name, known, args.confidence) for name in args.revisions]
    if args.json:
        content = {"confidence": args.confidence, "configurations": [record(each) for each in measured]}
        print_json(SCHEMA, content)
        return
    blocks = ["\n".join(describe_known(each, args.confidence)) for each in measured]
    print("\n\n".join(blocks))
