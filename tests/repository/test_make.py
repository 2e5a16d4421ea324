"""`make` sets up its environment, also after it was interrupted."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from lm.core.files import output_lock
from support import ROOT
from support.process import wait_for

MAKE = ("make", "--no-print-directory", "-o", ".venv/ready")
# A Python that writes down its arguments; the environments that it creates hold a copy of it.
RECORDING = """#!/bin/sh
echo "$*" >> calls
[ "$1 $2" = "-m venv" ] && mkdir -p .venv/bin && cp "$0" .venv/bin/python || true
"""


def write_script(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
    return path


def calls_of_make(folder: Path, requirements: str = "") -> list[str]:
    """Return the commands by which `make` sets up an environment in a folder, with these requirements."""
    (folder / "requirements").mkdir()
    (folder / "requirements/bits.txt").write_text(requirements)
    (folder / "requirements.txt").touch()
    (folder / "Makefile").write_text((ROOT / "Makefile").read_text())
    python = write_script(folder / "python", RECORDING)
    subprocess.run(["make", ".venv/ready", f"PYTHON={python}"], cwd=folder, check=True, capture_output=True)
    assert (folder / ".venv/ready").exists()
    return (folder / "calls").read_text().splitlines()


# One that has no pip, as `uv venv` makes it, but the module that brings one.
WITHOUT_PIP = RECORDING.replace("echo", '[ "$2 $3" = "pip --version" ] && exit 1\necho', 1)


@pytest.mark.parametrize("has_python", [False, True], ids=["nothing", "an environment without pip"])
def test_an_environment_is_cleared_and_created_only_if_it_cannot_get_pip(tmp_path, has_python):
    if has_python:
        write_script(tmp_path / ".venv/bin/python", WITHOUT_PIP)

    calls = calls_of_make(tmp_path)

    assert ("-m venv --clear .venv" in calls) == (not has_python)
    assert calls[-1].startswith("-m pip install "), "there is no uv here"
    assert calls[-1].endswith(" -r requirements.txt")


# It writes down that torch is left out, and that it has begun.
RECORDING_UV = """#!/bin/sh
echo "uv $* without $(cat .venv/begun)" >> calls
"""


@pytest.mark.parametrize("was_interrupted", [False, True])
def test_uv_installs_all_but_torch_and_again_what_an_interrupted_one_may_have_left_by_half(tmp_path, was_interrupted):
    write_script(tmp_path / ".venv/bin/python", RECORDING)
    write_script(tmp_path / ".venv/bin/uv", RECORDING_UV)
    if was_interrupted:
        (tmp_path / ".venv/begun").touch()

    *_, torch, uv, rest = calls_of_make(tmp_path, "torch==1.2.3  # the model\nnumpy==4.5.6\n")

    assert torch.endswith(" torch==1.2.3")
    assert uv.startswith("-m pip install ")
    assert rest.startswith("uv pip install --python .venv/bin/python --excludes .venv/begun ")
    assert rest.endswith(" -r requirements.txt without torch")
    assert ("--reinstall" in rest) == was_interrupted
    assert not (tmp_path / ".venv/begun").exists()


# `make back`.

RESTORED = (
    "params.yaml",
    "presets.yaml",
    "sources.yaml",
    "runtime.yaml",
    "dvc.lock",
    "metrics/train.json",
    "plots/validation.csv",
)


def contents() -> dict[str, bytes]:
    return {name: Path(name).read_bytes() for name in RESTORED}


def test_back_undoes_a_recipe_and_a_rejected_run_and_names_what_it_leaves(committed):
    recipe = {
        "presets.yaml": {"models": {"micro": {"d_ff": 64}}},
        "runtime.yaml": {"train": {"timeout_s": 7}},
    }
    Path("recipes/mine.yaml").write_text(yaml.safe_dump(recipe))
    committed.commit("a recipe")
    before = contents()
    used = committed.run("python", "src", "use", "mine")
    assert used.stdout.splitlines()[-1] == "undo: make back"
    after_use = contents()
    assert {name for name in RESTORED if after_use[name] != before[name]} == set(recipe)
    rejected = committed.run("dvc", "exp", "run", "-S", "data.source=local", check=False)
    assert rejected.returncode != 0
    assert "`make back`" in rejected.stderr
    model = Path("data/models/model.json")
    model_before = model.read_bytes()
    model.unlink()
    with open("src/lm/model/gemma3.py", "a") as file:
        file.write("# changed\n")

    lines = committed.run("make", "back").stdout.splitlines()

    assert contents() == before
    assert model.read_bytes() == model_before
    (heading,) = [number for number, line in enumerate(lines) if "`git restore src`" in line]
    left = lines[heading + 1 :]
    assert " M src/lm/model/gemma3.py" in left
    assert not any(name in line for name in RESTORED for line in left)


def test_back_changes_nothing_while_a_stage_runs(committed):
    """`dvc exp run` would record the committed run under the name of the experiment."""
    committed.change(**{"train.seed": 2})

    with output_lock("data/models"):
        done = committed.run("make", "back", check=False)

    assert "DVC or a stage is running here" in done.stderr
    assert "seed: 2" in Path("params.yaml").read_text()


@pytest.mark.slow
def test_back_undoes_what_is_staged_keeps_own_staged_files_and_says_if_no_branch_is_checked_out(committed):
    """As `dvc exp apply` and `git add` leave them, and a `dvc exp run` that was killed."""
    before = contents()
    committed.change(**{"train.seed": 2})
    Path("metrics/train.json").write_text("{}")
    own_file = Path("plots/mine.csv")
    own_file.write_text("x\n")
    committed.run("git", "add", "--force", "params.yaml", "metrics", "plots")
    on_a_branch = committed.run("make", "back").stdout
    committed.run("git", "switch", "-q", "--detach")
    on_none = committed.run("make", "back").stdout

    assert contents() == before
    assert own_file.read_text() == "x\n"
    assert "git switch main" not in on_a_branch
    assert "No branch is checked out" in on_none


@pytest.mark.slow
def test_back_restores_a_file_that_git_takes_for_unchanged(committed):
    """DVC leaves such a file after a refused run: with a value of the same length and the time that git's index has."""
    path = Path("params.yaml")
    before = path.read_bytes()
    time = (0, 0)
    committed.run("git", "config", "core.trustctime", "false")
    os.utime(path, time)
    committed.run("git", "add", "params.yaml")  # the index has the time
    path.write_bytes(before.replace(b"1", b"2", 1))
    os.utime(path, time)
    committed.run("git", "restore", "params.yaml")
    assert path.read_bytes() != before, "git restore alone does nothing"

    committed.run("make", "back")

    assert path.read_bytes() == before


@pytest.mark.slow
def test_back_names_a_file_that_dvc_does_not_delete_and_the_command_that_shows_what_to_do(committed):
    damaged = "data/processed_datasets/train.bin"
    path = Path(damaged)
    path.unlink()
    path.write_bytes(b"cut")

    done = committed.run("make", "back", check=False)

    assert done.returncode
    assert damaged in done.stderr
    assert "`python src verify` prints a command for each" in done.stderr
    repair = f"rm -rf {damaged} && dvc checkout {damaged}"
    assert repair in committed.run("python", "src", "verify", check=False).stderr
    committed.run("bash", "-euc", repair)
    committed.run("make", "back")


@pytest.mark.slow
def test_back_during_a_merge_with_conflicts_says_how_to_end_it(committed):
    committed.run("git", "switch", "-qc", "other")
    committed.change(**{"train.seed": 2})
    committed.commit("other")
    committed.run("git", "switch", "-q", "main")
    committed.change(**{"train.seed": 3})
    committed.commit("ours")
    committed.run("git", "merge", "other", check=False)
    params = Path("params.yaml")

    done = committed.run("make", "back", check=False)

    assert done.returncode != 0
    assert "<<<<<<<" in params.read_text()

    # The merge can be undone also after a `dvc repro`, which changes files that have no conflicts.
    with open("dvc.lock", "a") as file:
        file.write("# run again\n")
    undo = re.search(r"undo it: `(.*?)`", done.stderr)[1]
    committed.run("bash", "-euc", undo)
    assert committed.get("train.seed") == 3


def test_commands_have_a_user_name_also_where_the_system_knows_none():
    """DVC asks for it; in a container with the user id of the host there is none."""
    command = ["env", "-u", "USER", *MAKE, "--eval", "show:; @echo $$USER", "show"]

    printed = subprocess.check_output(command, cwd=ROOT, text=True)

    assert printed.strip() == str(os.getuid())


@pytest.mark.slow
def test_the_table_of_experiments_fits_a_terminal_and_its_file_has_all_columns(committed):
    committed.change(**{"train.peak_lr": 0.5})
    Path("metrics/eval.json").write_text('{"bits_per_byte": 1.5}')
    committed.run("dvc", "exp", "save", "--force", "--name", "a-name-of-some-length")
    # A run that fails shows the committed metrics as its own.
    committed.run("dvc", "exp", "run", "--queue", "--name", "failed", "-S", "train.seq_len=7")
    try:
        committed.run("dvc", "queue", "start")
        wait_for(lambda: re.search("failed .* Failed", committed.run("dvc", "queue", "status").stdout))
    finally:
        committed.run("dvc", "queue", "stop", "--kill", check=False)

    printed = committed.run("make", "table", COLUMNS="160").stdout

    assert re.search("Experiment +bits_per_byte +train.peak_lr", printed)
    assert "a-name-of-some-length" in printed
    assert "failed" not in printed
    content = Path("experiments.csv").read_text()
    columns = content.splitlines()[0].split(",")
    assert "failed" not in content
    assert {"val_loss", "train.seq_len"} <= set(columns)


def test_make_ends_with_a_verdict(committed):
    lines = committed.run(*MAKE).stdout.splitlines()

    verdict = lines.index("Bitwise identical to the committed run (all 19 outputs).")
    assert "bits per byte" in lines[verdict + 1]
    assert "next:" in lines[verdict:]
