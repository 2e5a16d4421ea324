"""Compress the validation file by the model, decompress it, and compare its size with the loss that `eval` reports.

    PYTHONPATH=src:benchmarks python benchmarks/quality/compress.py --folder .

It uses the finished pipeline of a folder. One thread decompresses what two compressed: the bits must be the same.
"""

import argparse
import filecmp
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import RESULTS, ROOT, hardware
from lm.core.files import read_json, write_json

VALIDATION = Path("data/processed_datasets/validation.bin")


def timed(folder: Path, threads: int, *command: Path | str) -> dict[str, float]:
    """Run a tool of this repository on the files of a folder; return the threads and the seconds."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    start = time.perf_counter()
    subprocess.run([sys.executable, ROOT / "src", *command], cwd=folder, env=environment, check=True)
    return {"threads": threads, "seconds": round(time.perf_counter() - start, 1)}


def main() -> None:
    """Record sizes, losses and times."""
    parser = argparse.ArgumentParser(description="Compress and decompress the validation file.")
    parser.add_argument("--folder", type=Path, required=True, help="its pipeline has run")
    folder = parser.parse_args().folder
    validation = folder / VALIDATION
    with tempfile.TemporaryDirectory(prefix="compress-") as temporary:
        compressed = Path(temporary, "validation.rlmc")
        again = Path(temporary, "again.bin")
        compressing = timed(folder, 2, "compress", VALIDATION, compressed)
        decompressing = timed(folder, 1, "decompress", compressed, again)
        assert filecmp.cmp(validation, again, shallow=False), "decompress gave other bytes"
        file_bytes = compressed.stat().st_size

    # The size of the whole file, with its header, in bits per byte of text.
    sidecar = read_json(validation.with_suffix(".json"))
    bits_per_byte = 8 * file_bytes / sidecar["utf8_bytes"]
    eval_bits_per_byte = read_json(folder / "metrics" / "eval.json")["bits_per_byte"]
    found = {
        "weights_sha256": read_json(folder / "data" / "models" / "model.json")["best"]["sha256"],
        "utf8_bytes": sidecar["utf8_bytes"],
        "tokens": sidecar["tokens"],
        "file_bytes": file_bytes,
        "bits_per_byte": bits_per_byte,
        "eval_bits_per_byte": eval_bits_per_byte,
        "ratio": bits_per_byte / eval_bits_per_byte,
        "compress": compressing,
        "decompress": decompressing,
    }
    write_json(RESULTS / "compress.json", {"hardware": hardware()} | found)


if __name__ == "__main__":
    main()
