"""Try changes of parameters one after the other, and keep those that `judge` keeps.

    python src search_example extras/search_example/changes.txt

Each line is one change, such as `train.peak_lr=0.012`. It is committed and judged against the commit before. What is
not kept is undone by another commit, so that history keeps what was tried. If the machine fails, the search stops.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from lm.core.errors import EnvironmentFailure, ParamsError, exit_with_status
from lm.core.params import read_yaml
from lm.core.paths import PARAMS
from tools.common.parameters import comment_keeping_yaml

KEPT = 0
ANSWERS = {KEPT: "kept", 1: "rejected", 2: "refused", 3: "undecided", 4: "refused", 6: "crashed"}


def section_of(params: dict, change: str) -> tuple[dict, str, str]:
    """Return the section that a change is in, the key there, and the value. ParamsError if it is not a change."""
    name, equals, value = change.partition("=")
    if not equals:
        raise ParamsError(f"the line {change!r} is not a change; it must be NAME=VALUE, such as train.peak_lr=0.012")
    *sections, key = name.split(".")
    section = params
    for each in sections:
        section = section.get(each) if isinstance(section, dict) else None
    if not isinstance(section, dict) or key not in section:
        raise ParamsError(f"{name} is not in {PARAMS}")
    return section, key, value


def change_parameter(change: str) -> None:
    """Change a parameter in params.yaml, and keep its comments."""
    editor = comment_keeping_yaml()
    params = editor.load(PARAMS.read_text(encoding="utf-8"))
    section, key, value = section_of(params, change)
    section[key] = editor.load(value)
    editor.dump(params, PARAMS)


def git(*words: str) -> None:
    subprocess.run(["git", *words], check=True)


@exit_with_status
def main(argv: list[str]) -> None:
    """Try each change of a file."""
    parser = argparse.ArgumentParser("python src search_example", description=__doc__)
    parser.add_argument("changes", type=Path, help="file with a change on each line")
    lines = parser.parse_args(argv).changes.read_text(encoding="utf-8").splitlines()
    changes = [line for line in lines if line]

    # Find a wrong line before the first one is tried.
    params = read_yaml(PARAMS)
    for change in changes:
        section_of(params, change)

    for change in changes:
        change_parameter(change)
        git("commit", "--quiet", "--all", "--message", change)
        status = subprocess.run([sys.executable, "src", "judge", "HEAD~1", "--go-on"]).returncode
        if status not in ANSWERS:
            remedy = "repair what is said above, and run `python src judge HEAD~1 --go-on`"
            raise EnvironmentFailure(f"{change} is committed, and was not judged (status {status}); {remedy}")
        if status != KEPT:
            git("revert", "--no-commit", "HEAD")
        git("add", "--all")
        git("commit", "--quiet", "--allow-empty", "--message", f"{change}: {ANSWERS[status]}")
        print(f"{change}: {ANSWERS[status]}", flush=True)
