"""The workflows of GitHub.

The steps of the one for pull requests are read from its file and run on a merge, as GitHub makes it.
"""

import re
import shutil

import pytest
import yaml

from support import ROOT
from support.workspace import Workspace

WORKFLOWS = {}
for path in (ROOT / ".github" / "workflows").glob("*.yml"):
    WORKFLOWS[path.stem] = yaml.safe_load(path.read_text())
EXPERIMENTS = WORKFLOWS["experiments"]
JOBS = EXPERIMENTS["jobs"]
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
    after_heading = report.split(f"### {title}\n")[1]
    return after_heading.split("\n### ")[0]


def row(*cells: str) -> str:
    """Return the pattern of a row of a Markdown table."""
    return r"\| " + r" +\| ".join(cells) + r" +\|"


NUMBER = r"-?[\d.]+"


@pytest.mark.slow
def test_the_report_says_what_changed_and_what_it_does(pull_request, tmp_path):
    """The step is a file in `bash -e`, as on GitHub."""
    (step,) = [step for step in JOBS["pipeline"]["steps"] if step.get("name") == "a small run of both sides"]
    script = tmp_path / "step.sh"
    script.write_text(step["run"])
    summary = tmp_path / "summary"
    output = tmp_path / "output"

    pull_request.run("bash", "-e", str(script), GITHUB_STEP_SUMMARY=str(summary), GITHUB_OUTPUT=str(output))

    report = summary.read_text()
    parameters = section(report, "Parameters")
    assert re.search(row(r"params\.yaml", r"train\.peak_lr", r"0\.01", r"0\.02"), parameters)
    small_run = section(report, "A small run of both")
    assert re.search(row(r"metrics/eval\.json", "bits_per_byte", NUMBER, NUMBER, NUMBER), small_run)
    assert "The change reruns these stages: eval plot train." in small_run
    assert "metrics/data.json" not in small_run
    committed = section(report, "Committed results")
    assert re.search(r"`dvc\.lock` was not made with .*: changed since: .*\btrain\b", committed)
    assert pull_request.run("git", "status", "--porcelain").stdout.splitlines() == ["?? report.md"]
    assert not list(pull_request.folder.rglob("PWNED"))


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


def test_every_night_the_slow_suites_run():
    nightly = WORKFLOWS["nightly"]
    makefile = (ROOT / "Makefile").read_text()

    targets = nightly["jobs"]["suite"]["strategy"]["matrix"]["target"]

    assert {"test-slow", "test-numerics"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M), target
    assert nightly["permissions"] == {"contents": "read"}
