"""judge with a trainer of one's own: what it runs, what it answers, and what it refuses.

The trainer writes losses of 30 documents from its seed in milliseconds.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evidence.errors import EvidenceError
from evidence.judge import LEFT_OUT, cli, kept
from evidence.judge import night as night_module
from evidence.judge.commits import own_folder, read_commit
from evidence.judge.judgements import columns
from evidence.judge.night import only_judge
from support import ROOT
from support.json_documents import check_document
from support.process import CAP_S, started, wait_for

# In nats a byte: runs of a seed share more luck than they have of their own.
TRAINER = """
gain=0.0
awk -v seed="$SEED" -v gain="$gain" '
function noise(x) { x = 10000 * sin(x); return x - int(x) }
BEGIN {
    print "document,nats,utf8_bytes"
    for (i = 0; i < 30; i++) {
        loss = 1 - gain + 0.1 * noise(i + 1) + 0.02 * noise(seed) + 0.004 * noise(seed + 100 * i + 77 * gain)
        size = 100 + i
        printf "%d,%.9f,%d\\n", i, size * loss, size
        sum += loss
    }
    print "loss 9.9\\nloss " sum / 30 > "/dev/stderr"
}' > "$LOSSES"
"""
# The command in a process of its own.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
EVIDENCE = [sys.executable, "-m", "evidence"]


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()


def commit(message: str) -> None:
    git("add", "--all")
    git("commit", "--quiet", "--allow-empty", "--message", message)


def change(old: str, new: str, message: str = "") -> None:
    """Change the trainer, and commit it if there is a message."""
    path = Path("train.sh")
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    if message:
        commit(message)


@pytest.fixture(scope="module")
def two_commits(tmp_path_factory) -> Path:
    """A repository with a trainer, and a second commit that is better by 0.02 nats a byte."""
    folder = tmp_path_factory.mktemp("night")
    with contextlib.chdir(folder):
        git("init", "--quiet", "--template=", "--initial-branch", "main")
        git("config", "user.name", "t")
        git("config", "user.email", "t@localhost")
        Path("train.sh").write_text(TRAINER)
        Path("prüfung.py").write_text("# how a model is scored\n")
        commit("The base")
        change("gain=0.0", "gain=0.02", "A gain")
    return folder


@pytest.fixture
def night(two_commits, tmp_path, monkeypatch):
    """A copy of the repository, as the working directory."""
    folder = tmp_path / "night"
    shutil.copytree(two_commits, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(night_module, "FRESH_SEEDS", [77])  # of each hundred others, one would be far from the pairs


def judge(base: str = "HEAD~1", *options: str) -> tuple[int, str]:
    """Judge the workspace; return the status, and the message of an error."""
    try:
        return cli.main([base, "--run", "sh train.sh", "--fixed", "prüfung.py", *options]), ""
    except EvidenceError as error:
        return error.exit_code, str(error)


def rows() -> list[dict[str, str]]:
    lines = Path("judgements.csv").read_text().splitlines()[1:]
    return [dict(zip(columns(), line.split(","), strict=True)) for line in lines]


# Runs and answers.


def test_a_gain_is_kept_after_as_few_seeds_as_show_it_and_judged_again_runs_nothing(night, capsys):
    first = judge()
    printed = capsys.readouterr()
    again = judge("HEAD~1", "--json")
    printed_again = capsys.readouterr()

    # Two seeds, then five of the candidate and twelve of the base, then a fresh one of both.
    assert [(row["seeds"], row["base_seeds"], row["fresh_seed"], row["answer"]) for row in rows()] == [
        ("2", "5", "", "undecided"),
        ("5", "12", "77", "keep"),
    ]
    assert printed.err.count("running") == 12 + 5 + 2
    assert "judgement 1: 12 seeds could show such a gain" in printed.err
    difference = float(rows()[-1]["difference"])
    assert difference < 0
    assert f"{-difference:.4f} bits per byte better than" in printed.out

    document = json.loads(printed_again.out)
    assert first == again == (0, "")
    assert "running" not in printed_again.err
    assert set(document) == {"schema", "earns", "reason", *columns()}
    check_document(document)
    assert (document["change"], document["difference"], document["earns"]) == ("A gain", difference, True)

    # By another rule it is another judgement, which raises no later level.
    assert judge("HEAD~1", "--least-gain", "0.001")[0] == 0
    assert "it raises no later level" in capsys.readouterr().out


def test_options_reach_the_runs_and_the_row(night):
    change("awk", 'printf $SEED >> "$REPOSITORY/.git/seeds"\nawk')

    status, _ = judge("HEAD~1", "--first-seed", "3", "--least-gain", "0.001", "--seeds", "2")

    (row,) = rows()
    assert status == 3
    assert Path(".git/seeds").read_text() == "34"
    assert (row["first_seed"], row["least_gain"], row["seeds"]) == ("3", "0.001", "2")


def test_uncommitted_changes_are_judged_by_name_and_the_index_stays(night):
    change("gain=0.02", "gain=0.04")
    for name in ("a", "b", "c"):
        Path(f"{name}.txt").write_text(name)

    judge("HEAD", "--seeds", "2")

    assert Path("judgements.csv").read_text().count('"uncommitted: a.txt, b.txt, c.txt …"') == 1
    assert git("diff", "--cached", "--name-only") == ""


def test_the_file_that_the_output_goes_to_is_no_change(night):
    with open("out.txt", "w") as file:
        command = [*EVIDENCE, "judge", "HEAD", "--run", "true"]
        done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)

    assert done.returncode == 2
    assert "nothing differs" in done.stderr


def test_a_project_in_a_subfolder_of_its_repository(night, monkeypatch):
    Path("project").mkdir()
    for name in ("train.sh", "prüfung.py"):
        git("mv", name, f"project/{name}")
    commit("Into a folder")
    monkeypatch.chdir("project")
    change("gain=0.02", "gain=0.04", "More")

    assert judge("HEAD~1", "--seeds", "2")[0] == 3

    Path("prüfung.py").write_text("# others are scored alike\n")
    status, message = judge()
    assert status == 4
    assert "prüfung.py differs from" in message


def test_what_stays_of_a_run_is_its_table_also_after_a_judge_that_was_killed(night):
    folder = own_folder()
    git("worktree", "add", "--detach", str(folder / "worktree/files"), "HEAD")
    (folder / "worktree/files/half.txt").write_text("written")

    judge("HEAD~1", "--seeds", "2")

    assert sorted(path.name for path in folder.iterdir()) == ["lock", "losses", "run.log"]
    assert "evidence" not in git("worktree", "list")


def test_a_run_counts_as_long_as_its_command_inputs_and_packages_stay(night, monkeypatch, capsys):
    """Its program may be in another place. A folder that Git ignores is linked into the worktree."""
    assert f"numpy=={np.__version__}" in kept.python_and_packages()
    Path(".gitignore").write_text("data/")
    change("gain=0.02", "cat data/text || exit 1")
    text = Path("data/text")
    text.parent.mkdir()
    text.write_text("one")

    def count_runs(command: str = "sh train.sh") -> int:
        assert judge("HEAD", "--input", "data", "--seeds", "2", "--run", command) == (1, "")
        return capsys.readouterr().err.count("running")

    assert count_runs() == 7
    assert count_runs() == 0
    assert count_runs(f"{shutil.which('sh')} train.sh") == 0
    assert count_runs("sh train.sh --fast") == 7
    text.write_text("two")
    assert count_runs() == 7
    monkeypatch.setattr(kept, "python_and_packages", lambda: ["torch==3"])
    assert count_runs() == 7


def test_the_last_number_that_matches_is_judged_over_seeds_alone(night, capsys):
    """Some of the rounded numbers are equal. With another direction it is another judgement, of other runs."""
    change('"$LOSSES"', "/dev/null", "Without a table")
    change("gain=0.02", "gain=0.08")

    for options, status, sign in (([], 0, 1), (["--higher-is-better"], 1, -1)):
        assert judge("HEAD", "--metric", "loss (.{5})", *options, "--json") == (status, "")

        document = json.loads(capsys.readouterr().out)
        check_document(document)
        assert document["metric"] == f"{'minimize' if sign == 1 else 'maximize'} loss (.{{5}})"
        assert document["pairs_mean"] * sign == pytest.approx(-0.06, abs=0.002)
        assert document["base_mean"] * sign == pytest.approx(1, abs=0.1)
        assert document["documents_high"] is None


@pytest.mark.parametrize(
    ("pattern", "status", "said"),
    [
        (r"bits (\d+)", 5, r"nor a number (--metric): nothing that it printed matches bits (\d+)"),
        ("(los)s", 5, "could not convert string to float: 'los'"),
        ("loss (.)", 5, "it ignores SEED, or rounds them"),
        (r"(loss) (\S+)", 2, "it must be a pattern with one group"),
        ("loss (", 2, "it must be a pattern with one group"),
    ],
)
def test_a_pattern_that_gives_no_number_is_refused(night, pattern, status, said):
    found, message = judge("HEAD~1", "--metric", pattern)

    assert found == status
    assert said in message


def test_a_candidate_whose_number_is_nan_crashed(night):
    change("sum / 30", '"nan"', "Diverges")

    status, message = judge("HEAD~1", "--metric", r"loss (\S+)")

    assert status == 6
    assert "is nan; it must be a finite number" in message


# What would keep a change that is no gain.


def test_losses_that_another_run_left_for_a_change_are_not_believed_without_a_new_run(night, monkeypatch):
    """A run may write tables for the next commit, but not for a seed that it does not know."""
    judge()
    monkeypatch.setattr(night_module, "FRESH_SEEDS", [78])
    runner = kept.Runner(("sh", "train.sh"))
    of_gain = kept.folder_of(runner, read_commit("HEAD", LEFT_OUT))
    change("gain=0.02", "gain=0.001", "Hardly a gain")
    shutil.copytree(of_gain, kept.folder_of(runner, read_commit("HEAD", LEFT_OUT)))

    status, message = judge("HEAD~2")

    assert status == 5
    assert "new runs disagree with kept ones" in message
    assert [row["answer"] for row in rows()] == ["undecided", "keep", "undecided"]


def test_losses_that_changed_since_they_were_judged_are_refused(night):
    judge("HEAD~1", "--seeds", "2")
    for table in own_folder().glob("losses/*/2.csv"):
        table.write_text(table.read_text().replace("\n0,", "\n0,1"))

    status, message = judge("HEAD~1", "--seeds", "2")

    assert status == 4
    assert "and its runs give" in message


def test_a_fresh_seed_that_disagrees_by_chance_is_followed_by_another(night, monkeypatch):
    answers = iter([False, True])
    monkeypatch.setattr(night_module, "agrees", lambda *_: next(answers))

    assert judge()[0] == 0


def test_a_commit_is_read_as_it_is_although_git_replaces_it(night):
    base = git("rev-parse", "HEAD")
    change("gain=0.02", "gain=-0.3", "Worse")
    worse = git("rev-parse", "HEAD")
    git("reset", "--quiet", "--hard", base)
    git("replace", base, worse)
    change("size * loss", "1 * size * loss", "Nothing")

    judge(base)

    assert float(rows()[0]["difference"]) == 0


def test_hooks_do_not_run(night):
    hook = Path(".git/hooks/post-checkout")
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    change("gain=0.02", "gain=0.02; test -e hooked && exit 1", "Without hooks")

    assert judge("HEAD~1", "--seeds", "2") == (1, "")


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [
        ("csv.py", True),
        ("numpy/__init__.py", True),
        ("lib/json.py", True),
        ("model/csv.py", False),
        ("prüfung/__init__.py", True),
        ("lib/prüfung.py", True),
        ("model/loss/__init__.pyc", True),
    ],
)
def test_a_new_file_that_shadows_a_module_is_refused(night, name, is_refused):
    """A package is imported in place of the module beside it, which is fixed."""
    for file in ("model/__init__.py", "model/loss.py"):
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).touch()
    commit("A package")
    change("gain=0.02", "gain=0.04")
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("# what prüfung.py would import\n")

    status, message = judge("HEAD", "--seeds", "2", "--fixed", "model/loss.py")

    assert status == (4 if is_refused else 3)
    assert (f"{name} would be imported in place of the module" in message) == is_refused


# What is no judgement.

CANDIDATES = {
    "it fails": ("gain=0.02", "echo no idea\nexit 1", 6, "ended with status 1"),
    "it writes no table": ("$LOSSES", "other.csv", 6, "gave neither losses"),
    "a loss is nan": ("%.9f", "nan", 6, "nats of document 0 is nan"),
    "a document is scored twice": ('", i, size', '", i % 29, size', 6, "has document 0 twice"),
    "one long document": (
        "size = 100 + i",
        "size = i == 7 ? 100000 : 100",
        6,
        "30 documents, which count like 1.1 of equal length: document 7 has 97 % of the bytes",
    ),
    "documents of another size": ("size = 100 + i", "size = 99 + i", 6, "scored other documents"),
    "the seed is ignored": ('"$SEED"', "1", 6, "it ignores SEED, or rounds them; set the seed where"),
    "it reads ignored data": ("gain=0.02", "cat data.bin || exit 1", 6, "name them with --input"),
    "the disk is full": ("gain=0.02", "exit 5", 5, "ended with status 5"),
    "it was killed": ("gain=0.02", "kill -9 $$", 5, "ended with status 137"),
}


@pytest.mark.parametrize("case", CANDIDATES)
def test_a_candidate_that_crashed_and_a_machine_that_failed_have_statuses_of_their_own(night, capsys, case):
    old, new, status, said = CANDIDATES[case]
    change(old, new, case)

    found, message = judge("HEAD~1", "--json")

    document = json.loads(capsys.readouterr().out)
    assert found == status
    assert said in message
    assert not Path("judgements.csv").exists()
    assert (document["exit_status"], document["reason"]) == (status, message)
    assert document["answer"] == ("crashed" if status == 6 else "none")
    assert ("no idea" in document["log"]) == (case == "it fails")


@pytest.mark.parametrize("command", ["./train.sh", "sh train.sh"])
def test_a_script_with_the_line_ends_of_windows_is_named(night, command):
    Path("train.sh").chmod(0o755)
    change("\ngain=0.02", "#!/bin/sh\r\nexit 1\r", "Written on Windows")
    change("exit 1", "exit 2")

    assert f"{command.split()[-1]} has line ends of Windows" in judge("HEAD", "--run", command)[1]


def test_a_judge_that_is_asked_to_end_ends_the_run_with_all_that_it_started(night, tmp_path):
    child = tmp_path.with_name(f"{tmp_path.name}-child")
    runner = f"sh -c 'sleep {CAP_S} & echo $! > {child}.tmp; mv {child}.tmp {child}; wait'"
    process = started(*EVIDENCE, "judge", "HEAD~1", "--run", runner, env=ENVIRONMENT)
    wait_for(child.exists)

    process.terminate()

    assert process.wait(CAP_S) == 143
    wait_for(lambda: not is_running(int(child.read_text())))
    assert "evidence" not in git("worktree", "list")


def is_running(number: int) -> bool:
    """Return whether a process is there and no zombie."""
    status = Path(f"/proc/{number}/stat")
    return status.exists() and status.read_text().split()[2] != "Z"


def test_a_second_judge_is_told_that_the_first_one_works(night):
    with only_judge():
        status, message = judge()

    assert status == 75
    assert "another judge works" in message


@pytest.mark.parametrize(
    ("base", "options", "status", "said"),
    [
        ("HEAD", [], 2, "nothing differs"),
        ("nonsense", [], 2, "nonsense is not a Git revision"),
        ("HEAD~1", ["--seeds", "1"], 2, "--seeds is 1; it must be from 2 to 12"),
        ("HEAD~1", ["--least-gain", "-1"], 2, "--least-gain is -1"),
        ("HEAD~1", ["--fixed", "scores.py"], 2, "--fixed is scores.py, which"),
        ("HEAD~1", ["--input", "none.bin"], 2, "--input is none.bin; it must be a file or a folder"),
        ("HEAD~1", ["--run", ""], 2, "--run is empty; it must be a program and its arguments"),
        ("HEAD~1", ["--run", "cd . && python"], 5, "cannot start: cd: No such file or directory; it must be a program"),
    ],
)
def test_what_cannot_be_judged_is_refused_and_leaves_no_row(night, base, options, status, said):
    found, message = judge(base, *options)

    assert found == status
    assert said in message
    assert not Path("judgements.csv").exists()


def test_a_fixed_file_may_not_change_however_it_is_hidden(night):
    git("update-index", "--skip-worktree", "prüfung.py")
    file = Path("prüfung.py")
    for hide in (lambda: file.rename("moved.py"), lambda: file.write_text("# others are scored alike\n")):
        hide()

        status, message = judge("HEAD~1")

        assert status == 4
        assert "prüfung.py differs from" in message


def test_a_base_that_fails_does_not_blame_the_candidate(night):
    change("gain=0.02", "gain=0.02; exit 1", "A base that fails")
    change("0.02;", "0.03;", "A change of it")

    status, message = judge("HEAD~1")

    assert status == 5
    assert "A base that fails" in message
