"""The workflow of pull requests: its steps are read from its file and run here, on a merge like the service's."""

import re
import shlex
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
    """Run a step as the service does, in `bash -e` of a file, with its own environment; what it printed."""
    (workspace.folder.parent / "step.sh").write_text(STEPS[name]["run"])
    return workspace.run("bash", "-e", str(workspace.folder.parent / "step.sh"), **environment).stdout


@pytest.fixture(scope="module")
def pull_request(tmp_path_factory):
    """A repository as the service checks it out: HEAD merges the pull request, dvc.lock is there and no data."""
    workspace = Workspace(tmp_path_factory.mktemp("pull_request") / "repository")
    shutil.copy(ROOT / "dvc.lock", workspace.folder)
    (workspace.folder / ".venv").mkdir()
    (workspace.folder / ".venv" / "ready").touch()  # what make would set up is there: the tests' own environment
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
    """What the measuring step wrote: (summary, outputs)."""
    folder = pull_request.folder.parent
    files = {"GITHUB_STEP_SUMMARY": str(folder / "summary"), "GITHUB_OUTPUT": str(folder / "output")}
    run_step(pull_request, "a small run of both sides", **files)
    return (folder / "summary").read_text(), (folder / "output").read_text()


def section(report: str, title: str) -> str:
    return report.split(f"### {title}\n")[1].split("\n### ")[0]


def test_the_report_says_what_changed_and_what_it_does(measured):
    report, _ = measured
    assert re.search(r"\| params\.yaml +\| train\.peak_lr +\| 0\.01 +\| 0\.02 +\|", section(report, "Parameters"))
    small = section(report, "A small run of both")
    assert re.search(r"\| metrics/eval\.json +\| bits_per_byte +\| [\d.]+ +\| [\d.]+ +\| -?[\d.]+ +\|", small)
    assert re.search(r"\| metrics/train\.json +\| last_val_loss +\|", small)
    assert "stages run again: eval train." in small
    assert "metrics/data.json" not in small and "timing" not in small


def test_the_report_says_that_committed_results_are_not_of_this_change(measured):
    committed = section(measured[0], "Committed results")
    assert "None differs." in committed
    assert re.search(r"`dvc\.lock` was not made with .*: .*\btrain\b.* changed since\.", committed)


def test_nothing_of_the_repository_changed(pull_request, measured):
    status = pull_request.run("git", "status", "--porcelain").stdout.splitlines()
    assert status == ["?? report.md"]
    assert pull_request.run("git", "tag").stdout == ""
    assert not list(pull_request.folder.rglob("PWNED"))


@pytest.mark.slow
def test_a_change_of_words_upon_committed_results_reruns_nothing(pull_request):
    measure = pull_request.run("make", "--no-print-directory", "--dry-run", "measure", "BASE=HEAD^1").stdout
    pull_request.run("git", "switch", "-q", "--detach", "main")
    pull_request.run("dvc", "exp", "run", *shlex.split(measure)[3:])
    pull_request.commit("results")
    readme = pull_request.folder / "README.md"
    readme.write_text(readme.read_text() + "\nA sentence more.\n")
    pull_request.commit("words")
    report = pull_request.run("make", "--silent", "measure", "BASE=HEAD^1").stdout
    pull_request.run("git", "switch", "-q", "main")
    assert report.count("None differs.") == 3
    assert "dvc.lock" not in report
    assert "No stage has to run again." in report


def test_the_report_is_the_comment(pull_request, measured, tmp_path):
    """The step's output, read as the service reads it, is the body of the comment."""
    summary, output = measured
    end = output.partition("\n")[0].removeprefix("report<<")
    assert re.fullmatch(r"[0-9a-f]{32}", end)
    report = output.removeprefix(f"report<<{end}\n").removesuffix(f"\n{end}\n")
    assert report == summary.rstrip("\n")

    (tmp_path / "gh").write_text(FAKE_GH)
    (tmp_path / "gh").chmod(0o755)
    path = f"{tmp_path}:{pull_request.environment['PATH']}"
    environment = {"PATH": path, "SEEN": str(tmp_path), "GITHUB_REPOSITORY": "o/r", "NUMBER": "7", "REPORT": report}
    run_step(pull_request, "comment", **environment)
    assert (tmp_path / "body").read_text() == summary
    assert (tmp_path / "arguments").read_text().split() == [
        "pr", "comment", "7", "--repo", "o/r", "--edit-last", "--create-if-none", "--body-file", "-",
    ]  # fmt: skip


def test_a_revision_that_is_not_there_is_refused(pull_request):
    failed = pull_request.run("make", "--silent", "measure", "BASE=nowhere", check=False)
    assert failed.returncode and "error: nowhere is no revision" in failed.stderr


def test_the_tests_run_and_torch_is_the_pinned_one():
    assert STEPS["tests"]["run"] == "make test"
    command = STEPS["torch without CUDA"]["run"]
    (pattern,) = re.findall(r"grep -o '([^']*)' requirements\.txt", command)
    assert len(re.findall(pattern, (ROOT / "requirements.txt").read_text(), re.M)) == 1
    index = re.search(r"--index-url (\S+)", command).group(1)
    assert f"--index-url {index}" in (ROOT / "docs" / "troubleshooting.md").read_text()


def test_nothing_from_outside_reaches_a_shell():
    for job in JOBS.values():
        for step in job["steps"]:
            assert "${{" not in step.get("run", "")
    assert {value for step in STEPS.values() for value in step.get("env", {}).values()} == {
        "${{ github.token }}", "${{ github.event.pull_request.number }}", "${{ needs.pipeline.outputs.report }}",
    }  # fmt: skip


def test_what_runs_the_pull_request_may_write_nothing():
    assert WORKFLOW[True] == "pull_request"  # YAML 1.1 reads the key `on` as true; never pull_request_target
    assert WORKFLOW["permissions"] == {}
    assert JOBS["pipeline"]["permissions"] == {"contents": "read"}
    assert JOBS["comment"]["permissions"] == {"pull-requests": "write"}
    assert not [step for step in JOBS["comment"]["steps"] if "uses" in step]
    checkout = JOBS["pipeline"]["steps"][0]
    assert checkout["with"] == {"fetch-depth": 0, "persist-credentials": False}


def test_actions_are_pinned_by_commit():
    for job in JOBS.values():
        for step in job["steps"]:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step.get("uses", "actions/x@" + "0" * 40))


def test_the_comment_is_made_of_what_the_measuring_step_put_out():
    assert JOBS["pipeline"]["outputs"] == {"report": "${{ steps.measure.outputs.report }}"}
    assert STEPS["a small run of both sides"]["id"] == "measure"
    assert JOBS["comment"]["needs"] == "pipeline"
    assert "head.repo.full_name == github.repository" in JOBS["comment"]["if"]
