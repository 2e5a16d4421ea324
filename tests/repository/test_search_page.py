"""The loop of docs/search.md on real runs: a gain is kept, and what is refused or changes nothing is undone."""

import csv

import pytest

from support import ROOT
from support.workspace import Workspace

# Takes the first line of a list of changes, such as `peak_lr 0.03`.
NEXT_CHANGE = """#!/bin/bash
read -r name value < {changes} || exit 1
sed -i 1d {changes}
sed -i "s/^  $name: .*/  $name: $value/" params.yaml
echo "$name=$value"
"""


@pytest.mark.slow
def test_the_loop_keeps_a_gain_and_undoes_all_else(tmp_path):
    page = (ROOT / "docs/search.md").read_text(encoding="utf-8")
    loop = page[page.index("while change=") : page.index("\ndone\n")] + "\ndone\n"
    workspace = Workspace(tmp_path / "repository")
    workspace.make_small()
    changes = tmp_path / "changes"
    changes.write_text("stride_fraction 0.25\npeak_lr 0.03\nlog_every_tokens 512\n")
    program = workspace.folder / "next_change"
    program.write_text(NEXT_CHANGE.format(changes=changes))
    program.chmod(0o755)
    workspace.commit()

    workspace.run("bash", "-uc", loop)

    values = [workspace.get(name) for name in ("eval.stride_fraction", "train.peak_lr", "train.log_every_tokens")]
    assert values == [0.5, 0.03, 1024]
    with open(workspace.folder / "judgements.csv", newline="") as file:
        answers = [(row["change"], row["answer"]) for row in csv.DictReader(file) if row["answer"] != "undecided"]
    assert answers == [
        ("peak_lr=0.03", "keep"),
        ("log_every_tokens=512", "reject"),
    ]
    subjects = workspace.run("git", "log", "--format=%s").stdout.splitlines()
    assert subjects == [
        "log_every_tokens=512: judged",
        "log_every_tokens=512",
        "peak_lr=0.03: judged",
        "peak_lr=0.03",
        "stride_fraction=0.25: judged",
        "stride_fraction=0.25",
        "state",
    ]
    assert workspace.run("git", "status", "--porcelain").stdout == ""
