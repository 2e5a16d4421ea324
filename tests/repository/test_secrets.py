"""A token in the environment is in no file that the pipeline and its commands write, and in nothing they print."""

import pytest

from support.workspace import Workspace

TOKEN = "hf_" + 4 * "SecretOfTheTest"  # this file, which the workspace has too, does not hold it in full
COMMANDS = (
    ["dvc", "repro", "--force"],
    ["python", "src", "report"],
    ["python", "src", "explain", "--step", "0"],
    ["python", "src", "export_hf", "exported"],
    ["python", "src", "verify"],
)


@pytest.mark.slow
def test_a_token_is_neither_written_nor_printed(finished, tmp_path):
    workspace = Workspace(tmp_path / "copy", finished)
    secrets = {
        "HF_TOKEN": TOKEN,
        "AWS_SECRET_ACCESS_KEY": TOKEN,
        "WANDB_API_KEY": TOKEN,
    }

    for command in COMMANDS:
        ran = workspace.run(*command, HF_HUB_OFFLINE="1", **secrets)
        assert TOKEN not in ran.stdout, command
        assert TOKEN not in ran.stderr, command

    for written in ("report.html", "data/models/model.json", "exported/README.md"):
        assert (workspace.folder / written).exists(), written
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert TOKEN.encode() not in path.read_bytes(), path
