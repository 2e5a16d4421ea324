"""action.yml: a step for GitHub that installs the command, compares tables and writes the job's summary."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import yaml

from support import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())


def test_inputs_reach_the_shell_as_variables_alone():
    """The keys are those that GitHub's schema of an action asks for."""
    assert {"name", "description", "inputs", "runs"} == set(ACTION)
    assert ACTION["runs"]["using"] == "composite"
    (step,) = ACTION["runs"]["steps"]
    assert step["shell"] == "bash"
    assert "${{" not in step["run"]
    assert set(step["env"].values()) == {f"${{{{ inputs.{name} }}}}" for name in ACTION["inputs"]}


@pytest.mark.slow
def test_the_step_writes_the_answer_to_the_summary_and_fails_as_the_command_does(tmp_path):
    # The commit of the action, beside which setuptools writes; the packages that it needs are those of this Python.
    action = tmp_path / "action"
    shutil.copytree(ROOT / "src/evidence", action / "src/evidence")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy2(ROOT / name, action)
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    job = tmp_path / "job"
    job.mkdir()
    for name, loss in (("base", 100), ("wider", 99)):
        rows = [f"{name},{i},{loss + i % 7},{100 + i}" for i in range(40)]
        Path(job, f"{name}.csv").write_text("\n".join(["run,document,nats,utf8_bytes", *rows]) + "\n")

    def run_step(tables: str, options: str) -> int:
        variables = {
            "PYTHONPATH": sysconfig.get_path("purelib"),
            "TABLES": tables,
            "OPTIONS": options,
            "GITHUB_ACTION_PATH": str(action),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
            "RUNNER_TEMP": str(tmp_path),
        }
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", ACTION["runs"]["steps"][0]["run"]]
        return subprocess.run(shell, cwd=job, env={**os.environ, **offline, **variables}).returncode

    statuses = [
        run_step("*.csv", "--require better"),
        run_step("wider.csv base.csv", "--require better"),
        run_step("none.csv", ""),
    ]

    assert statuses == [0, 1, 2]
    better, worse, error = (tmp_path / "summary.md").read_text().removeprefix("```text\n").split("\n```\n```text\n")
    assert "The model `wider` is better than the model `base`" in better
    assert "The model `base` is worse than the model `wider`" in worse
    assert error.startswith("error: none.csv: cannot be read")
