"""Paths of the pipeline's files, copied from dvc.yaml."""

from pathlib import Path

from lm.core.paths import LOCK, PARAMS, PIPELINE, PRESETS, RUNTIME, SOURCES  # noqa: F401

RAW, TOKENIZER, AUDIT, MODELS, EVALUATION = (
    Path("data", name) for name in ("raw", "tokenizer", "audit", "models", "evaluation")
)
TRAIN, VALIDATION = (Path("data/processed_datasets", name) for name in ("train.bin", "validation.bin"))
METRICS = Path("metrics")
PLOTS = Path("plots")
CURVE = PLOTS / "validation.csv"  # validations of a run

MANIFEST = RAW / "manifest.json"
TOKENIZER_META = TOKENIZER / "meta.json"
MODEL = MODELS / "model.json"
TRAIN_SIDECAR = TRAIN.with_suffix(".json")
VALIDATION_SIDECAR = VALIDATION.with_suffix(".json")
EVALUATION_DETAILS = EVALUATION / "details.json"
DOCUMENT_LOSSES = EVALUATION / "document_losses.parquet"
SAMPLES = EVALUATION / "samples.json"
DATA_METRICS, TRAIN_METRICS, EVAL_METRICS = (METRICS / f"{name}.json" for name in ("data", "train", "eval"))
GOLDEN = METRICS / "golden_bits.json"  # the bits that `verify --processor` compares, and the processors that had them
