"""The folder data/models: best_model_params.pt, last_model_params.pt and model.json, which describes both."""

import dataclasses
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from lm.core.errors import IntegrityError, ParamsError
from lm.core.files import (
    atomic_folder,
    atomic_write,
    check_sha256,
    check_types,
    read_json,
    sha256_file,
    write_json,
)
from lm.core.numerics import Numerics
from lm.core.params import coerce
from lm.model.gemma3 import Gemma3Model, ModelConfig, count_parameters
from lm.model.initial import RECORD, WEIGHTS, reject_other_folder

LAST_WEIGHTS = "last_model_params.pt"
FORM = {"config": dict, "attend_across_documents": bool, "best": {"sha256": str}}  # of model.json
WEIGHTS_DIGITS = 12  # of the weights' SHA-256, with which an evaluation names its model


def save_tensors(path: Path, value) -> str:
    """Write `value` with torch.save, atomically and with bytes that do not depend on the name; return the SHA-256."""
    with atomic_write(path) as file:
        try:
            torch.save(value, file)
        except RuntimeError as error:  # its context, such as a full disk, is clearer
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
    return sha256_file(path)


def check_archive(path: Path) -> None:
    """Raise ValueError or BadZipFile unless a file is a zip whose content is not longer than the file.

    torch.save does not compress, so the memory of torch.load follows from the length of the file.
    """
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
            raise ValueError("it is compressed")


def load_tensors(path: Path, sha256: str | None):
    """Load a file of `save_tensors` to the CPU, without running code; raise IntegrityError if it is damaged."""
    if not path.exists():
        raise IntegrityError(f"{path}: missing; run `dvc repro`")
    if sha256 is not None:
        check_sha256(path, sha256)
    try:
        check_archive(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many types
        reason = str(error).splitlines()[0] if str(error).strip() else type(error).__name__
        raise IntegrityError(f"{path}: rejected by torch.load(weights_only=True): {reason[:150]}") from None


def save_models(folder: Path, best: dict[str, Tensor], last: dict[str, Tensor], record: dict) -> None:
    """Write both weights and model.json: `record` with the SHA-256 of the weights added to "best" and "last"."""
    hashes = {"best": save_tensors(folder / WEIGHTS, best), "last": save_tensors(folder / LAST_WEIGHTS, last)}
    described = {name: {**record[name], "sha256": sha256} for name, sha256 in hashes.items()}
    write_json(folder / RECORD, {**record, **described})


def save_weights(folder: Path, weights: dict[str, Tensor], record: dict) -> None:
    """Write one file of weights and its model.json, all or nothing: `record` with their SHA-256 added to "best"."""
    with atomic_folder(folder) as temporary:
        sha256 = save_tensors(temporary / WEIGHTS, weights)
        write_json(temporary / RECORD, {**record, "best": {**record["best"], "sha256": sha256}})


def recorded_numerics(record: dict) -> Numerics:
    """Return the numerics in which the model of a record was trained; "fast" if it was imported."""
    segments = record.get("segments") or [{}]
    return "exact" if segments[-1].get("numerics") == "exact" else "fast"


def load_trained(models: Path, device: torch.device, numerics: Numerics = "fast") -> tuple[Gemma3Model, dict]:
    """Return the best model of a folder, on the device, and its model.json; raise IntegrityError if they do not fit.

    It computes in `numerics`, whatever those of its training were: "fast" is torch's own arithmetic.
    """
    record = read_json(models / RECORD)
    config = recorded_config(models / RECORD, record, "run `dvc repro -f train`")
    weights = load_tensors(models / WEIGHTS, record["best"]["sha256"])
    try:
        model = build(config, weights, (models / WEIGHTS).stat().st_size // 4, numerics)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise IntegrityError(f"{models / WEIGHTS} does not fit {RECORD}: {reason}") from None
    model.document_start_id = None if record["attend_across_documents"] else record["eot_id"]
    return model.to(device), record


def recorded_config(path: Path, record: dict, advice: str) -> ModelConfig:
    """Return the shape in a model.json; raise IntegrityError if the record has another form."""
    check_types(path, record, FORM, advice)
    if not record["attend_across_documents"]:
        check_types(path, record, {"eot_id": int}, advice)
    try:
        return coerce(record["config"], ModelConfig, "config", str(path))
    except ParamsError as error:
        raise IntegrityError(f"{error}; {advice}") from None


def build(config: ModelConfig, weights: dict[str, Tensor], most: int, numerics: Numerics = "fast") -> Gemma3Model:
    """Return a model with these weights. most: upper limit of their number, known from the file.

    Raise ValueError, before memory is taken, for a shape with many more weights, and RuntimeError or TypeError if the
    weights do not fit.
    """
    total = count_parameters(config)["total"]
    if total > 2 * most:
        raise ValueError(f"at most {most} weights found; there must be {total}")
    model = Gemma3Model(config, numerics)
    model.load_state_dict(weights)
    return model


def load_initial(
    folder: Path, config: ModelConfig, tokenizer_sha256: str, numerics: Numerics = "fast"
) -> tuple[Gemma3Model, str] | tuple[None, None]:
    """Return the model that a run starts from, after checks, and its weights' SHA-256; (None, None) without one.

    Raise ParamsError for a folder of another kind, IntegrityError for a model that does not fit.
    """
    reject_other_folder(folder)
    if all(path.name.startswith(".") for path in folder.iterdir()):
        return None, None
    model, record = load_trained(folder, torch.device("cpu"), numerics)
    advice = f"set tokenizer.name to folder and tokenizer.path to {folder}"
    check_trained_with(tokenizer_sha256, "the tokenizer of the training tokens", folder, record, advice)
    needed = dataclasses.asdict(config)
    actual = dataclasses.asdict(model.config)
    differences = [f"{name} is {actual[name]}, not {value}" for name, value in needed.items() if actual[name] != value]
    if differences:
        where = f"{folder / RECORD}: {', '.join(differences)}"
        raise IntegrityError(f"{where}; choose the preset of that model as model.name")
    return model, record["best"]["sha256"]


def check_trained_with(
    tokenizer_sha256: str,
    where: Path | str,
    models: Path,
    record: dict,
    advice: str = "name the folder of that tokenizer, or run `dvc repro`",
) -> None:
    """Raise IntegrityError if the model of a record was trained with another tokenizer than `where` has."""
    recorded = record.get("tokenizer_sha256")
    if recorded != tokenizer_sha256:
        problem = f"trained with tokenizer {str(recorded)[:12]}…, {where} is {tokenizer_sha256[:12]}…"
        raise IntegrityError(f"{models / RECORD}: {problem}; {advice}")
