"""What training left in data/models: best_model_params.pt and model.json in, a checked model out."""

import dataclasses
from pathlib import Path

import torch

from lm.core.errors import MEND, IntegrityError
from lm.core.files import atomic_write, read_json, sha256_file
from lm.model.gemma3 import Gemma3Model, ModelConfig

RECORD = "model.json"
WEIGHTS = "best_model_params.pt"
WEIGHTS_DIGITS = 12  # of its SHA-256, by which metrics/eval.json names the model


def save_tensors(path: Path, value) -> str:
    """Write `value` with torch.save through a file object, atomically; return the file's SHA-256.

    Through a file object the bytes do not depend on the file's name, so equal weights are equal files.
    """
    with atomic_write(path) as file:
        try:
            torch.save(value, file)
        except RuntimeError as error:  # of its archive; what it came from, a full disk, says more
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
    return sha256_file(path)


def load_tensors(path: Path, sha256: str | None):
    """Load what `save_tensors` wrote onto the CPU: tensors and plain values, no code is ever run.

    Raises IntegrityError if the file is missing, unreadable or not the one of that SHA-256.
    """
    if not path.exists():
        raise IntegrityError(f"{path}: missing; run `dvc repro`")
    found = sha256_file(path)
    if sha256 is not None and found != sha256:
        raise IntegrityError(f"{path}: sha256 is {found}, its record says {sha256}; {MEND}")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many kinds for what it does not trust or cannot read
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise IntegrityError(f"{path}: refused by torch.load(weights_only=True): {reason[:150]}") from None


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


def load_initial(
    folder: Path, config: ModelConfig, tokenizer_sha256: str
) -> tuple[Gemma3Model, str] | tuple[None, None]:
    """The model that a run begins with and the SHA-256 of its weights; Nones where the folder is empty.

    Raises IntegrityError if it was trained with another tokenizer or has another shape than `config`.
    """
    if folder.is_dir() and all(path.name.startswith(".") for path in folder.iterdir()):
        return None, None
    model, record = load_trained(folder, torch.device("cpu"))
    check_trained_with(tokenizer_sha256, "the training tokens' one", folder, record)
    wanted, found = dataclasses.asdict(config), dataclasses.asdict(model.config)
    other = [f"{name} is {found[name]}, not {value}" for name, value in wanted.items() if found[name] != value]
    if other:
        raise IntegrityError(f"{folder / RECORD}: {', '.join(other)}; choose the preset of that model as model.name")
    return model, record["best"]["sha256"]


def check_trained_with(tokenizer_sha256: str, where: Path | str, models: Path, record: dict) -> None:
    """Raise IntegrityError if the model of a record knows the ids of another tokenizer."""
    found = record.get("tokenizer_sha256")
    if found != tokenizer_sha256:
        raise IntegrityError(
            f"{models / RECORD}: trained with tokenizer {str(found)[:12]}…, {where} is "
            f"{tokenizer_sha256[:12]}…; name the folder of that one, or run `dvc repro`"
        )
