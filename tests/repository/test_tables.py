"""What DVC prints about experiments can be read: real tables of a real sweep, on a terminal of 160 columns."""

import json
import re

import pytest
import yaml

from support import ROOT
from support.workspace import Workspace

COLUMNS = 160
DECISIVE = ["val_loss", "train_loss", "bits_per_byte", "bpb_se", "train_seconds"]
CHANGED_PARAMS = ["train.seq_len", "train.seed"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A small repository with three experiments: two seeds, and a longer context in the workspace."""
    workspace = Workspace(tmp_path_factory.mktemp("tables"))
    workspace.make_small()
    workspace.change(**{"train.max_tokens": 2560, "train.eval_every_tokens": 1280})
    workspace.commit()
    workspace.repro()
    workspace.commit()
    for seed in (2, 3):
        workspace.run("dvc", "exp", "run", "-n", f"seed-{seed}", "-S", f"train.seed={seed}")
        workspace.run("git", "restore", ".")
        workspace.run("dvc", "checkout")
    workspace.run("dvc", "exp", "run", "-n", "context-64", "-S", "train.seq_len=64")
    return workspace


@pytest.mark.slow
def test_a_sweep_fits_the_terminal_without_further_options(workspace):
    table = workspace.run("dvc", "exp", "show", "--only-changed", "--no-pager", COLUMNS=str(COLUMNS)).stdout
    lines = table.splitlines()
    assert max(map(len, lines)) <= COLUMNS
    header = next(line for line in lines if "Experiment" in line)
    assert [name for name in [*DECISIVE, *CHANGED_PARAMS] if name not in header] == []
    # Only the hashes of changed dependencies, which come last, may be cut off.
    assert header.split()[-1] == "…" and header.count("…") == 1
    cells = [line for line in lines if "seed-" in line or "context-64" in line]
    assert len(cells) == 3 and all(line.count("…") == 1 for line in cells), table


@pytest.mark.slow
def test_metrics_diff_shows_what_a_person_decides_by(workspace):
    rows = workspace.run("dvc", "metrics", "diff").stdout.splitlines()[1:]
    assert 1 <= len(rows) <= 10
    assert {"val_loss", "bits_per_byte"} <= {row.split()[1] for row in rows}


@pytest.mark.slow
def test_params_diff_shows_only_what_changed(workspace):
    rows = workspace.run("dvc", "params", "diff").stdout.splitlines()[1:]
    assert [row.split()[1] for row in rows] == ["train.seq_len"]


@pytest.mark.slow
def test_a_preset_is_changed_by_its_file_and_name(workspace):
    workspace.run("git", "restore", ".")
    change = "presets.yaml:models.micro.d_ff=48"
    workspace.run("dvc", "exp", "run", "--queue", "-n", "wide", "-S", change)
    assert "wide" in workspace.run("dvc", "queue", "status").stdout


def test_at_most_ten_metrics_are_committed():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].values()
    files = [name for stage in stages for entry in stage.get("metrics", []) for name in entry]
    names = [name for file in files for name in json.loads((ROOT / file).read_text())]
    assert len(names) == len(set(names)) <= 10
    assert all(re.fullmatch("[a-z_]+", name) for name in names)
