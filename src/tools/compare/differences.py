"""What differs between recorded runs beside their losses."""

from collections.abc import Mapping

from evidence.runs import Group
from tools.common.parameters import Difference, differences
from tools.common.runs import DIGEST, SEED, Run


def what_differs(a: Group[Run], b: Group[Run]) -> list[Difference]:
    """Return rows (name, value of A, value of B) of parameters and inputs that differ."""
    rows = different_parameters(a, b)
    for path, files, md5, other_md5 in different_inputs(a, b):
        name = f"{path}: {', '.join(files)}" if files else path
        rows.append(Difference(name, md5[:10], other_md5[:10]))
    return rows


def different_parameters(a: Group[Run], b: Group[Run]) -> list[Difference]:
    """Return rows (name, value of A, value of B); the seed only between two single runs, as a group has several."""
    rows = sorted(differences(a.runs[0].params, b.runs[0].params))
    if len(a.runs) + len(b.runs) > 2:
        rows = [row for row in rows if row.name != SEED]
    return rows


def different_inputs(a: Group[Run], b: Group[Run]) -> list[tuple[str, list[str], str, str]]:
    """Return rows (path, files of a folder of code that differ, md5 of A, md5 of B) of code and data."""
    first = a.runs[0]
    other = b.runs[0]
    rows = []
    for path, md5, other_md5 in sorted(differences(first.inputs, other.inputs)):
        files = changed_files(first.code.get(path, {}), other.code.get(path, {}))
        rows.append((path, files, str(md5), str(other_md5)))
    return rows


def changed_files(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """Return the names of the files that two versions of a folder do not share; [] if one of them is not known."""
    if not a or not b:
        return []
    return sorted(each.name for each in differences(a, b))


def same_until(a: Run, b: Run) -> str | None:
    """Say until which validation two runs of equal parameters and data had the same bits, and what differs then.

    Return None for other runs, and without recorded digests of the checkpoints.
    """
    have_digests = all(run.validations and all(row.get(DIGEST) for row in run.validations) for run in (a, b))
    if not have_digests or a.params != b.params or a.data != b.data:
        return None
    until = "different from step 0 on"
    for x, y in zip(a.validations, b.validations, strict=False):
        if x != y:
            losses = f"validation losses {x['val_loss']} and {y['val_loss']}"
            if x[DIGEST] == y[DIGEST]:
                cause = "the machine" if a.inputs == b.inputs else "the code"
                return f"equal weights at step {x['step']} (digest {x[DIGEST]}), other {losses}: {cause} differs"
            return f"{until}; step {x['step']} has the {losses}, digests {x[DIGEST]} and {y[DIGEST]}"
        until = f"identical until step {x['step']}"
    if len(a.validations) == len(b.validations):
        return "identical"
    shorter = min(a, b, key=lambda run: len(run.validations))
    return f"{until}, the last validation of `{shorter.name}`"
