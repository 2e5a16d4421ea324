"""Command line arguments that several tools have."""

import argparse
import math

from lm.core.errors import ParamsError


def tool_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Create the parser of `python src NAME`; its help shows `description`, the docstring of the tool, unchanged."""
    as_it_is = {"description": description, "formatter_class": argparse.RawDescriptionHelpFormatter}
    return argparse.ArgumentParser(f"python src {name}", allow_abbrev=False, **as_it_is)


def count(text: str) -> int:
    """Parse a count, a step or a seed."""
    number = int(text)
    if not 0 <= number < 2**62:
        raise argparse.ArgumentTypeError(f"is {text}; it must be a whole number from 0 to below 2^62")
    return number


def finite(text: str) -> float:
    """Parse a finite number."""
    number = float(text)
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"is {text}; it must be a finite number")
    return number


def add_resampling(parser: argparse.ArgumentParser, resamples: int, of: str) -> None:
    """Add --confidence, --resamples and --seed; `of` names what is resampled, `resamples` is the default."""
    parser.add_argument("--confidence", type=float, default=0.95, help="confidence of the intervals (0.95)")
    parser.add_argument("--resamples", type=int, default=resamples, help=f"resamples of the {of} ({resamples})")
    parser.add_argument("--seed", type=int, default=1, help="seed of the resampling (1)")


def check_resampling(args: argparse.Namespace) -> None:
    """Raise ParamsError if an option of `add_resampling` is out of range, or there are too few resamples."""
    if not 0.5 <= args.confidence <= 0.999:
        raise ParamsError(f"--confidence is {args.confidence}; it must be from 0.5 to 0.999, such as 0.95")
    # Each tail outside the interval must hold at least one resample.
    least = max(99, math.ceil(2 / (1 - args.confidence) - 1 - 1e-6))
    if args.resamples < least:
        raise ParamsError(
            f"--resamples is {args.resamples}; it must be at least {least} at --confidence {args.confidence}"
        )
    if args.seed < 0:
        raise ParamsError(f"--seed is {args.seed}; it must be at least 0")
