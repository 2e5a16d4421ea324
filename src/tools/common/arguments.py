"""Command line arguments that several tools have."""

import argparse

from lm.core.errors import ParamsError


def tool_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of `python src NAME`; `description` is the tool's docstring, printed as it is."""
    return argparse.ArgumentParser(
        prog=f"python src {name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip


def add_resampling(parser: argparse.ArgumentParser, resamples: int, of: str) -> None:
    """Add --confidence, --resamples and --seed; `of` names what is resampled, `resamples` is the default."""
    parser.add_argument("--confidence", type=float, default=0.95, help="confidence of the intervals (0.95)")
    parser.add_argument("--resamples", type=int, default=resamples, help=f"resamples of the {of} ({resamples})")
    parser.add_argument("--seed", type=int, default=1, help="seed of the resampling (1)")


def check_resampling(args: argparse.Namespace) -> None:
    """Raise ParamsError if an option of `add_resampling` is out of range."""
    if not 0.5 <= args.confidence <= 0.999:
        raise ParamsError(f"--confidence is {args.confidence}, needed: from 0.5 to 0.999, such as 0.95")
    for name, least in (("resamples", 99), ("seed", 0)):
        if getattr(args, name) < least:
            raise ParamsError(f"--{name} is {getattr(args, name)}, needed: at least {least}")
