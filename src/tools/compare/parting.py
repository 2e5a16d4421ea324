"""Say where two runs of the same parameters and data part, by the digests of their states at each validation."""

import itertools
from typing import NamedTuple

from tools.compare.runs import Group, Run

CODE = ("src/", "requirements")  # inputs that may differ: whether they change the bits is the question


class Parting(NamedTuple):
    """How long two runs, `a` and `b` by name, had the same bits, and what differs then."""

    a: str
    b: str
    until: str  # "identical", "identical until step 400" or "different from step 0 on"
    then: str = ""  # the first validation that differs, "" if the runs are identical


def partings(a: Group, b: Group) -> list[Parting]:
    """Return where each run of `a` parts from each of `b` that it can be compared with; [] if there is none."""
    found = (parting(x, y) for x, y in itertools.product(a.runs, b.runs))
    return [each for each in found if each is not None]


def parting(a: Run, b: Run) -> Parting | None:
    """Return where two runs part; None if parameters or data differ, or if a run records no digests."""
    rows = [*a.validations, *b.validations]
    recorded = a.validations and b.validations and all(row.get("state_digest") for row in rows)
    if not recorded or a.params != b.params or _data(a) != _data(b):
        return None
    until = "different from step 0 on"
    for x, y in zip(a.validations, b.validations, strict=False):
        if x != y:
            return Parting(a.name, b.name, until, _difference(x, y))
        until = f"identical until step {x['step']}"
    if len(a.validations) != len(b.validations):
        shorter = min(a, b, key=lambda run: len(run.validations))
        return Parting(a.name, b.name, until, f"the last validation of `{shorter.name}`")
    return Parting(a.name, b.name, "identical")


def _difference(x: dict[str, str], y: dict[str, str]) -> str:
    """Describe the first validation whose rows differ."""
    losses, digests = (x["val_loss"], y["val_loss"]), (x["state_digest"], y["state_digest"])
    loss = f"both have the validation loss {losses[0]}"
    if losses[0] != losses[1]:
        loss = f"the validation losses are {losses[0]} and {losses[1]}"
    digest = f"the digests of the state are {digests[0]} and {digests[1]}"
    if digests[0] == digests[1]:
        digest = f"the digest of the state is {digests[0]} in both"
    return f"at step {x['step']} {loss}, and {digest}"


def _data(run: Run) -> dict[str, str]:
    """Return the hashes of the data that a run read."""
    return {path: md5 for path, md5 in run.inputs.items() if not path.startswith(CODE)}
