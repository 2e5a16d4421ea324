"""Folders in which a recipe is applied and trains for a few steps on small text."""

import itertools
import shutil
import subprocess
from pathlib import Path

from lm.core.params import read_yaml
from support import ROOT
from support.loopback_hub import LoopbackHub, parquet_bytes
from support.model_cases import write_gemma_like
from support.stages import MICRO_MODEL, change_params, module_and_arguments, run_stages, stage_folder
from support.texts import sentences
from support.tokenizer_cases import TIKTOKEN_CACHE
from support.workspace import path_of_programs
from tools import use

RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))
TOKEN = "hf_of_the_test"  # opens the gated repositories of the hub on loopback
COMMIT = "c" * 40  # of what a recipe names by its branch
NUM_STEPS = 4
# What makes a run small, whatever the recipe says of its size.
SMALL = {
    "tokenizers.bpe.vocab_size": 300,
    "train.seq_len": 32,
    "train.batch_tokens": 512,
    "train.micro_batch_tokens": 256,
    "train.max_tokens": 512 * NUM_STEPS,
    "train.warmup_steps": 1,
    "train.compile": False,
    "train.log_every_tokens": 512,
    "train.eval_every_tokens": 1024,
    "train.eval_tokens": 256,
    "eval.stride_fraction": 1.0,
    "eval.sample_tokens": 4,
    "eval.num_samples": 1,
}


def recipe_folder(folder: Path) -> Path:
    """Make a folder that stages and `use` take for the repository, with a copy of the recipes."""
    stage_folder(folder)
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    return folder


def make_small(folder: Path) -> None:
    """Shrink what the recipe selects: its model, its batches, its steps, and its ranges of characters.

    In place of the headers of torch it reads data/local. In place of GPT-2's vocabulary it trains one, where that would
    have to be downloaded.
    """
    params = read_yaml(folder / "params.yaml")
    model = params["model"]["name"]
    source = params["data"]["source"]
    validation = read_yaml(folder / "sources.yaml")["sources"][source]["validation"]

    changes = SMALL | {f"models.{model}": MICRO_MODEL}
    if source == "torch_headers":
        changes["data.source"] = "local"
    if not TIKTOKEN_CACHE.exists():
        changes["tokenizers.gpt2"] = {"kind": "bpe", "vocab_size": 300, "pretokenizer": "gpt2"}
    if validation["start_char"] > 0:
        changes[f"sources.{source}.train.num_chars"] = 20_000
        changes[f"sources.{source}.validation.start_char"] = 20_000
        changes[f"sources.{source}.validation.num_chars"] = 5_000
    change_params(folder, changes)


def serve(hub: LoopbackHub, folder: Path) -> None:
    """Give the hub small files of the names that the selected source and tokenizer ask for; both are gated."""
    params = read_yaml(folder / "params.yaml")
    sources = read_yaml(folder / "sources.yaml")["sources"]
    tokenizers = read_yaml(folder / "presets.yaml")["tokenizers"]
    fetch = sources[params["data"]["source"]]["fetch"]
    tokenizer = tokenizers[params["tokenizer"]["name"]]

    if fetch["kind"] == "hub":
        paths = itertools.chain(*fetch["files"].values())
        files = {}
        for seed, path in enumerate(paths):
            files[path] = parquet_bytes(**{fetch["column"]: sentences(120, seed)})
        is_commit = len(fetch["revision"]) == len(COMMIT)
        commit = fetch["revision"] if is_commit else COMMIT
        hub.add("datasets", fetch["repo"], commit, files, gated=TOKEN)

    if tokenizer["kind"] == "huggingface":
        source = folder.parent / "gemma"
        write_gemma_like(folder.parent / "written", source)
        files = {path.name: path.read_bytes() for path in source.iterdir()}
        hub.add("models", tokenizer["repo"], COMMIT, files, gated=TOKEN)


def bring_text_and_tokenizer(folder: Path, home: Path) -> None:
    """Run the first two stages in processes of their own: the clients of the Hub read its address when they load."""
    with LoopbackHub() as hub:
        serve(hub, folder)
        environment = hub.environment(
            home,
            HF_TOKEN=TOKEN,
            TIKTOKEN_CACHE_DIR=str(TIKTOKEN_CACHE),
            OMP_NUM_THREADS="1",
        )
        environment["PATH"] = path_of_programs()
        for stage in ("fetch", "make_tokenizer"):
            module, arguments = module_and_arguments(stage)
            command = ["python", f"src/{module}.py", *arguments]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr


def train_small(folder: Path) -> None:
    """Run all stages, small, in the working directory `folder`."""
    assert Path.cwd() == folder
    make_small(folder)
    bring_text_and_tokenizer(folder, folder.parent / "hf")
    run_stages(("tokenize_train", "tokenize_val", "audit", "train", "eval", "plot"))


def write_own_text(folder: Path, seed: int = 0) -> None:
    """Write documents into data/local, one a file."""
    for i, text in enumerate(sentences(80, seed)):
        (folder / "data" / "local" / f"{i}.txt").write_text(text, encoding="utf-8")


def apply(name: str) -> None:
    """Apply a recipe in the working directory."""
    assert use.main([name]) == 0
