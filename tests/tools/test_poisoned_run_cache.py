"""A run cache that somebody else wrote: what its records can change, and what they cannot (docs/security.md)."""

import hashlib
import json

import pytest
import yaml

from lm.core.errors import IntegrityError
from lm.tokens.tokenfile import open_tokens
from support.workspace import Workspace

STAGE = "tokenize_val"
TOKENS = "data/processed_datasets/validation.bin"
SIDECAR = "data/processed_datasets/validation.json"

pytestmark = pytest.mark.slow


@pytest.fixture
def workspace(tmp_path, finished):
    workspace = Workspace(tmp_path / "ws", finished)
    workspace.commit()
    return workspace


def read(workspace: Workspace) -> dict[str, bytes]:
    return {name: (workspace.folder / name).read_bytes() for name in (TOKENS, SIDECAR)}


def poison(workspace: Workspace, names: list[str]) -> dict[str, bytes]:
    """Let the record of the run name these outputs of another run, with the tokens reversed; return all contents."""
    own = read(workspace)
    tokens = own[TOKENS][::-1]
    sidecar = {**json.loads(own[SIDECAR]), "sha256": hashlib.sha256(tokens).hexdigest()}
    others = {TOKENS: tokens, SIDECAR: json.dumps(sidecar).encode()}
    cache = workspace.folder / ".dvc" / "cache"
    records = [path for path in (cache / "runs").rglob("*") if path.is_file()]
    (record,) = (path for path in records if "--split validation" in yaml.safe_load(path.read_text())["cmd"])
    run = yaml.safe_load(record.read_text())
    for out in run["outs"]:
        if out["path"] in names:
            content = others[out["path"]]
            out.update(md5=hashlib.md5(content).hexdigest(), size=len(content))
            path = cache / "files" / "md5" / out["md5"][:2] / out["md5"][2:]
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
    record.chmod(0o644)
    record.write_text(yaml.safe_dump(run))
    return own | {name: others[name] for name in names}


def forget_the_run(workspace: Workspace) -> None:
    """Delete the stage's entry in dvc.lock and its outputs, as before a new run."""
    path = workspace.folder / "dvc.lock"
    lock = yaml.safe_load(path.read_text())
    del lock["stages"][STAGE]
    path.write_text(yaml.safe_dump(lock, sort_keys=False))
    for name in (TOKENS, SIDECAR):
        (workspace.folder / name).unlink()


def test_what_a_commit_names_stays(workspace):
    own = read(workspace)
    assert poison(workspace, [TOKENS, SIDECAR]) != own
    for name in own:
        (workspace.folder / name).unlink()
    workspace.repro(STAGE)
    assert read(workspace) == own
    assert workspace.run("git", "status", "--porcelain").stdout == ""


def test_a_new_run_takes_outputs_that_belong_together_unless_it_does_without_the_run_cache(workspace):
    own, others = read(workspace), poison(workspace, [TOKENS, SIDECAR])
    forget_the_run(workspace)
    workspace.repro(STAGE)
    assert read(workspace) == others
    open_tokens(workspace.folder / TOKENS)
    forget_the_run(workspace)
    workspace.repro("--no-run-cache", STAGE)
    assert read(workspace) == own


def test_outputs_that_do_not_belong_together_are_refused(workspace):
    others = poison(workspace, [TOKENS])
    forget_the_run(workspace)
    workspace.repro(STAGE)
    assert read(workspace) == others
    with pytest.raises(IntegrityError, match=r"validation\.bin: sha256 is"):
        open_tokens(workspace.folder / TOKENS)
