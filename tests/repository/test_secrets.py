"""A token in the environment is in no file that the pipeline and its commands write, and in nothing they print."""

import pytest

from support.workspace import Workspace

TOKEN = "hf_" + 4 * "SecretOfTheTest"  # this file, which the workspace has too, does not hold it in full
NAMES = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY")
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
    workspace.environment |= {**dict.fromkeys(NAMES, TOKEN), "HF_HUB_OFFLINE": "1"}
    for command in COMMANDS:
        ran = workspace.run(*command)
        assert TOKEN not in ran.stdout + ran.stderr, command
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    written = {path.relative_to(workspace.folder).as_posix() for path in files}
    assert {"report.html", "data/models/model.json", "exported/README.md"} <= written
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []
