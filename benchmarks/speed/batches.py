"""Read batches of (B, T) windows out of a file of 1.2 GB: ours beside the usual ways, on the same windows.

    PYTHONPATH=src:benchmarks python benchmarks/speed/batches.py [--tokens 600000000 --steps 512 --rounds 5]

The limit is to widen the same ids, lying side by side, to int64. All draw the windows that TokenWindows gives a step,
and each is checked to give the same x and y first; litdata, which reads its blocks one after the other, is checked on
those. Writes results/batches.json.
"""

import argparse
import functools
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from harness import busy_share, interleave, ratios, summary, versions, write_results
from lm.tokens.windows import TokenWindows
from lm.train.batches import prefetch

try:
    import litdata
except ImportError:
    litdata = None

VOCAB_SIZE, BLOCK_TOKENS, CHUNK_BYTES = 50_257, 1 << 22, 64 << 20  # CHUNK_BYTES is litdata's default
Batch = tuple[torch.Tensor, torch.Tensor]


def write_tokens(path: Path, num_tokens: int) -> np.ndarray:
    """Write random ids as a .npy of uint16 and open it as a memmap (N,)."""
    generator = np.random.default_rng(1)
    ids = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint16, shape=(num_tokens,))
    for start in range(0, num_tokens, BLOCK_TOKENS):
        block = ids[start : start + BLOCK_TOKENS]
        block[:] = generator.integers(VOCAB_SIZE, size=len(block), dtype=np.uint16)
    ids.flush()
    return np.load(path, mmap_mode="r")


def nanogpt_get_batch(path: Path, offset: int, starts: torch.Tensor, seq_len: int) -> Batch:
    """Run karpathy/nanoGPT's get_batch for given starts: it opens the map for each batch, and reads row by row."""
    data = np.memmap(path, dtype=np.uint16, mode="r", offset=offset)
    x = torch.stack([torch.from_numpy((data[i : i + seq_len]).astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + seq_len]).astype(np.int64)) for i in starts])
    return x, y


class WindowDataset(Dataset):
    """Windows of a .npy file at given starts, one per item: the dataset that a `DataLoader` usually gets."""

    def __init__(self, path: Path, seq_len: int, starts: np.ndarray):
        self.seq_len, self.starts, self.ids = seq_len, starts.tolist(), np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Batch:
        start = self.starts[index]
        x = self.ids[start : start + self.seq_len].astype(np.int64, copy=False)
        y = self.ids[start + 1 : start + self.seq_len + 1].astype(np.int64, copy=False)
        return torch.from_numpy(x), torch.from_numpy(y)


def loader_of(dataset: Dataset, batch_size: int, num_workers: int, kind: Callable = DataLoader) -> Iterable:
    """Return a loader; worker processes stay and read ahead."""
    workers = {"persistent_workers": True, "prefetch_factor": 4} if num_workers else {}
    return kind(dataset, batch_size=batch_size, num_workers=num_workers, drop_last=True, **workers)


def read_range(path: Path, span: tuple[int, int]) -> Iterable[torch.Tensor]:
    """Yield a range of the file, as litdata's optimize wants it: top-level, by pickle."""
    yield torch.from_numpy(np.load(path, mmap_mode="r")[slice(*span)].copy())


def litdata_dataset(folder: Path, path: Path, num_tokens: int, length: int) -> Dataset:
    """Return the tokens in litdata's format, read in blocks of `length`."""
    if not folder.exists():
        spans = [(start, min(start + BLOCK_TOKENS, num_tokens)) for start in range(0, num_tokens, BLOCK_TOKENS)]
        litdata.optimize(
            fn=functools.partial(read_range, path), inputs=spans, output_dir=str(folder), num_workers=1,
            chunk_bytes=CHUNK_BYTES, item_loader=litdata.TokensLoader(),
        )  # fmt: skip
    return litdata.StreamingDataset(str(folder), item_loader=litdata.TokensLoader(block_size=length), shuffle=False)


def litdata_batches(loader: Iterable) -> Iterable[Batch]:
    """Yield x and y, int64, of litdata's blocks (B, T + 1)."""
    for blocks in loader:
        yield blocks[:, :-1].long(), blocks[:, 1:].long()


def make_cases(
    folder: Path, ids: np.ndarray, batch_size: int, seq_len: int, steps: int
) -> dict[str, Callable[[], Iterable]]:
    """Return by name what makes an iterable of the batches of a round.

    Ours starts again in each round, so that it pays for the order of its windows every time.
    """
    path = folder / "tokens.npy"
    windows = TokenWindows(ids, seq_len, batch_size, seed=1)
    starts = np.stack([windows.starts(step) for step in range(steps)])  # (steps, B)
    as_tensors = [torch.from_numpy(row.copy()) for row in starts]
    side_by_side = np.stack([windows.buffer(step).astype(ids.dtype) for step in range(steps)])  # (steps, B, T + 1)
    cases = {
        "ours": lambda: prefetch(TokenWindows(ids, seq_len, batch_size, seed=1), range(steps), "cpu"),
        "limit: widening": lambda: (batch.astype(np.int64) for batch in side_by_side),
        "nanoGPT get_batch": lambda: (nanogpt_get_batch(path, ids.offset, row, seq_len) for row in as_tensors),
    }
    for workers in (0, 2):
        loader = loader_of(WindowDataset(path, seq_len, starts.ravel()), batch_size, workers)
        cases[f"seed dataset, {workers} workers"] = functools.partial(iter, loader)
        if litdata is not None:
            blocks = litdata_dataset(folder / "litdata", path, len(ids), seq_len + 1)
            loader = loader_of(blocks, batch_size, workers, litdata.StreamingDataLoader)
            cases[f"litdata, {workers} workers"] = functools.partial(litdata_batches, loader)
    return cases


def check(cases: dict[str, Callable[[], Iterable]], ids: np.ndarray, steps: int) -> None:
    """Raise AssertionError with the name of a case that does not give the ids of ours."""
    ours = [torch.stack(batch) for batch in cases["ours"]()]
    for name, make in cases.items():
        if name.startswith("limit"):
            assert all(np.array_equal(a[:, :-1], b[0]) for a, b in zip(make(), ours, strict=True)), name
        elif name.startswith("litdata"):
            for number, (x, y) in zip(range(steps), make(), strict=False):
                block = torch.cat([x, y[:, -1:]], 1).numpy().ravel()
                if name.startswith("litdata, 0"):  # workers take turns
                    assert np.array_equal(block, ids[number * block.size :][: block.size]), name
        else:
            for found, batch in zip(make(), ours, strict=True):
                assert torch.equal(torch.stack([torch.as_tensor(part) for part in found]), batch), name


def run_through(make: Callable[[], Iterable], steps: int) -> Callable[[], None]:
    """Return a function that asks for the `steps` batches of a round and drops them."""

    def run() -> None:
        batches = iter(make())
        for _ in range(steps):
            next(batches)

    return run


def measure(folder: Path, ids: np.ndarray, shape: str, steps: int, rounds: int) -> dict:
    """Run the rounds of all cases for one shape; return seconds, microseconds per batch and ratios."""
    batch_size, seq_len = map(int, shape.split("x"))
    cases = make_cases(folder, ids, batch_size, seq_len, steps)
    check(cases, ids, steps)
    seconds = interleave({name: run_through(make, steps) for name, make in cases.items()}, rounds)
    return {
        "seconds": seconds,
        "microseconds_per_batch": {name: summary([s / steps * 1e6 for s in all_s]) for name, all_s in seconds.items()},
        "times_longer_than_ours": ratios(seconds, "ours"),
    }


def main() -> None:
    """Measure each shape and write the results."""
    parser = argparse.ArgumentParser(description="The time of a batch of windows.")
    parser.add_argument("--tokens", type=int, default=600_000_000, help="of two bytes each")
    parser.add_argument("--shapes", nargs="+", default=["32x512", "12x1024"], help="sequences x tokens")
    parser.add_argument("--steps", type=int, default=512, help="batches a round")
    parser.add_argument("--rounds", type=int, default=5)
    args, busy, found = parser.parse_args(), [busy_share()], {}
    with tempfile.TemporaryDirectory(prefix="batches-") as folder:
        ids = write_tokens(Path(folder) / "tokens.npy", args.tokens)
        for shape in args.shapes:
            found[shape] = measure(Path(folder), ids, shape, args.steps, args.rounds)
    busy.append(busy_share())
    write_results(
        "batches", seconds=found[args.shapes[0]]["seconds"], ours="ours", busy=busy, tokens=args.tokens,
        steps_per_round=args.steps, versions=versions("numpy", "torch", "litdata"), shapes=found,
    )  # fmt: skip


if __name__ == "__main__":
    main()
