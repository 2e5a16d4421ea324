"""Test the board of `python src submit`: claims, heartbeats, lost workers and cancelled experiments."""

import threading
import time
from types import SimpleNamespace

import pytest

from extras.submit import submit as cli
from extras.submit import worker
from extras.submit.board import Board, Record, open_board, run
from lm.core.errors import EnvironmentFailure, ParamsError

LOST_AFTER_S = 60


@pytest.fixture
def board(tmp_path):
    """Return a board with the experiments a and b, whose stash commits are those of two branches."""
    home, remote = tmp_path / "home", tmp_path / "remote.git"
    run("git", "init", "-q", "-b", "main", str(home))
    run("git", "init", "-q", "--bare", str(remote))
    run("git", "remote", "add", "origin", str(remote), folder=home)
    with open_board(home) as board:
        tree = board.git("mktree", text="").strip()
        board.send({name: board.git("commit-tree", tree, "-m", name).strip() for name in "ab"})
        yield board


@pytest.fixture
def other(board, tmp_path):
    """Return the same board as another machine sees it."""
    with open_board(tmp_path / "home") as other:
        yield other


def claim(board: Board, worker: str):
    return board.claim_next(worker, LOST_AFTER_S)


@pytest.mark.parametrize("message", ["no JSON", '["sleeping", "one"]', "{}"])
def test_a_malformed_state_is_skipped_and_named(board, other, capsys, message):
    tree = board.git("mktree", text="").strip()
    rev = board.git("commit-tree", tree, "-m", message).strip()
    board.git("push", "-q", board.url, f"{rev}:refs/submit/state/a")
    assert claim(other, "one").name == "b" and list(other.experiments()) == ["b"]
    assert "warning: refs/submit/state/a is not a state of `submit`; `git push" in capsys.readouterr().err


def test_of_two_workers_that_saw_an_experiment_queued_one_gets_it(board, other):
    seen, seen_too = board.experiments()["a"], other.experiments()["a"]
    assert board.write(seen, Record("running", "one"))
    assert other.write(seen_too, Record("running", "two")) is None
    assert other.experiments()["a"].record.worker == "one"


def test_a_lost_experiment_is_claimed_again_and_its_worker_may_not_write_any_more(board, other, monkeypatch):
    running = claim(board, "one")
    board.write(board.experiments()["b"], Record("done", "one"))
    assert claim(other, "two") is None
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + LOST_AFTER_S + 5)
    assert other.experiments()["a"].shown_state(LOST_AFTER_S) == "lost"
    assert other.experiments()["b"].shown_state(LOST_AFTER_S) == "done"
    assert claim(other, "two").record.worker == "two"
    assert board.write(running, Record("done", "one")) is None


@pytest.mark.slow
def test_a_heartbeat_carries_the_log_and_a_released_experiment_is_queued_again(board, other):
    running = claim(board, "one")
    running = board.write(running, running.record, "step 1\nstep 2\n")
    assert other.log(other.experiments()["a"]) == "step 1\nstep 2\n"
    assert board.release(running)
    assert other.experiments()["a"].record.state == "queued"


def test_a_remote_that_does_not_answer_is_no_lost_claim(board, tmp_path):
    running = claim(board, "one")
    (tmp_path / "remote.git").rename(tmp_path / "away.git")
    with pytest.raises(EnvironmentFailure, match=r"remote\.git: the Git remote did not take refs/submit/state/a"):
        board.write(running, running.record)


class NoCheckpoints:
    """Count the copies of training checkpoints instead of making them."""

    def __init__(self, repository, name):
        self.copies = 0

    def save(self, runs):
        self.copies += 1

    def delete(self):
        self.copies = None


@pytest.fixture
def job(board, tmp_path, monkeypatch):
    """Return the job of experiment a, whose commands take half a second, or 30 if it is to be stopped."""
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setattr(worker, "SavedCheckpoints", NoCheckpoints)
    monkeypatch.setattr(worker, "POLL_S", 0.05)
    job = worker.Job(board, claim(board, "one"), SimpleNamespace(heartbeat=0.2, save_every=60), threading.Event())
    job.clone.mkdir(parents=True)
    job.command = ("sleep", "0.5")
    supervise = job.supervise
    monkeypatch.setattr(job, "prepare", lambda: None)
    monkeypatch.setattr(job, "supervise", lambda *command: supervise(*job.command))
    return job


def test_a_worker_that_is_asked_to_stop_saves_the_states_and_releases_the_experiment(job, other):
    job.command = ("sleep", "30")
    threading.Timer(0.3, job.stop.set).start()
    job.run()
    assert job.checkpoints.copies == 2  # one at the start, one at the end
    assert other.experiments()["a"].record.state == "queued"


def test_a_git_remote_that_is_silent_for_a_while_delays_the_end(job, other, tmp_path, capsys):
    away = (tmp_path / "remote.git").rename(tmp_path / "away.git")
    threading.Timer(2.0, away.rename, [tmp_path / "remote.git"]).start()
    job.run()
    assert other.experiments()["a"].record == Record("done", "one") and job.checkpoints.copies is None
    assert "warning: " in capsys.readouterr().err


@pytest.mark.slow
def test_saved_states_go_to_another_machine(tmp_path):
    from dvc.repo import Repo

    home = tmp_path / "home"
    run("git", "init", "-q", str(home))
    Repo.init(str(home)).close()
    (home / ".dvc/config").write_text(f"[core]\nremote = r\n['remote \"r\"']\nurl = {tmp_path}/remote\n")
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "f1").mkdir(parents=True)
    for name in ("checkpoint-1.pt", "checkpoint-1.json", ".lock"):
        (here / "f1" / name).write_text(name)
    states = worker.SavedCheckpoints(home, "a-1")
    states.save(here)
    (here / "f1/checkpoint-1.json").unlink()
    (here / "f1/checkpoint-2.json").write_text("two")
    states.save(here)
    worker.SavedCheckpoints(home, "a-1").restore(there)
    assert {path.name: path.read_text() for path in (there / "f1").iterdir()} == {
        "checkpoint-1.pt": "checkpoint-1.pt", "checkpoint-2.json": "two"
    }  # fmt: skip
    states.delete()
    worker.SavedCheckpoints(home, "a-1").restore(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["to", "gpu1"], "the target is 'gpu1', needed: HOST:FOLDER"),
        (["to", "--", "-oProxyCommand=x:lm"], "needed: HOST:FOLDER"),
        (["to", "gpu1:lm", "-j", "0"], "--jobs is 0, needed: at least 1"),
        (["to", "gpu1:lm", "--heartbeat", "60", "--lost-after", "90"], "at least two heartbeats"),
        (["to", "gpu1:lm", "--option", "gpus"], "--option is 'gpus', needed: NAME=VALUE"),
    ],
)
def test_wrong_arguments_are_refused(arguments, problem):
    with pytest.raises(ParamsError, match=problem):
        cli.parse(arguments)


def test_a_worker_starts_through_ssh_or_as_a_job(monkeypatch):
    commands = []
    monkeypatch.setattr(cli, "run", lambda *command: commands.append(command) or "7\n")
    work = ["python", "src", "submit", "work"]
    assert cli.start_worker("gpu1", "my lm", work, []) == "process 7"
    assert cli.start_worker("slurm", "/lm", work, ["time=1:00:00"]) == "job 7"
    ssh, _, sbatch = commands
    assert ssh[:2] == ("ssh", "gpu1") and ssh[2].startswith("cd 'my lm' && ")
    assert "--time=1:00:00" in sbatch and sbatch[-1] == "--wrap=exec python src submit work"
