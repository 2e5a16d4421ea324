"""Batches of (B, T) windows out of a file of 1.2 GB: ours beside the usual ways, on the same windows.

    PYTHONPATH=src python benchmarks/batches.py [--quick] [--tokens 600000000 --steps 512 --rounds 11]

The limit is to widen the same ids, lying side by side, to int64. All draw the windows that TokenWindows
gives a step, and each is checked to give the same x and y first; litdata, which reads its blocks one
after the other, is checked on those. On CUDA, also: how much longer a step on prefetched batches takes
than the same step on a batch that is ready. Writes benchmarks/results/batches.json.
"""

import argparse
import functools
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from harness import busy_share, interleave, ratios, summary, versions, write_results
from lm.tokens.windows import TokenWindows
from lm.train.batches import prefetch, to_device

try:
    import litdata
except ImportError:
    litdata = None

ROOT = Path(__file__).resolve().parent.parent
VOCAB_SIZE = 50_257
BLOCK_TOKENS = 1 << 22
CHUNK_BYTES = 64 << 20  # of litdata's files, its default

Batch = tuple[torch.Tensor, torch.Tensor]


def parse() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description="The time of a batch of windows.")
    parser.add_argument("--tokens", type=int, default=600_000_000, help="of two bytes each")
    parser.add_argument("--shapes", nargs="+", default=["32x512", "12x1024"], help="sequences x tokens")
    parser.add_argument("--steps", type=int, default=512, help="batches a round")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--quick", action="store_true", help="small: to see that it runs")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "batches.json")
    args = parser.parse_args()
    if args.quick:
        args.tokens, args.steps, args.rounds = min(args.tokens, 4_000_000), 20, 3
    return args


def write_tokens(path: Path, num_tokens: int) -> np.ndarray:
    """Write random ids as a .npy of uint16 and open it as a memmap (N,)."""
    generator = np.random.default_rng(1)
    with open(path, "wb") as file:
        header = {"descr": "<u2", "fortran_order": False, "shape": (num_tokens,)}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, num_tokens, BLOCK_TOKENS):
            size = min(BLOCK_TOKENS, num_tokens - start)
            generator.integers(VOCAB_SIZE, size=size, dtype=np.uint16).tofile(file)
    return np.load(path, mmap_mode="r")


def nanogpt_get_batch(path: Path, offset: int, starts: torch.Tensor, seq_len: int) -> Batch:
    """karpathy/nanoGPT's get_batch for given starts: it opens the map again for each batch, and reads row by row."""
    data = np.memmap(path, dtype=np.uint16, mode="r", offset=offset)
    x = torch.stack([torch.from_numpy((data[i : i + seq_len]).astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + seq_len]).astype(np.int64)) for i in starts])
    return x, y


class SeedTokensDataset(Dataset):
    """The 1-D NpyTokensDataset of insooeric/LLM_Small with given starts in place of its np.random.randint."""

    def __init__(self, path: Path, seq_len: int, starts: np.ndarray):
        self.path, self.seq_len, self.starts = path, seq_len, starts.tolist()
        self.ids = np.load(path, mmap_mode="r")

    def __getstate__(self) -> dict:
        return {name: value for name, value in vars(self).items() if name != "ids"}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state, ids=np.load(state["path"], mmap_mode="r"))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Batch:
        start = self.starts[index]
        x = self.ids[start : start + self.seq_len].astype(np.int64, copy=False)
        y = self.ids[start + 1 : start + self.seq_len + 1].astype(np.int64, copy=False)
        return torch.from_numpy(x), torch.from_numpy(y)


def loader_of(dataset: Dataset, batch_size: int, num_workers: int, kind: Callable = DataLoader) -> Iterable:
    """A loader as the seed sets it up; on CUDA it pins."""
    workers = {"persistent_workers": True, "prefetch_factor": 4} if num_workers else {}
    pin = torch.cuda.is_available()
    return kind(dataset, batch_size=batch_size, num_workers=num_workers, pin_memory=pin, drop_last=True, **workers)


def read_range(path: Path, span: tuple[int, int]) -> Iterable[torch.Tensor]:
    """A range of the file, as litdata's optimize wants it: top-level, by pickle."""
    yield torch.from_numpy(np.load(path, mmap_mode="r")[slice(*span)].copy())


def litdata_dataset(folder: Path, path: Path, num_tokens: int, length: int) -> Dataset:
    """The tokens in litdata's format, read in blocks of `length`."""
    if not folder.exists():
        spans = [(start, min(start + BLOCK_TOKENS, num_tokens)) for start in range(0, num_tokens, BLOCK_TOKENS)]
        litdata.optimize(
            fn=functools.partial(read_range, path), inputs=spans, output_dir=str(folder), num_workers=1,
            chunk_bytes=CHUNK_BYTES, item_loader=litdata.TokensLoader(),
        )  # fmt: skip
    return litdata.StreamingDataset(str(folder), item_loader=litdata.TokensLoader(block_size=length), shuffle=False)


def litdata_batches(loader: Iterable) -> Iterable[Batch]:
    """x and y, int64, of its blocks (B, T + 1)."""
    for blocks in loader:
        yield blocks[:, :-1].long(), blocks[:, 1:].long()


def make_cases(
    folder: Path, ids: np.ndarray, batch_size: int, seq_len: int, steps: int
) -> dict[str, Callable[[], Iterable]]:
    """By name, what makes an iterable of the batches of a round.

    Ours starts again in each round, so that it pays for the order of its windows every time.
    """
    path = folder / "tokens.npy"
    windows = TokenWindows(ids, seq_len, batch_size, seed=1)
    starts = np.stack([windows.starts(step) for step in range(steps)])  # (steps, B)
    as_tensors = [torch.from_numpy(row.copy()) for row in starts]
    side_by_side = np.stack([windows.buffer(step).astype(ids.dtype) for step in range(steps)])  # (steps, B, T + 1)
    cases = {
        "ours": lambda: prefetch(TokenWindows(ids, seq_len, batch_size, seed=1), range(steps), "cpu"),
        "ours, arrays": lambda: map(TokenWindows(ids, seq_len, batch_size, seed=1).batch, range(steps)),
        "limit: widening": lambda: (batch.astype(np.int64) for batch in side_by_side),
        "nanoGPT get_batch": lambda: (nanogpt_get_batch(path, ids.offset, row, seq_len) for row in as_tensors),
    }
    seed = SeedTokensDataset(path, seq_len, starts.ravel())
    for workers in (0, 2):
        cases[f"seed dataset, {workers} workers"] = functools.partial(iter, loader_of(seed, batch_size, workers))
    if litdata is not None:
        for workers in (0, 2):
            blocks = litdata_dataset(folder / "litdata", path, len(ids), seq_len + 1)
            loader = loader_of(blocks, batch_size, workers, litdata.StreamingDataLoader)
            cases[f"litdata, {workers} workers"] = functools.partial(litdata_batches, loader)
    return cases


def check(cases: dict[str, Callable[[], Iterable]], ids: np.ndarray, steps: int) -> None:
    """Every case gives the ids of ours: an AssertionError names the one that does not."""
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
    """A function that asks for the `steps` batches of a round and drops them."""

    def run() -> None:
        batches = iter(make())
        for _ in range(steps):
            next(batches)

    return run


def measure(folder: Path, ids: np.ndarray, shape: str, steps: int, rounds: int) -> dict:
    """Rounds of all cases for one shape: seconds, microseconds a batch, ratios to ours and to the limit."""
    batch_size, seq_len = map(int, shape.split("x"))
    cases = make_cases(folder, ids, batch_size, seq_len, steps)
    check(cases, ids, steps)
    seconds = interleave({name: run_through(make, steps) for name, make in cases.items()}, rounds)
    limit = [ours / least for ours, least in zip(seconds["ours, arrays"], seconds["limit: widening"], strict=True)]
    return {
        "seconds": seconds,
        "microseconds_per_batch": {name: summary([s / steps * 1e6 for s in all_s]) for name, all_s in seconds.items()},
        "times_longer_than_ours": ratios(seconds, "ours"),
        "ours_times_the_limit": summary(limit),
    }


def gpu_seconds(batches: Iterable[Batch], weight: torch.Tensor) -> float:
    """The time of the device to work through the batches, a few milliseconds each."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for x, _ in batches:
        hidden = weight[x.flatten() % len(weight)]  # (B T, C)
        for _ in range(20):
            hidden = (hidden @ weight).clamp(-1, 1)
        float(hidden[0, 0])  # a training step ends with its loss on the CPU
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measure_gpu(ids: np.ndarray, shape: str, steps: int, rounds: int) -> dict:
    """Steps on prefetched batches beside the same steps on one that lies on the device."""
    batch_size, seq_len = map(int, shape.split("x"))
    windows = TokenWindows(ids, seq_len, batch_size, seed=1)
    weight = torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda")
    here = to_device(windows.buffer(0), "cuda")
    gpu_seconds([here] * 3, weight)
    cases = {
        "resident": lambda: gpu_seconds([here] * steps, weight),
        "prefetched": lambda: gpu_seconds(prefetch(windows, range(steps), "cuda"), weight),
        "made in the step": lambda: gpu_seconds((to_device(windows.buffer(i), "cuda") for i in range(steps)), weight),
    }
    seconds = interleave(cases, rounds)
    return {"device": torch.cuda.get_device_name(), "seconds": seconds, "of_resident": ratios(seconds, "resident")}


def main() -> None:
    """Measure each shape, print the ratios, write the results."""
    args, busy, found = parse(), [busy_share()], {}
    with tempfile.TemporaryDirectory(prefix="batches-") as folder:
        ids = write_tokens(Path(folder) / "tokens.npy", args.tokens)
        for shape in args.shapes:
            found[shape] = measure(Path(folder), ids, shape, args.steps, args.rounds)
            if torch.cuda.is_available():
                found[shape]["cuda"] = measure_gpu(ids, shape, args.steps, args.rounds)
    busy.append(busy_share())
    for shape, result in found.items():
        print(f"{shape}: ours {result['ours_times_the_limit']['median']:.2f} times the limit")
        for name, ratio in result["times_longer_than_ours"].items():
            print(f"    {name}: {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}) times ours")
    first = found[args.shapes[0]]["seconds"]
    write_results(
        args.out, "batches", seconds=first, ours="ours", busy=busy, tokens=args.tokens, steps_per_round=args.steps,
        versions=versions("numpy", "torch", "litdata"), shapes=found,
    )  # fmt: skip


if __name__ == "__main__":
    main()
