"""The arguments of the tools whose intervals come from resampling."""

import argparse

from lm.core.errors import ParamsError


def add_resampling(parser: argparse.ArgumentParser, resamples: int, of: str) -> None:
    """Add --confidence, --resamples, so many unless told, `of` the documents or whatever it is, and --seed."""
    parser.add_argument("--confidence", type=float, default=0.95, help="of the intervals (0.95)")
    parser.add_argument("--resamples", type=int, default=resamples, help=f"of the {of} ({resamples})")
    parser.add_argument("--seed", type=int, default=1, help="of the resampling (1)")


def check_resampling(args: argparse.Namespace) -> None:
    """Raise ParamsError for values with which no interval can be drawn."""
    if not 0.5 <= args.confidence <= 0.999:
        raise ParamsError(f"--confidence is {args.confidence}, needed: from 0.5 to 0.999, such as 0.95")
    for name, least in (("resamples", 99), ("seed", 0)):
        if getattr(args, name) < least:
            raise ParamsError(f"--{name} is {getattr(args, name)}, needed: at least {least}")
