"""Command line arguments that several tools have."""

import argparse
import math


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
