"""The batches that the model in the workspace was trained on, by its record."""

from lm.core.errors import IntegrityError
from lm.core.files import check_types, read_json
from lm.tokens.tokenfile import TokenFile
from lm.tokens.windows import TokenWindows
from tools.record.paths import MODEL, TRAIN

RECORD = {
    "seed": int,
    "seq_len": int,
    "data_sha256": {"train": str},
    "init_sha256": (str, type(None)),
    "best": {"step": int, "sha256": str},
    "last": {"step": int, "tokens_seen": int},
}


def read_record(tokens: TokenFile) -> dict:
    """Return model.json. Raise IntegrityError if the model was imported, or trained on another token file."""
    record = read_json(MODEL)
    check_types(MODEL, record, RECORD, "run `dvc repro`; a model that was imported has no record of its training")
    if record["data_sha256"]["train"] != tokens.meta["sha256"]:
        raise IntegrityError(f"{MODEL}: trained with another {TRAIN}; run `dvc repro`")
    return record


def recorded_windows(record: dict, tokens: TokenFile) -> TokenWindows:
    """Return the windows that the model was trained on."""
    last = record["last"]
    batch_size = last["tokens_seen"] // last["step"] // record["seq_len"]
    return TokenWindows(tokens.ids, record["seq_len"], batch_size, record["seed"])
