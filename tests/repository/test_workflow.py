"""The workflows of GitHub: no foreign text or code gets rights."""

import re

import pytest
import yaml

from support import ROOT

WORKFLOWS = {}
for path in (ROOT / ".github" / "workflows").glob("*.yml"):
    WORKFLOWS[path.stem] = yaml.safe_load(path.read_text())
EXPERIMENTS = WORKFLOWS["experiments"]
JOBS = EXPERIMENTS["jobs"]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_no_outside_text_reaches_a_shell_and_actions_are_pinned_by_commit(name):
    for job in WORKFLOWS[name]["jobs"].values():
        for step in job["steps"]:
            assert "${{" not in step.get("run", "")
            if "uses" in step:
                assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"])


def test_the_job_that_runs_the_pull_request_cannot_write_and_the_one_that_comments_runs_no_foreign_code():
    event = EXPERIMENTS[True]  # YAML 1.1 reads the key `on` as true
    assert event == "pull_request"  # never pull_request_target
    assert EXPERIMENTS["permissions"] == {}
    pipeline = JOBS["pipeline"]
    assert pipeline["permissions"] == {"contents": "read"}
    checkout = pipeline["steps"][0]
    assert checkout["with"] == {"fetch-depth": 0, "persist-credentials": False}
    comment = JOBS["comment"]
    assert comment["permissions"] == {"pull-requests": "write"}
    assert "head.repo.full_name == github.repository" in comment["if"]
    assert not [step for step in comment["steps"] if "uses" in step]
