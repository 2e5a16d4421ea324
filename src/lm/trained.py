"""What training left in data/models: best_model_params.pt and model.json in, a checked model out."""

from pathlib import Path

import torch

from lm.checkpoint import load_tensors
from lm.errors import IntegrityError
from lm.files import read_json
from lm.model import Gemma3Model, ModelConfig
from lm.tokenizer import Tokenizer

RECORD = "model.json"
WEIGHTS = "best_model_params.pt"


def load_trained(models: Path, device: torch.device) -> tuple[Gemma3Model, dict]:
    """Return the best model of a folder, on the device, and its model.json.

    Raises IntegrityError if a file is missing or damaged, or if the weights do not fit the record.
    """
    record = read_json(models / RECORD)
    try:
        config, sha256 = ModelConfig(**record["config"]), record["best"]["sha256"]
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{models / RECORD}: {error}; run `dvc repro -f train`") from None
    model = Gemma3Model(config)
    weights = load_tensors(models / WEIGHTS, sha256)
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise IntegrityError(f"{models / WEIGHTS} does not fit {RECORD}: {reason}") from None
    return model.to(device), record


def check_trained_with(tokenizer: Tokenizer, models: Path, record: dict) -> None:
    """Raise IntegrityError if the model of a record knows the ids of another tokenizer."""
    found = record.get("tokenizer_sha256")
    if found != tokenizer.sha256:
        raise IntegrityError(
            f"{models / RECORD}: trained with tokenizer {str(found)[:12]}…, {tokenizer.folder} is "
            f"{tokenizer.sha256[:12]}…; name the folder of that one, or run `dvc repro`"
        )
