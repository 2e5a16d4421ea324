"""Check the folder that a run starts from, without torch: before the first stage runs, and where it is read."""

from pathlib import Path

from lm.core.errors import ParamsError

RECORD = "model.json"
WEIGHTS = "best_model_params.pt"


def reject_other_folder(folder: Path) -> None:
    """Raise ParamsError, with what to run instead, if `train.init_from` is not a folder like data/models.

    A folder without visible files is accepted: it means random weights.
    """
    where = f"train.init_from is {folder}"
    if not folder.is_dir():
        found = "which is a file" if folder.exists() else "which does not exist"
        raise ParamsError(f"{where}, {found}; name a folder like data/models, or data/init for random weights")
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if not names or {RECORD, WEIGHTS} <= names:
        return
    needed = "train.init_from data/start"
    if "config.json" in names:
        found = "a folder of Hugging Face, not one like data/models"
        remedy = f"run `python src export_hf --from {folder} data/start`, and make {needed}"
    elif "run.json" in names or any((folder / name / "run.json").exists() for name in names):
        found = "a folder of checkpoints, not one like data/models"
        remedy = f"run `python src verify --retrain STEP --weights data/start`, and make {needed}"
    else:
        missing = RECORD if RECORD not in names else WEIGHTS
        found = f"not a folder like data/models: it has no {missing}"
        remedy = "name one that `python src export_hf --from` or `python src verify --weights` wrote"
    raise ParamsError(f"{where}, {found}; {remedy}")
