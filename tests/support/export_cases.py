"""An untrained model with the records of a run, and its export."""

from pathlib import Path
from types import SimpleNamespace

import yaml

from lm.core.files import write_json
from support import ROOT
from support.model_cases import SHAPE, build, write_bpe, write_trained
from tools.export_hf.cli import main

PARAMS, PRESETS, SOURCES = (
    yaml.safe_load((ROOT / name).read_text()) for name in ("params.yaml", "presets.yaml", "sources.yaml")
)
SIZES = {"train": {"documents": 9, "utf8_bytes": 12345, "tokens": 5000}}
SIZES |= {"validation": {"documents": 7, "utf8_bytes": 1234, "tokens": 500}}
AUDIT = SIZES | {
    "contamination": {"ngram_tokens": 13, "contaminated_fraction": 0.0812},
    "tokenizer": {"longest": [{"text": "|\n|", "count": 1}]},
    "selection": {"name": "none", "dropped": {}},
}
EVALUATION = {
    "window_tokens": 32, "stride_tokens": 16, "documents": 7, "utf8_bytes": 1234,
    "bits_per_byte": 1.23456789, "bits_per_byte_se": 0.04321, "bits_per_byte_interval": [1.1111, 1.4444],
    "held_out": {"documents": 7, "bits_per_byte": 2.75, "bits_per_byte_se": 0.05},
    "clean": {"documents": 6, "bits_per_byte": 1.25, "bits_per_byte_se": None},
    "samples": {"samples": 9, "longest_copy_tokens": 67},
}  # fmt: skip
SOURCE = PARAMS["data"]["source"]
MANIFEST = {"source": SOURCE, "sources": {SOURCE: {"kind": "torch_headers", "package": "torch==2.13.0"}}}


def call(*arguments) -> int:
    """Run export_hf."""
    return main(list(map(str, arguments)))


def write_run(folder: Path) -> SimpleNamespace:
    """Write the files of a run as `dvc repro` leaves them; `options` names them to export_hf."""
    tokenizer = write_bpe(folder / "tokenizer")
    model = build(tokenizer.vocab_size)
    record = write_trained(folder / "models", model, tokenizer)
    params = PARAMS | {"model": {"name": "micro"}}
    params["train"] = PARAMS["train"] | {"seq_len": 32, "seed": 1, "eval_tokens": 512}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    (folder / "presets.yaml").write_text(yaml.safe_dump(PRESETS | {"models": {"micro": SHAPE}}))
    (folder / "sources.yaml").write_text(yaml.safe_dump(SOURCES))
    evaluation = EVALUATION | {"weights_sha256": record["best"]["sha256"][:12]}
    for name, details in {"audit": AUDIT, "evaluation": evaluation}.items():
        write_json(folder / name / "details.json", details)
    write_json(folder / "raw" / "manifest.json", MANIFEST)
    source = {"name": SOURCE, "text_sha256": "ab" * 32}
    for split, sizes in SIZES.items():
        sidecar = sizes | {"sha256": record["data_sha256"][split], "source": source}
        write_json(folder / "processed_datasets" / f"{split}.json", sidecar)
    names = ("models", "tokenizer", "audit", "evaluation", "processed_datasets", "raw")
    names += ("params.yaml", "presets.yaml", "sources.yaml")
    options = [word for name in names for word in (f"--{Path(name).stem}", folder / name)]
    return SimpleNamespace(folder=folder, tokenizer=tokenizer, model=model, record=record, options=options)


def write_export(folder: Path) -> SimpleNamespace:
    """Write a run and export it to `path`."""
    run = write_run(folder)
    assert call(folder / "export", *run.options) == 0
    run.path = folder / "export"
    return run
