"""What DVC adds to a large token file: a run with nothing to do, taking it into the cache, experiments side by side.

    PYTHONPATH=src python benchmarks/dvc_overhead.py [--quick] [--size 1200000000 --rounds 5]

- `dvc repro` with nothing to do, in this pipeline with a train.bin of `--size` bytes and in the same
  pipeline with outputs of a few bytes: the difference of each round, in seconds.
- `dvc add` of the file into an empty cache, the start of DVC included, beside its md5 in Python.
- two experiments at once that read the file: whether both see the very file that the cache holds.
All in temporary repositories with the settings of .dvc/config. Writes benchmarks/results/dvc_overhead.json.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import dvc.api
import numpy as np
import yaml

from harness import busy_share, interleave, summary, versions, write_results

ROOT = Path(__file__).resolve().parent.parent
LARGE = "data/processed_datasets/train.bin"
BLOCK_BYTES = 1 << 24
# Two stages: the large file, and one that says which file it was given and depends on a parameter.
EXPERIMENT = {
    "stages": {
        "make": {"cmd": "python -c pass", "outs": ["tokens.bin"]},
        "use": {
            "cmd": "python -c \"import os, json; s = os.stat('tokens.bin'); "
            "json.dump({'inode': s.st_ino, 'links': s.st_nlink}, open('seen.json', 'w'))\"",
            "deps": ["tokens.bin"],
            "params": ["seed"],
            "metrics": [{"seen.json": {"cache": False}}],
        },
    }
}


def parse() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description="The overhead of DVC on a large file.")
    parser.add_argument("--size", type=int, default=1_200_000_000, help="of the file, in bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="50 MB, two rounds: to see that it runs")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "dvc_overhead.json")
    args = parser.parse_args()
    if args.quick:
        args.size, args.rounds = 50_000_000, 2
    return args


def run(folder: Path, *command: str) -> str:
    """Run `git` or `dvc` in a repository and return what it printed; RuntimeError shows a failure."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "DVC_SITE_CACHE_DIR": str(folder.parent / "site-cache")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def new_repository(folder: Path) -> Path:
    """An empty repository of git and DVC with this project's settings."""
    folder.mkdir()
    run(folder, "git", "init", "-q", "-b", "main")
    run(folder, "dvc", "init", "-q")
    shutil.copy(ROOT / ".dvc" / "config", folder / ".dvc" / "config")
    return folder


def commit(folder: Path) -> None:
    """Put all that DVC does not keep into git."""
    run(folder, "git", "add", "-A")
    run(folder, "git", "-c", "user.name=b", "-c", "user.email=b@localhost", "commit", "-q", "-m", "state")


def write_large(path: Path, size: int) -> None:
    """A file of random bytes."""
    generator = np.random.default_rng(1)
    with open(path, "wb") as file:
        for start in range(0, size, BLOCK_BYTES):
            file.write(generator.bytes(min(BLOCK_BYTES, size - start)))


def pipeline_repository(folder: Path, size: int) -> Path:
    """This pipeline, its outputs made up, train.bin of `size` bytes, and recorded as if it had run."""
    new_repository(folder)
    for name in run(ROOT, "git", "ls-files").splitlines():
        if (ROOT / name).is_file() and name != "dvc.lock" and not name.startswith(".dvc/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for stage in yaml.safe_load((folder / "dvc.yaml").read_text())["stages"].values():
        for kind in ("outs", "metrics", "plots"):
            for out in stage.get(kind, []):
                make_up(folder / (out if isinstance(out, str) else next(iter(out))))
    write_large(folder / LARGE, size)
    run(folder, "dvc", "commit", "-q", "-f")
    commit(folder)
    return folder


def make_up(path: Path) -> None:
    """An output of a few bytes; a name without a suffix is a folder."""
    path = path if path.suffix else path / "file"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(path.name))


def nothing_to_do(folder: Path) -> None:
    """`dvc repro`, which has to find everything up to date."""
    output = run(folder, "dvc", "repro")
    assert "up to date" in output, output


def measure_no_op(folder: Path, size: int, rounds: int) -> dict:
    """Seconds of an idle `dvc repro` with the large file and without, and their differences."""
    repositories = {
        "large": pipeline_repository(folder / "large", size),
        "empty": pipeline_repository(folder / "empty", 2),
    }
    for repository in repositories.values():
        nothing_to_do(repository)
    cases = {name: lambda repository=repository: nothing_to_do(repository) for name, repository in repositories.items()}
    seconds = interleave(cases, rounds)
    extra = [large - empty for large, empty in zip(seconds["large"], seconds["empty"], strict=True)]
    print(f"nothing to do: {summary(extra)['median']:.3f} s more with the large file")
    return {"seconds": seconds, "extra_s": summary(extra)}


def measure_add(folder: Path, size: int, rounds: int) -> dict:
    """Seconds of `dvc add` into an empty cache and of Python's md5 of the file."""
    repository = new_repository(folder / "add")
    path = repository / "tokens.bin"
    write_large(path, size)

    def add(name: str) -> None:
        shutil.rmtree(repository / ".dvc" / "cache", ignore_errors=True)  # the file itself stays, by its other link
        (repository / name).chmod(0o644)
        os.utime(repository / name)  # DVC knows the hashes of files that it has seen by their times
        run(repository, "dvc", "add", "-q", name)

    def md5() -> str:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest()

    add(path.name)
    recorded = yaml.safe_load((repository / "tokens.bin.dvc").read_text())["outs"][0]["md5"]
    assert recorded == md5(), f"DVC recorded {recorded}"
    (repository / "small.bin").write_text("small")
    cases = {"dvc add": lambda: add(path.name), "md5": md5, "dvc add of five bytes": lambda: add("small.bin")}
    seconds = interleave(cases, rounds)
    share = [added / hashed for added, hashed in zip(seconds["dvc add"], seconds["md5"], strict=True)]
    print(f"dvc add: {summary(share)['median']:.2f} times its md5")
    return {"seconds": seconds, "times_of_md5": summary(share)}


def look_at_experiments(folder: Path, size: int) -> dict:
    """Two experiments at once: the file that each was given, and that of the cache."""
    repository = new_repository(folder / "experiments")
    (repository / "dvc.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    (repository / "params.yaml").write_text("seed: 0\n")
    write_large(repository / "tokens.bin", size)
    run(repository, "dvc", "commit", "-q", "-f", "make")
    commit(repository)
    for seed in (1, 2):
        run(repository, "dvc", "exp", "run", "--queue", "-n", f"seed-{seed}", "-S", f"seed={seed}")
    run(repository, "dvc", "exp", "run", "--run-all", "-j", "2")
    texts = [dvc.api.read("seen.json", repo=str(repository), rev=f"seed-{seed}") for seed in (1, 2)]
    seen = [json.loads(text) for text in texts]
    kept = [path.stat().st_ino for path in (repository / ".dvc" / "cache" / "files").rglob("*") if large(path, size)]
    shared = len(kept) == 1 and all(look["inode"] == kept[0] for look in seen)
    print(f"experiments share the cache's file: {shared}")
    return {"seen": seen, "cache_inodes": kept, "shared": shared}


def large(path: Path, size: int) -> bool:
    """Whether this is the cached large file."""
    return path.is_file() and path.stat().st_size == size


def main() -> None:
    """Measure all three and write the results."""
    args, busy = parse(), [busy_share()]
    with tempfile.TemporaryDirectory(prefix="dvc-overhead-") as name:
        no_op = measure_no_op(Path(name), args.size, args.rounds)
        added = measure_add(Path(name), args.size, args.rounds)
        busy.append(busy_share())
        experiments = look_at_experiments(Path(name), args.size)
    write_results(
        args.out, "dvc_overhead", seconds=added["seconds"], ours="dvc add", busy=busy, size_bytes=args.size,
        no_op=no_op, add=added, experiments=experiments, versions=versions("dvc", "dvc-data"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
