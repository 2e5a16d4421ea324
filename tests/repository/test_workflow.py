"""The workflows of GitHub.

The steps of the one for pull requests are read from its file and run on a merge, as GitHub makes it.
"""

import re
import shutil

import pytest
import yaml

from support import ROOT
from support.workspace import Workspace

WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
WORKFLOW = WORKFLOWS["experiments"]
JOBS = WORKFLOW["jobs"]
BRANCH = 'x";touch${IFS}PWNED;"$(touch${IFS}PWNED)'  # a name that git allows


@pytest.fixture
def pull_request(tmp_path):
    """Make a repository as GitHub checks it out: HEAD merges the pull request; there is a dvc.lock but no data."""
    workspace = Workspace(tmp_path / "repository")
    shutil.copy(ROOT / "dvc.lock", workspace.folder)
    (workspace.folder / ".venv").mkdir()
    (workspace.folder / ".venv" / "ready").touch()  # the tests' environment stands for the one that make creates
    workspace.commit("base")
    workspace.run("git", "switch", "-q", "-c", BRANCH)
    workspace.change(**{"train.peak_lr": 0.02})
    workspace.commit("change")
    workspace.run("git", "switch", "-q", "main")
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    workspace.run("git", *identity, "merge", "-q", "--no-ff", "-m", "merge", BRANCH)
    return workspace


def section(report: str, title: str) -> str:
    return report.split(f"### {title}\n")[1].split("\n### ")[0]


@pytest.mark.slow
def test_the_report_says_what_changed_and_what_it_does(pull_request, tmp_path):
    """The step is a file in `bash -e`, as on GitHub."""
    steps = {step.get("name"): step for step in JOBS["pipeline"]["steps"]}
    (tmp_path / "step.sh").write_text(steps["a small run of both sides"]["run"])
    files = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "GITHUB_OUTPUT": str(tmp_path / "output")}
    pull_request.run("bash", "-e", str(tmp_path / "step.sh"), **files)
    report = (tmp_path / "summary").read_text()
    assert re.search(r"\| params\.yaml +\| train\.peak_lr +\| 0\.01 +\| 0\.02 +\|", section(report, "Parameters"))
    small = section(report, "A small run of both")
    assert re.search(r"\| metrics/eval\.json +\| bits_per_byte +\| [\d.]+ +\| [\d.]+ +\| -?[\d.]+ +\|", small)
    assert "The change reruns these stages: eval plot train." in small and "metrics/data.json" not in small
    committed = section(report, "Committed results")
    assert re.search(r"`dvc\.lock` was not made with .*: changed since: .*\btrain\b", committed)
    assert pull_request.run("git", "status", "--porcelain").stdout.splitlines() == ["?? report.md"]
    assert not list(pull_request.folder.rglob("PWNED"))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_no_outside_text_reaches_a_shell_and_actions_are_pinned_by_commit(name):
    jobs = WORKFLOWS[name]["jobs"]
    for step in [step for job in jobs.values() for step in job["steps"]]:
        assert "${{" not in step.get("run", "")
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step.get("uses", "actions/x@" + "0" * 40))


def test_the_job_that_runs_the_pull_request_cannot_write():
    assert WORKFLOW[True] == "pull_request"  # YAML 1.1 reads the key `on` as true; never pull_request_target
    assert WORKFLOW["permissions"] == {}
    assert JOBS["pipeline"]["permissions"] == {"contents": "read"}
    assert JOBS["comment"]["permissions"] == {"pull-requests": "write"}
    assert not [step for step in JOBS["comment"]["steps"] if "uses" in step]
    assert JOBS["pipeline"]["steps"][0]["with"] == {"fetch-depth": 0, "persist-credentials": False}
    assert "head.repo.full_name == github.repository" in JOBS["comment"]["if"]


def test_every_night_the_slow_suites_run():
    suite = WORKFLOWS["nightly"]["jobs"]["suite"]
    targets = suite["strategy"]["matrix"]["target"]
    makefile = (ROOT / "Makefile").read_text()

    assert {"test-slow", "test-numerics"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M), target
    assert WORKFLOWS["nightly"]["permissions"] == {"contents": "read"}
