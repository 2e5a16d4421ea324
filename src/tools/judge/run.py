"""Run the pipeline for `judge`, in a worktree: train with a seed, and write the loss of each validation document.

    SEED=1 LOSSES=losses.csv REPOSITORY=.. python src judge_run

`judge` sets these variables: the seed, the table to write, and the folder in which it was started. It links the user's
own text. DVC is not used, so that no run can reuse files that another one left behind.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from lm.core.errors import IntegrityError, ParamsError, exit_with_status
from lm.core.files import read_json, read_parquet, write_csv
from lm.core.params import read_yaml
from lm.tokens.tokenfile import LOSSY, lossy_fractions
from tools.record.arguments import tool_parser
from tools.record.commands import environment_of_commands
from tools.record.parameters import comment_keeping_yaml
from tools.record.paths import AUDIT, DOCUMENT_LOSSES, PARAMS, PIPELINE, TRAIN_METRICS, VALIDATION_SIDECAR

OF_ALL_SEEDS = ("fetch", "make_tokenizer", "tokenize_train", "tokenize_val", "audit")
OF_A_SEED = ("train", "eval")
EXACT = Path("src/lm/exact")


def read_variable(name: str) -> str:
    """Return a variable of the environment. ParamsError if it is not set."""
    if not os.environ.get(name):
        raise ParamsError(f"{name} is not set; `python src judge` sets it and calls this command")
    return os.environ[name]


def set_seed(seed: int) -> None:
    """Write the seed into params.yaml."""
    editor = comment_keeping_yaml()
    params = editor.load(PARAMS.read_text(encoding="utf-8"))
    params["train"]["seed"] = seed
    with open(PARAMS, "w", encoding="utf-8") as file:
        editor.dump(params, file)


def copy_compiled_loops(repository: Path) -> None:
    """Copy the machine code of the loops, whose sources no candidate changes: compiling it takes 15 seconds.

    numba uses it only for a source with the same time.
    """
    for path in EXACT.rglob("*.py"):
        shutil.copystat(repository / path, path)
    for path in repository.glob(f"{EXACT}/cpu/__pycache__/*.nb[ci]"):
        own = path.relative_to(repository)
        own.parent.mkdir(exist_ok=True)
        shutil.copy2(path, own)


def commands_of(stages: tuple[str, ...], pipeline: dict) -> list[str]:
    """Return the commands of some stages of dvc.yaml, each once."""
    commands: list[str] = []
    for stage in stages:
        listed = pipeline["stages"][stage]["cmd"]
        commands += [listed] if isinstance(listed, str) else listed
    return list(dict.fromkeys(commands))


def reject_other_run(max_tokens: int, batch_tokens: int) -> None:
    """Raise IntegrityError if the run trained on more or fewer tokens than asked for, or its tokenizer is lossy."""
    seen = read_json(TRAIN_METRICS)["tokens_seen"]
    if not max_tokens - batch_tokens < seen <= max_tokens:
        raise IntegrityError(f"{TRAIN_METRICS}: tokens_seen is {seen}; it must be train.max_tokens, {max_tokens}")
    if lossy_fractions(read_json(VALIDATION_SIDECAR)):
        raise IntegrityError(f"{VALIDATION_SIDECAR}: {LOSSY}; use a tokenizer that gives back every text")


def write_losses(path: Path) -> None:
    """Write the loss of each validation document. A document's name is the hash of the text and its number."""
    source = read_json(VALIDATION_SIDECAR)["source"]
    text = source["text_sha256"][:16]
    losses = read_parquet(DOCUMENT_LOSSES).select(["document", "nats", "utf8_bytes"]).to_pydict()
    rows = zip(*losses.values(), strict=True)
    named = [(f"{text}/{number}", repr(nats), utf8_bytes) for number, nats, utf8_bytes in rows]
    write_csv(path, ["document", "nats", "utf8_bytes"], named)


@exit_with_status
def main(argv: list[str]) -> int:
    """Run the stages that are missing; return the status of the command that failed, or 0."""
    tool_parser("judge_run", __doc__).parse_args(argv)
    seed, losses, repository = (read_variable(name) for name in ("SEED", "LOSSES", "REPOSITORY"))
    set_seed(int(seed))
    copy_compiled_loops(Path(repository))

    # The seeds of a commit share their worktree, and so the text and the tokens.
    stages = OF_A_SEED if AUDIT.exists() else OF_ALL_SEEDS + OF_A_SEED
    for command in commands_of(stages, read_yaml(PIPELINE)):
        done = subprocess.run(shlex.split(command), env=environment_of_commands(), stdout=sys.stderr)
        if done.returncode:
            return done.returncode

    train = read_yaml(PARAMS)["train"]
    reject_other_run(train["max_tokens"], train["batch_tokens"])
    write_losses(Path(losses))
    return 0
