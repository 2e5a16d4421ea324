"""The workflow of pull requests: its steps are read from its file and run on a merge, as GitHub makes it."""

import re
import shutil

import pytest
import yaml

from support import ROOT
from support.workspace import Workspace

WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "experiments.yml").read_text())
JOBS = WORKFLOW["jobs"]
STEPS = {step["name"]: step for job in JOBS.values() for step in job["steps"] if "name" in step}
BRANCH = 'x";touch${IFS}PWNED;"$(touch${IFS}PWNED)'  # a name that git allows
FAKE_GH = '#!/bin/sh\nprintf "%s\\n" "$@" > "$SEEN/arguments"\ncat > "$SEEN/body"\n'


def run_step(workspace: Workspace, name: str, **environment: str) -> str:
    """Run a step as GitHub does, as a file in `bash -e` with its own environment; return its output."""
    (workspace.folder.parent / "step.sh").write_text(STEPS[name]["run"])
    return workspace.run("bash", "-e", str(workspace.folder.parent / "step.sh"), **environment).stdout


@pytest.fixture(scope="module")
def pull_request(tmp_path_factory):
    """Make a repository as GitHub checks it out: HEAD merges the pull request; there is a dvc.lock but no data."""
    workspace = Workspace(tmp_path_factory.mktemp("pull_request") / "repository")
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


@pytest.fixture(scope="module")
def measured(pull_request):
    """Run the measuring step; return its summary and its outputs."""
    folder = pull_request.folder.parent
    files = {"GITHUB_STEP_SUMMARY": str(folder / "summary"), "GITHUB_OUTPUT": str(folder / "output")}
    run_step(pull_request, "a small run of both sides", **files)
    return (folder / "summary").read_text(), (folder / "output").read_text()


def section(report: str, title: str) -> str:
    return report.split(f"### {title}\n")[1].split("\n### ")[0]


@pytest.mark.slow
def test_the_report_says_what_changed_and_what_it_does(pull_request, measured):
    report, _ = measured
    assert re.search(r"\| params\.yaml +\| train\.peak_lr +\| 0\.01 +\| 0\.02 +\|", section(report, "Parameters"))
    small = section(report, "A small run of both")
    assert re.search(r"\| metrics/eval\.json +\| bits_per_byte +\| [\d.]+ +\| [\d.]+ +\| -?[\d.]+ +\|", small)
    assert "The change reruns these stages: eval plot train." in small and "metrics/data.json" not in small
    committed = section(report, "Committed results")
    assert re.search(r"`dvc\.lock` was not made with .*: changed since: .*\btrain\b", committed)
    assert pull_request.run("git", "status", "--porcelain").stdout.splitlines() == ["?? report.md"]
    assert not list(pull_request.folder.rglob("PWNED"))


@pytest.mark.slow
def test_the_comment_is_the_report(pull_request, measured, tmp_path):
    """The body of the comment is the step's output as GitHub reads it."""
    summary, output = measured
    end = output.partition("\n")[0].removeprefix("report<<")
    report = output.removeprefix(f"report<<{end}\n").removesuffix(f"\n{end}\n")
    (tmp_path / "gh").write_text(FAKE_GH)
    (tmp_path / "gh").chmod(0o755)
    path = f"{tmp_path}:{pull_request.environment['PATH']}"
    environment = {"PATH": path, "SEEN": str(tmp_path), "GITHUB_REPOSITORY": "o/r", "NUMBER": "7", "REPORT": report}
    run_step(pull_request, "comment", **environment)
    assert (tmp_path / "body").read_text() == summary
    assert (tmp_path / "arguments").read_text().split()[:5] == ["pr", "comment", "7", "--repo", "o/r"]


def test_an_unknown_revision_is_refused(pull_request):
    failed = pull_request.run(".github/measure.sh", "nowhere", check=False)
    assert failed.returncode and "error: nowhere is not a revision" in failed.stderr


def test_the_tests_run_and_torch_is_the_pinned_one():
    assert STEPS["tests"]["run"] == "make test"
    command = STEPS["torch without CUDA"]["run"]
    (pattern,) = re.findall(r"grep -o '([^']*)' requirements/bits\.txt", command)
    assert len(re.findall(pattern, (ROOT / "requirements/bits.txt").read_text(), re.M)) == 1
    index = re.search(r"--index-url (\S+)", command).group(1)
    assert f"--index-url {index}" in (ROOT / "docs" / "troubleshooting.md").read_text()


def test_no_outside_text_reaches_a_shell_and_actions_are_pinned_by_commit():
    for step in [step for job in JOBS.values() for step in job["steps"]]:
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
