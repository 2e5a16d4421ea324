"""The documented job's last lines, which need no Slurm: they requeue it only after an exit code that may pass."""

import os
import subprocess

import pytest
from test_slurm import RECIPE


@pytest.mark.parametrize(
    ("code", "restarts", "is_requeued"),
    [(0, 0, False), (2, 0, False), (5, 0, True), (6, 0, False), (137, 3, True), (143, 19, True), (143, 20, False)],
)
def test_a_job_is_requeued_after_a_stop_and_a_lost_rank_only_and_twenty_times_at_most(code, restarts, is_requeued):
    commands = f"scontrol() {{ echo $*; }}\n(exit {code})\n"
    last_lines = RECIPE[RECIPE.index("code=$?") :]
    environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
    if not restarts:
        del environment["SLURM_RESTART_COUNT"]  # Slurm sets it from the second start on
    done = subprocess.run(["bash", "-c", commands + last_lines], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (code, "requeue 7" if is_requeued else ""), done.stderr
