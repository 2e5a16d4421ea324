"""`make` sets up its environment, also after it was interrupted."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from support import ROOT
from support.workspace import Workspace

# A Python that writes down its arguments; the environments that it creates hold a copy of it.
RECORDING = """#!/bin/sh
echo "$*" >> calls
[ "$1 $2" = "-m venv" ] && mkdir -p .venv/bin && cp "$0" .venv/bin/python || true
"""


def write_project(folder: Path) -> None:
    (folder / "requirements").mkdir()
    for name in ("requirements.txt", "requirements/bits.txt"):
        (folder / name).touch()
    (folder / "Makefile").write_text((ROOT / "Makefile").read_text())


def write_script(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
    return path


# One that has no pip, as `uv venv` makes it, but the module that brings one.
WITHOUT_PIP = RECORDING.replace("echo", '[ "$2 $3" = "pip --version" ] && exit 1\necho', 1)


@pytest.mark.parametrize(
    ("left", "is_created"),
    [(None, True), ("#!/bin/sh\nexit 1\n", True), (RECORDING, False), (WITHOUT_PIP, False)],
    ids=["nothing", "a broken environment", "a whole environment", "an environment without pip"],
)
def test_an_environment_is_cleared_and_created_only_if_it_cannot_get_pip(tmp_path, left, is_created):
    write_project(tmp_path)
    if left:
        write_script(tmp_path / ".venv/bin/python", left)
    python = write_script(tmp_path / "python", RECORDING)
    subprocess.run(["make", ".venv/ready", f"PYTHON={python}"], cwd=tmp_path, check=True, capture_output=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert ("-m venv --clear .venv" in calls) == is_created
    assert calls[-1].startswith("-m pip install ") and calls[-1].endswith(" -r requirements.txt")
    assert (tmp_path / ".venv/ready").exists()


def test_make_help_explains_every_target():
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert [line.split()[0] for line in done.stdout.splitlines()] == phony.split()


def test_recipes_run_in_a_shell_that_the_make_of_macos_does_not_skip(tmp_path):
    """GNU make 3.81 starts simple commands without the default shell, and then ignores the exported PATH."""
    printed = subprocess.run(["make", "-pn", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert re.findall(r"^SHELL :?= (.*)$", printed, re.M) == ["bash"]


# `make back`.

RESTORED = (
    *("params.yaml", "presets.yaml", "sources.yaml", "runtime.yaml"),
    *("dvc.lock", "metrics/train.json", "plots/validation.csv"),
)


@pytest.fixture
def committed(finished, tmp_path) -> Workspace:
    """The small pipeline after its run, all of it committed."""
    workspace = Workspace(tmp_path / "ws", finished)
    workspace.commit()
    return workspace


def contents(workspace: Workspace) -> dict[str, bytes]:
    return {name: (workspace.folder / name).read_bytes() for name in RESTORED}


@pytest.mark.parametrize(
    "runs",
    [
        (["train.seed=-1"], ["data.source=local", "-S", "presets.yaml:models.micro.d_ff=33"]),
        (["model.name=large"], ["data.source=local"]),  # values of one length, and both runs end within a second
    ],
    ids=["other lengths", "equal lengths"],
)
def test_back_undoes_two_rejected_runs_and_keeps_other_files(committed, runs):
    before = contents(committed)
    model = (committed.folder / "data/models/model.json").read_bytes()
    (committed.folder / "plots/mine.csv").write_text("x\n")
    for values in runs:
        rejected = committed.run("dvc", "exp", "run", "-S", *values, check=False)
        assert rejected.returncode and "error: " in rejected.stderr.lower(), rejected.stderr
        assert (committed.folder / "params.yaml").read_bytes() != before["params.yaml"]
    (committed.folder / "data/models/model.json").unlink()
    committed.run("make", "back")
    assert contents(committed) == before
    assert (committed.folder / "data/models/model.json").read_bytes() == model
    assert (committed.folder / "plots/mine.csv").read_text() == "x\n"


def test_back_undoes_a_recipe_and_a_rejected_run_after_it(committed):
    """The recipe changes a value in each of the four files, and the run rejects one of its values."""
    values = {
        "params.yaml": {"train": {"seed": 2}}, "presets.yaml": {"models": {"micro": {"d_ff": 64}}},
        "sources.yaml": {"sources": {"small": {"prompts": ["x"]}}}, "runtime.yaml": {"train": {"timeout_s": 7}},
    }  # fmt: skip
    (committed.folder / "recipes" / "mine.yaml").write_text(yaml.safe_dump(values))
    committed.commit("a recipe")
    before = contents(committed)
    used = committed.run("python", "src", "use", "mine")
    assert used.stdout.splitlines()[-1] == "undo: make back"
    changed = contents(committed)
    assert {name for name in RESTORED if changed[name] != before[name]} == set(values)
    rejected = committed.run("dvc", "exp", "run", "-S", "train.seed=-1", check=False)
    assert rejected.returncode and "`make back`" in rejected.stderr, rejected.stderr
    committed.run("make", "back")
    assert contents(committed) == before


def test_back_restores_a_file_that_git_takes_for_unchanged(committed):
    """DVC leaves such a file after a refused run: with a value of the same length and the time that git's index has."""
    params = committed.folder / "params.yaml"
    an_hour = 3600
    before = params.read_bytes()
    long_ago = params.stat().st_mtime - an_hour
    committed.run("git", "config", "core.trustctime", "false")
    os.utime(params, (long_ago, long_ago))
    committed.run("git", "add", "params.yaml")  # the index has the time
    params.write_bytes(before.replace(b"seed: 1", b"seed: 2", 1))
    os.utime(params, (long_ago, long_ago))
    committed.run("git", "restore", "params.yaml")
    assert params.read_bytes() != before, "git restore alone does nothing"
    shutil.rmtree(committed.folder / "data")  # as in a clone before its first run
    shutil.rmtree(committed.folder / ".dvc/cache")
    committed.run("make", "back")
    assert params.read_bytes() == before


def test_back_names_the_files_that_it_leaves(committed):
    assert "still differ" not in committed.run("make", "back").stdout
    with open(committed.folder / "src/lm/model/gemma3.py", "a") as file:
        file.write("# changed\n")
    committed.change(**{"train.seed": 2})

    lines = committed.run("make", "back").stdout.splitlines()

    head = next(number for number, line in enumerate(lines) if "`git restore src`" in line)
    assert " M src/lm/model/gemma3.py" in lines[head + 1 :]
    assert not any("params.yaml" in line for line in lines[head + 1 :])


def test_back_names_a_file_that_dvc_does_not_delete_and_the_command_that_shows_what_to_do(committed):
    damaged = "data/processed_datasets/train.bin"
    path = committed.folder / damaged
    path.unlink()
    path.write_bytes(b"cut")

    done = committed.run("make", "back", check=False)

    assert done.returncode
    assert damaged in done.stderr
    assert "`python src verify` prints a command for each" in done.stderr
    repair = f"rm -rf {damaged} && dvc checkout {damaged}"
    assert repair in committed.run("python", "src", "verify", check=False).stdout
    committed.run("bash", "-euc", repair)
    committed.run("make", "back")


def test_back_during_a_merge_with_conflicts_says_how_to_end_it(committed):
    params = committed.folder / "params.yaml"
    first = params.read_text()
    committed.run("git", "switch", "-qc", "other")
    params.write_text(first.replace("seed: 1", "seed: 2", 1))
    committed.commit("other")
    committed.run("git", "switch", "-q", "main")
    params.write_text(first.replace("seed: 1", "seed: 3", 1))
    committed.commit("ours")
    committed.run("git", "merge", "other", check=False)

    done = committed.run("make", "back", check=False)

    assert done.returncode and "`git checkout --ours dvc.lock metrics plots && dvc repro`" in done.stderr
    assert "<<<<<<<" in params.read_text()


@pytest.mark.parametrize(("user", "expected"), [("ada", "ada"), (None, str(os.getuid()))])
def test_commands_have_a_user_name_also_where_the_system_knows_none(user, expected):
    """DVC asks for it; in a container with the user id of the host there is none."""
    environment = {name: value for name, value in os.environ.items() if name != "USER"}
    if user:
        environment["USER"] = user
    command = ["make", "--no-print-directory", "--eval", "show:; @echo $$USER", "show"]

    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)

    assert done.stdout.strip() == expected


# `make`.


def test_make_ends_with_a_verdict(committed):
    make = ("make", "--no-print-directory", "-o", ".venv/ready")
    lines = committed.run(*make).stdout.splitlines()
    first = lines.index("Bitwise identical to the committed run (all 19 outputs).")
    assert "bits per byte" in lines[first + 1] and "next:" in lines[first:]

    # Another run, by a changed parameter of the last stages.
    committed.change(**{"eval.stride_fraction": 1.0})
    lines = committed.run(*make).stdout.splitlines()
    (verdict,) = (line for line in lines if "committed" in line and line.endswith(" outputs differ."))
    assert verdict.startswith("Another run than the committed one: 1 of its parameters changed; ")
    assert "  eval.stride_fraction  0.5 -> 1" in lines
    assert lines[-1].startswith("  make back  ")
