"""How far the loss moves when only the machine does: instruction sets, threads, number format.

    PYTHONPATH=src python benchmarks/tolerance.py [--tokens 409600]

The stage `train` with the default parameters in fast numerics, cut to --tokens, once for each setting and twice for the
first one, which must give the same bits. The order of samples is a function of the seed alone; what
moves the loss is the rounding of sums. Writes benchmarks/results/tolerance.json, on which the
tolerance in docs/troubleshooting.md rests.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

from harness import hardware, versions
from lm.core.files import sha256_file, write_json
from stages import change_params, run_stage, stage_folder

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
NO_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
SETTINGS = {
    "bfloat16, 2 threads": ("bfloat16", {"OMP_NUM_THREADS": "2"}),
    "bfloat16, 2 threads, again": ("bfloat16", {"OMP_NUM_THREADS": "2"}),
    "bfloat16, 1 thread": ("bfloat16", {"OMP_NUM_THREADS": "1"}),
    "bfloat16, 2 threads, without AMX": ("bfloat16", {"OMP_NUM_THREADS": "2", **NO_AMX}),
    "float32, 2 threads": ("float32", {"OMP_NUM_THREADS": "2"}),
    "float32, 1 thread": ("float32", {"OMP_NUM_THREADS": "1"}),
    "float32, 2 threads, AVX2": ("float32", {"OMP_NUM_THREADS": "2", **AVX2}),
    "float32, 1 thread, AVX2": ("float32", {"OMP_NUM_THREADS": "1", **AVX2}),
}


def run(folder: Path, dtype: str, environment: dict[str, str]) -> dict:
    """Train under an environment: the loss, the weights' hash, what the run says it was computed on."""
    change_params(folder, {"train.numerics": "fast", "train.dtype": dtype})
    before = dict(os.environ)
    os.environ |= environment
    try:
        run_stage(folder, "train")
    finally:
        os.environ.clear()
        os.environ |= before
    record = json.loads((folder / "data/models/model.json").read_text())
    sha256 = sha256_file(folder / "data/models/last_model_params.pt")
    for done in (folder / ".runs").iterdir():  # the fingerprint does not hold the environment
        done.rename(done.with_name(f"{done.name}-{len(list(done.parent.iterdir()))}"))
    return {"val_loss": record["last"]["val_loss"], "sha256": sha256, "computed_on": record["segments"][0]}


def spread(results: dict[str, dict], dtype: str | None = None) -> float:
    """Largest difference of the loss between settings, in nats a token."""
    losses = [r["val_loss"] for r in results.values() if dtype in (None, r["computed_on"]["dtype"])]
    return max(losses) - min(losses)


def main() -> None:
    """Fetch and tokenize once, train under every setting, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=409_600)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "tolerance.json")
    args, results = parser.parse_args(), {}
    with tempfile.TemporaryDirectory(prefix="tolerance-") as name:
        folder = stage_folder(Path(name) / "run")
        change_params(folder, {"train.max_tokens": args.tokens})
        for stage in ("resolve", "fetch", "select", "make_tokenizer", "tokenize_train", "tokenize_val"):
            run_stage(folder, stage)
        for setting, (dtype, environment) in SETTINGS.items():
            results[setting] = run(folder, dtype, environment)
            print(f"{setting}: {results[setting]['val_loss']:.6f} nats/token", flush=True)
    first, second, *_ = results.values()
    write_json(args.out, {
        "hardware": hardware(), "versions": versions("torch", "numpy"), "tokens": args.tokens, "runs": results,
        "same_bits_when_repeated": first["sha256"] == second["sha256"],
        "spread_nats_per_token": {
            "bfloat16": spread(results, "bfloat16"), "float32": spread(results, "float32"), "all": spread(results),
        },
    })  # fmt: skip


if __name__ == "__main__":
    main()
