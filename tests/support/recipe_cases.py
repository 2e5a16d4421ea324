"""Folders in which a recipe is applied and trains for a few steps on small text."""

import shutil
from pathlib import Path

from lm.core.params import read_yaml
from support import ROOT
from support.stages import MICRO_MODEL, TINY, change_params, run_stages, stage_folder
from support.texts import sentences
from tools import use

RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))
NUM_STEPS = 4
# What makes a run small, whatever the recipe says of its size.
SMALL = {name: value for name, value in TINY.items() if name.startswith(("train.", "eval."))}
SMALL |= {"train.compile": False, "train.max_tokens": NUM_STEPS * TINY["train.batch_tokens"]}


def recipe_folder(folder: Path) -> Path:
    """Make a folder that stages and `use` take for the repository, with a copy of the recipes."""
    stage_folder(folder)
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    return folder


def make_small(folder: Path) -> None:
    """Shrink what the recipe selects: its model, its batches and its steps.

    Its source reads data/local, and its tokenizer is trained, where others would have to be downloaded.
    """
    params = read_yaml(folder / "params.yaml")
    sources = read_yaml(folder / "sources.yaml")["sources"]
    changes = SMALL | {
        f"models.{params['model']['name']}": MICRO_MODEL,
        f"sources.{params['data']['source']}": sources["local"],
    }
    tokenizer = params["tokenizer"]["name"]
    if tokenizer != "folder":
        changes[f"tokenizers.{tokenizer}"] = {"kind": "bpe", "vocab_size": 300, "pretokenizer": "gpt2"}
    change_params(folder, changes)


def train_small(folder: Path) -> None:
    """Run all stages, small, in the working directory `folder`."""
    assert Path.cwd() == folder
    make_small(folder)
    run_stages()


def write_own_text(folder: Path, seed: int = 0) -> None:
    """Write documents into data/local, one a file."""
    for i, text in enumerate(sentences(80, seed)):
        (folder / "data" / "local" / f"{i}.txt").write_text(text, encoding="utf-8")


def apply(name: str) -> None:
    """Apply a recipe in the working directory."""
    assert use.main([name]) == 0
