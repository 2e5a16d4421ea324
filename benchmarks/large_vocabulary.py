"""The memory that the stage train takes for a model with a large vocabulary."""

import tempfile
from pathlib import Path

import numpy as np

from lm.tokens.tokenfile import write_tokens
from stages import change_params, run_stage, stage_folder


def memory_of_large_vocabulary(shape: dict, seq_len: int, steps: int, keep_freed_memory: bool) -> dict:
    """Train the shape by the stage itself on random ids, one sequence a step; its peak of resident memory."""
    vocab_size = shape["vocab_size"]
    with tempfile.TemporaryDirectory(prefix="train-step-") as name:
        folder = stage_folder(Path(name))
        write_random_tokens(folder, vocab_size, seq_len)
        model = {key: value for key, value in shape.items() if key != "vocab_size"}
        change_params(
            folder,
            {"models.measured": model, "model.name": "measured", "train.warmup_steps": 1}
            | {f"train.{key}": seq_len for key in ("seq_len", "batch_tokens", "micro_batch_tokens", "eval_tokens")}
            | {f"train.{key}": steps * seq_len for key in ("max_tokens", "eval_every_tokens", "log_every_tokens")},
        )
        change_params(folder, {"train.keep_freed_memory": keep_freed_memory}, "runtime.yaml")
        used = run_stage(folder, "train")
    return {"keep_freed_memory": keep_freed_memory, "vocab_size": vocab_size, "steps": steps, **used}


def write_random_tokens(folder: Path, vocab_size: int, seq_len: int) -> None:
    """train.bin and validation.bin with sidecars, of ids that any model takes."""
    dtype, data = ("uint32" if vocab_size > 1 << 16 else "uint16"), folder / "data" / "processed_datasets"
    ids = np.random.default_rng(1).integers(vocab_size - 1, size=64 * seq_len).astype(dtype)
    meta = {"surprisal_bits": None, "tokenizer": {"vocab_size": vocab_size, "eot_id": vocab_size - 1, "sha256": "0"}}
    for name in ("train", "validation"):
        write_tokens(data / f"{name}.bin", [ids], dtype, lambda: meta)
