"""Where the pipeline's files are, as dvc.yaml has them, and the packages that a result depends on."""

from pathlib import Path

from tools.common.records import Places

PLACES = Places(
    raw=Path("data/raw"),
    tokenizer=Path("data/tokenizer"),
    train=Path("data/processed_datasets/train.bin"),
    validation=Path("data/processed_datasets/validation.bin"),
    models=Path("data/models"),
    metrics=Path("metrics"),
)
PACKAGES = ("torch", "numpy", "tokenizers", "pyarrow", "matplotlib", "dvc")
