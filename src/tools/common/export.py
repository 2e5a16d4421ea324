"""Write a trained model as a folder that transformers loads, without its card."""

import shutil
from pathlib import Path

import torch

from lm.core.files import read_json, write_json
from lm.model.gemma3 import Gemma3Model
from lm.model.weights import RECORD, check_trained_with, load_trained, recorded_numerics
from lm.tokenizer.build import write_for_generation
from lm.tokenizer.load import META, Tokenizer, load_tokenizer
from tools.common import paths
from tools.common.hugging_face import write_pretrained
from tools.common.lock import warn_of_changed_code


def load_run(models: Path, tokenizer_folder: Path) -> tuple[Gemma3Model, dict, Tokenizer]:
    """Return the best model of a run, its record and its tokenizer. Raise IntegrityError if they do not fit.

    The model is on the CPU and computes in the numerics of its training. Warn if its code changed since then.
    """
    numerics = recorded_numerics(read_json(models / RECORD))
    model, record = load_trained(models, torch.device("cpu"), numerics)
    tokenizer = load_tokenizer(tokenizer_folder)
    check_trained_with(tokenizer.sha256, tokenizer.folder, models, record)
    warn_of_changed_code(models)
    return model, record, tokenizer


def tokenizer_files(tokenizer: Tokenizer) -> list[str]:
    """Return the names of the files of a tokenizer folder."""
    return [META, *tokenizer.meta["files"]]


def write_model(folder: Path, model: Gemma3Model, record: dict, tokenizer: Tokenizer) -> None:
    """Write weights, configuration, record and tokenizer, as trained and for generation, into an empty folder."""
    (folder / paths.TOKENIZER.name).mkdir()
    for name in tokenizer_files(tokenizer):
        shutil.copyfile(tokenizer.folder / name, folder / paths.TOKENIZER.name / name)
    write_for_generation(folder, tokenizer.folder, tokenizer.eot_id)
    write_pretrained(folder, model, tokenizer.eot_id)
    write_json(folder / RECORD, {name: value for name, value in record.items() if name != "last"})
