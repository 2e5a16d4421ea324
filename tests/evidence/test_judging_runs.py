"""judge with a trainer of one's own: what it runs, what it answers, and what it refuses.

The trainer writes losses of 30 documents from its seed in milliseconds.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evidence.command import main
from evidence.errors import EvidenceError
from evidence.judge import cli
from evidence.judge.commits import own_folder
from evidence.judge.judgements import columns
from evidence.judge.kept import Runner
from evidence.judge.night import only_judge
from support import ROOT

TRAINER = """
import os
import random

GAIN = 0.0
seed = int(os.environ["SEED"])
shared = random.Random(seed).gauss(0, 0.01)
own = random.Random(f"{seed} {GAIN}")
with open(os.environ["LOSSES"], "w") as file:
    print("document,nats,utf8_bytes", file=file)
    for document in range(30):
        loss = 1 + shared - GAIN + own.gauss(0, 0.002) + random.Random(document).gauss(0, 0.1)
        print(f"{document},{100 * loss},{100 + document}", file=file)
"""
STATUS = {"reject": 1, "keep": 0, "undecided": 3}


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()


def commit(message: str) -> None:
    git("add", "--all")
    git("commit", "--quiet", "--allow-empty", "--message", message)


def change(old: str, new: str, message: str = "") -> None:
    """Change the trainer, and commit it if there is a message."""
    path = Path("train.py")
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    if message:
        commit(message)


@pytest.fixture
def night(tmp_path, monkeypatch):
    """A repository with a trainer, and a second commit that is better by 0.02 nats a byte, as the working directory."""
    monkeypatch.chdir(tmp_path)
    git("init", "--quiet", "--initial-branch", "main")
    git("config", "user.name", "t")
    git("config", "user.email", "t@localhost")
    Path("train.py").write_text(TRAINER)
    Path("score.py").write_text("# how a model is scored\n")
    commit("The base")
    change("GAIN = 0.0", "GAIN = 0.02", "A gain")


def judge(base: str = "HEAD~1", *options: str) -> tuple[int, str]:
    """Judge the workspace; return the status, and the message of an error."""
    try:
        return cli.main([base, "--run", f"{sys.executable} train.py", "--fixed", "score.py", *options]), ""
    except EvidenceError as error:
        return error.exit_code, str(error)


def rows() -> list[dict[str, str]]:
    lines = Path("judgements.csv").read_text().splitlines()[1:]
    return [dict(zip(columns(), line.split(","), strict=True)) for line in lines]


# Runs and answers.


def test_a_gain_is_kept_after_as_few_seeds_as_show_it(night, capsys):
    status, _ = judge("HEAD~1", "--go-on")

    printed = capsys.readouterr()
    assert status == 0
    assert [(row["seeds"], row["base_seeds"], row["answer"]) for row in rows()] == [
        ("2", "5", "undecided"),
        ("5", "12", "keep"),
    ]
    assert printed.err.count("running") == 12 + 5
    assert "at most 10 runs follow" in printed.err
    difference = float(rows()[-1]["difference"])
    assert difference < 0
    assert f"{-difference:.4f} bits per byte better than" in printed.out


def test_an_undecided_judgement_prints_the_command_that_goes_on(night, capsys):
    Path("data.bin").write_text("data")

    status, _ = judge("HEAD~1", "--input", "data.bin", "--first-seed", "3", "--least-gain", "0.001")

    command = capsys.readouterr().out.splitlines()[-1].partition("go on: evidence judge ")[2]
    assert status == 3
    assert "--seeds 5" in command
    assert f"--run '{sys.executable} train.py'" in command
    assert command.endswith("--fixed score.py --input data.bin --first-seed 3 --least-gain 0.001")


def test_the_same_judgement_runs_nothing_and_adds_no_row(night, capsys):
    first = judge("HEAD~1", "--json")
    document = json.loads(capsys.readouterr().out)
    again = judge("HEAD~1", "--json")

    printed = capsys.readouterr()
    assert first == again
    assert json.loads(printed.out) == document
    assert printed.err == ""
    assert len(rows()) == 1
    assert set(document) == {"schema", "reason", *columns()}
    assert document["change"] == "A gain"


def test_a_change_that_was_undone_has_run(night, capsys):
    judge()
    change("GAIN = 0.02", "GAIN = 0.0", "Undo it")
    capsys.readouterr()

    status, _ = judge("HEAD~1")

    printed = capsys.readouterr()
    assert status == 1
    assert "bits per byte worse than" in printed.out
    assert "Undo it" not in printed.err


def test_uncommitted_changes_are_judged_and_the_index_stays(night):
    change("GAIN = 0.02", "GAIN = 0.04")
    before = git("status", "--porcelain")

    judge("HEAD")

    assert rows()[0]["change"] == "uncommitted changes"
    assert git("status", "--porcelain", "--", "train.py", "score.py") == before


def test_a_base_that_is_older_than_the_last_committed_row(night):
    judge()
    commit("The row")
    change("GAIN = 0.02", "GAIN = 0.03", "More")

    assert judge("HEAD~3")[0] in STATUS.values()


def test_what_stays_of_a_run_is_its_table(night):
    judge()

    kept = own_folder()
    assert sorted(path.name for path in kept.iterdir()) == ["lock", "losses"]
    assert sum(path.stat().st_size for path in kept.rglob("*.csv")) < 7 * 2000
    assert "evidence" not in git("worktree", "list")


def test_a_moved_repository_runs_nothing_again(night, tmp_path, monkeypatch, capsys):
    judge()
    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    tmp_path.rename(moved)
    monkeypatch.chdir(moved)
    capsys.readouterr()

    assert judge()[0] == 3
    assert "running" not in capsys.readouterr().err


def test_a_killed_judge_leaves_nothing_that_stops_the_next_one(night):
    folder = own_folder() / "worktree"
    git("worktree", "add", "--detach", str(folder), "HEAD")
    (folder / "half.txt").write_text("written")

    assert judge()[0] == 3


def test_files_outside_git_that_decide_a_run_count(night, capsys):
    text = Path(".git/text")
    text.write_text("one")
    judge("HEAD~1", "--input", str(text))
    text.write_text("two")
    capsys.readouterr()

    judge("HEAD~1", "--input", str(text))

    assert capsys.readouterr().err.count("running") == 7


# What is no judgement.

CANDIDATES = {
    "it raises": ("import random", "import nothing", 6, "ended with status 1"),
    "it writes no table": ('os.environ["LOSSES"], "w"', '"other.csv", "w"', 6, "wrote no losses"),
    "a loss is nan": ("100 * loss", "float('nan')", 6, "nats is nan"),
    "a document is scored twice": ("in range(30)", "in [*range(30), 0]", 6, "has document 0 twice"),
    "other documents": ("in range(30)", "in range(29)", 6, "scored other documents"),
    "three documents": ("in range(30)", "in range(3)", 6, "scored 3 documents; it must score at least 4"),
    "documents of another size": ("100 + document", "99 + document", 6, "scored other documents"),
    "the seed is ignored": ('int(os.environ["SEED"])', "1", 6, "ignores SEED"),
    "the disk is full": ("GAIN = 0.02", "GAIN = 0.02\nraise SystemExit(5)", 5, "ended with status 5"),
    "it was killed": ("GAIN = 0.02", "GAIN = 0.02\nos.kill(os.getpid(), 9)", 5, "ended with status 137"),
}


@pytest.mark.parametrize("case", CANDIDATES)
def test_a_candidate_that_crashed_and_a_machine_that_failed_have_statuses_of_their_own(night, case):
    old, new, status, said = CANDIDATES[case]
    change(old, new, case)

    found, message = judge("HEAD~1")

    assert found == status
    assert said in message
    assert not Path("judgements.csv").exists()


def test_a_program_reads_what_is_no_judgement(night, capsys):
    change("import random", "import nothing", "It raises")
    crashed = judge("HEAD~1", "--json")
    document = json.loads(capsys.readouterr().out)
    nothing = judge("HEAD", "--json")
    other = json.loads(capsys.readouterr().out)

    assert (document["answer"], document["exit_status"], document["reason"]) == ("crashed", *crashed)
    assert (other["answer"], other["exit_status"], other["reason"]) == ("none", *nothing)


def test_a_judge_that_is_asked_to_end_ends_the_run_with_all_that_it_started(night, tmp_path):
    started = tmp_path.with_name(f"{tmp_path.name}-started")
    runner = f"sh -c 'sleep 60 & echo $! > {started}; wait'"
    command = [sys.executable, "-m", "evidence", "judge", "HEAD~1", "--run", runner]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    while not (started.exists() and started.read_text().strip()):
        time.sleep(0.02)

    process.terminate()

    assert process.wait(timeout=20) == 143
    assert not is_running(int(started.read_text()))
    assert "evidence" not in git("worktree", "list")


def is_running(number: int) -> bool:
    """Return whether a process is there and no zombie."""
    status = Path(f"/proc/{number}/stat")
    return status.exists() and status.read_text().split()[2] != "Z"


def test_a_base_that_fails_does_not_blame_the_candidate(night):
    change("import random", "import nothing", "A base that fails")
    change("GAIN = 0.02", "GAIN = 0.03", "A change of it")

    status, message = judge("HEAD~1")

    assert status == 5
    assert "A base that fails" in message


def test_a_program_that_cannot_start_is_named_and_blamed_on_the_side_that_lacks_it(night):
    of_base = judge("HEAD~1", "--run", "cd . && python train.py")
    Path("train.sh").write_text(f"#!/bin/sh\n{sys.executable} train.py\n")
    Path("train.sh").chmod(0o755)
    commit("A script")
    Path("train.sh").chmod(0o644)
    commit("It cannot run")
    of_candidate = judge("HEAD~1", "--run", "./train.sh")

    assert of_base[0] == 5
    assert "cannot start: cd: No such file or directory; it must be a program, such as ./train.sh" in of_base[1]
    assert of_candidate[0] == 6
    assert "cannot start: ./train.sh: Permission denied" in of_candidate[1]


def test_a_second_judge_is_told_that_the_first_one_works(night):
    with only_judge():
        status, message = judge()

    assert status == 75
    assert "another judge works" in message


@pytest.mark.parametrize(
    ("base", "options", "said"),
    [
        ("HEAD", [], "nothing differs"),
        ("nonsense", [], "nonsense is not a Git revision"),
        ("HEAD~1", ["--seeds", "1"], "--seeds is 1"),
        ("HEAD~1", ["--least-gain", "-1"], "--least-gain is -1"),
        ("HEAD~1", ["--fixed", "scores.py"], "--fixed is scores.py, which"),
        ("HEAD~1", ["--input", "none.bin"], "--input is none.bin; it must be a file"),
        ("HEAD~1", ["--run", ""], "--run is empty; it must be a program and its arguments"),
        ("HEAD~1", ["--run", "python 'train.py"], "No closing quotation"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_anything_runs(night, capsys, base, options, said):
    status, message = judge(base, *options)

    assert status == 2
    assert said in message
    assert "running" not in capsys.readouterr().err


def test_a_fixed_file_may_have_any_name(night):
    Path("prüfung.py").write_text("# how a model is scored\n")
    commit("A base with another file")
    Path("prüfung.py").write_text("# others are scored alike\n")

    status, message = judge("HEAD", "--fixed", "prüfung.py")

    assert status == 4
    assert "prüfung.py differs" in message


@pytest.mark.parametrize("hide", [None, "--assume-unchanged", "--skip-worktree"])
def test_a_fixed_file_may_not_change_however_it_is_hidden(night, hide):
    if hide:
        git("update-index", hide, "score.py")
    Path("score.py").write_text("# others are scored alike\n")

    status, message = judge("HEAD~1")

    assert status == 4
    assert "score.py differs from" in message


# What is kept.


def test_an_edited_table_of_losses_is_refused(night):
    judge()
    path = next(own_folder().rglob("1-*.csv"))
    path.write_text(path.read_text().replace("0,", "0,1", 1))

    status, message = judge("HEAD~1", "--seeds", "5")

    assert status == 4
    assert "damaged or edited; remove it" in message


def test_the_key_of_a_runner_holds_what_decides_its_losses_and_not_where_the_program_lies(tmp_path):
    text = tmp_path / "text"
    text.write_text("a")
    key = Runner(("/here/python", "train.py"), (text,)).key

    assert Runner(("/there/python", "train.py"), (text,)).key == key
    assert Runner(("/here/python", "other.py"), (text,)).key != key
    assert Runner(("/here/python", "train.py")).key != key
    text.write_text("b")
    assert Runner(("/here/python", "train.py"), (text,)).key != key


def test_the_command_evidence_judges_and_says_what_is_wrong(night, capsys):
    kept = main(["judge", "HEAD~1", "--run", f"{sys.executable} train.py", "--go-on"])
    wrong = main(["judge", "HEAD", "--run", "true"])

    assert (kept, wrong) == (0, 2)
    assert "error: nothing differs from" in capsys.readouterr().err
