"""Find the parameters in the files that differ from the last commit."""

from lm.core.errors import UserError
from lm.core.git import git
from lm.core.params import parse_yaml, read_yaml
from tools.common.parameters import SELECTORS, Difference, differences, flatten
from tools.common.paths import PARAMS, PRESETS, SOURCES

MOST_NAMED = 8


def describe_difference_from_head() -> str:
    """Return "differs from HEAD: train.seed 1 → 2, …", or "" if nothing differs, or Git cannot tell.

    `dvc exp run -S` keeps the changes of the run before it, so an experiment may have more of them than it names.
    """
    try:
        changed = differences_from_head()
    except UserError:
        return ""
    named = [f"{each.name} {each.committed} → {each.now}" for each in changed[:MOST_NAMED]]
    if len(changed) > MOST_NAMED:
        named.append(f"and {len(changed) - MOST_NAMED} more")
    return f"differs from HEAD: {', '.join(named)}" if named else ""


def differences_from_head() -> list[Difference]:
    """Return the values of params.yaml, and of the presets and the source that it selects, that are not committed."""
    committed = {path: git("show", f"HEAD:./{path}") for path in (PARAMS, PRESETS, SOURCES)}
    here = {path: path.read_text(encoding="utf-8").strip() for path in committed}
    edited = {path: text for path, text in committed.items() if text not in (None, here[path])}
    if not edited:
        return []
    params = flatten(read_yaml(PARAMS))
    selected = tuple(f"{section}.{params.get(selector)}." for selector, section in SELECTORS.items())
    found = []
    for path, text in edited.items():
        changed = differences(flatten(parse_yaml(text, str(path))), flatten(read_yaml(path)))
        found += [each for each in changed if path == PARAMS or each.name.startswith(selected)]
    return found
