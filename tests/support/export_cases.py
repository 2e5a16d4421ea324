"""An untrained model with the records of a run, and its export."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

from lm.core.files import write_json
from lm.core.params import read_yaml
from lm.model.seen import SEEN
from support import ROOT
from support.model_cases import SHAPE, build, write_bpe, write_trained
from support.stages import change_params
from tools.export_hf.cli import main

PARAMS = read_yaml(ROOT / "params.yaml")
SOURCES = read_yaml(ROOT / "sources.yaml")
SOURCE = PARAMS["data"]["source"]

# The records of the stages.
SIZES = {
    "train": {"documents": 9, "utf8_bytes": 12345, "tokens": 5000},
    "validation": {"documents": 7, "utf8_bytes": 1234, "tokens": 500},
}
MANIFEST = {
    "source": SOURCE,
    "sources": {SOURCE: {"kind": "torch_headers", "package": "torch==2.13.0"}},
}
AUDIT = SIZES | {
    "contamination": {"ngram_tokens": 13, "contaminated_fraction": 0.0812},
    "tokenizer": {"longest": [{"text": "|\n|", "count": 1}]},
    "selection": {"name": "none", "dropped": {}},
}
EVALUATION = {
    "window_tokens": 32,
    "stride_tokens": 16,
    "documents": 7,
    "utf8_bytes": 1234,
    "bits_per_byte": 1.23456789,
    "bits_per_byte_se": 0.04321,
    "bits_per_byte_interval": [1.1111, 1.4444],
    "held_out": {"documents": 7, "bits_per_byte": 2.75, "bits_per_byte_se": 0.05},
    "clean": {"documents": 6, "bits_per_byte": 1.25, "bits_per_byte_se": None},
    "samples": {"samples": 9, "longest_copy_tokens": 67},
}


def call(*arguments) -> int:
    """Run export_hf; return its exit status."""
    return main([str(argument) for argument in arguments])


def write_run(folder: Path) -> SimpleNamespace:
    """Write the files of a run into a folder as `dvc repro` leaves them."""
    data = folder / "data"
    tokenizer = write_bpe(data / "tokenizer")
    model = build(tokenizer.vocab_size)
    record = write_trained(data / "models", model, tokenizer)
    (data / "models" / SEEN).write_bytes(b"hashes")
    write_parameters(folder)
    write_records(data, record)
    return SimpleNamespace(
        folder=folder,
        tokenizer=tokenizer,
        model=model,
        record=record,
    )


def write_parameters(folder: Path) -> None:
    """Write the parameter files of the model that `write_trained` leaves."""
    for name in ("params.yaml", "presets.yaml", "sources.yaml"):
        (folder / name).write_text((ROOT / name).read_text())
    of_training = {"train.seq_len": 32, "train.seed": 1, "train.eval_tokens": 512}
    change_params(folder, {"model.name": "micro", "models": {"micro": SHAPE}} | of_training)


def write_records(data: Path, record: dict) -> None:
    """Write the records of the stages before and after `train`; `record` is model.json."""
    write_json(data / "raw" / "manifest.json", MANIFEST)
    for split, sizes in SIZES.items():
        sidecar = sizes | {
            "sha256": record["data_sha256"][split],
            "source": {"name": SOURCE, "text_sha256": "ab" * 32},
        }
        write_json(data / "processed_datasets" / f"{split}.json", sidecar)
    write_json(data / "audit" / "details.json", AUDIT)
    weights_sha256 = record["best"]["sha256"][:12]
    write_json(data / "evaluation" / "details.json", EVALUATION | {"weights_sha256": weights_sha256})


def write_export(folder: Path) -> SimpleNamespace:
    """Write a run and export it to `path`."""
    run = write_run(folder)
    run.path = folder / "export"
    with contextlib.chdir(folder):
        assert call(run.path) == 0
    return run
