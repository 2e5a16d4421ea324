"""Paths of the pipeline's files as in dvc.yaml."""

from pathlib import Path

from lm.core.paths import PARAMS, PRESETS, RUNTIME, SOURCES  # noqa: F401

PIPELINE, LOCK = Path("dvc.yaml"), Path("dvc.lock")

RAW, TOKENIZER, AUDIT, MODELS, EVALUATION = (
    Path("data", name) for name in ("raw", "tokenizer", "audit", "models", "evaluation")
)
TRAIN, VALIDATION = (Path("data/processed_datasets", name) for name in ("train.bin", "validation.bin"))
METRICS, PLOTS = Path("metrics"), Path("plots")

MANIFEST, TOKENIZER_META, MODEL = RAW / "manifest.json", TOKENIZER / "meta.json", MODELS / "model.json"
TRAIN_SIDECAR, VALIDATION_SIDECAR = TRAIN.with_suffix(".json"), VALIDATION.with_suffix(".json")
EVALUATION_DETAILS = EVALUATION / "details.json"
DOCUMENT_LOSSES, SAMPLES = EVALUATION / "document_losses.parquet", EVALUATION / "samples.json"
DATA_METRICS, TRAIN_METRICS, EVAL_METRICS = (METRICS / f"{name}.json" for name in ("data", "train", "eval"))
GOLDEN = METRICS / "golden_bits.json"  # the bits that `prove` compares, and the processors that had them
