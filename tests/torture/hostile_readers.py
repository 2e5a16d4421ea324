"""Readers of files that others may hand over. Each has a small good example, and renews the hashes recorded in it."""

import contextlib
import dataclasses
import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from tokenizers import Tokenizer as Backend

from extras.formats.datasets import NpyTokensDataset, PickledTrainerDataset
from extras.formats.dumps import PROVENANCE, dumps_stream, replace_dumps, write_dumps
from extras.formats.npy import npy_stream, write_npy
from lm.core.files import sha256_file, write_json
from lm.core.params import read_section
from lm.model.weights import RECORD, WEIGHTS, load_trained
from lm.text.documents import MANIFEST, Chunk, iter_texts
from lm.text.parquet import describe_split, write_documents
from lm.text.rules import Selection
from lm.text.selection import read_dropped
from lm.text.slices import AnySlice, Slice
from lm.tokenizer.build import write_byte_level, write_huggingface
from lm.tokenizer.engine import open_engine
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import (
    Shard,
    check_id_range,
    check_tokenizer,
    document_spans,
    entropy_per_token,
    join_shards,
    open_tokens,
    write_tokens,
)
from lm.tokens.windows import TokenWindows
from lm.train.checkpoints import load_newest_state, save_state
from lm.train.config import TrainParams
from support import ROOT
from support.dump_cases import write_foreign
from support.model_cases import CPU, build, write_gemma_like, write_trained
from support.selections import dropping, make_selection
from support.tokenizer_cases import save_tokenizer
from tools.common.hugging_face import own_record, read_pretrained, write_pretrained

TINY = {"n_layer": 1, "n_head": 1, "n_kv_head": 1, "head_dim": 4, "d_model": 4, "d_ff": 8, "max_seq_len": 16}
TEXTS = ["int main(void)", "\n  return 0;", "", None, "漢字 é <|endoftext|>", "x" * 50]
IDS = np.random.default_rng(0).integers(0, 256, 96)
DESCRIBED = {"tokenizer": {"kind": "bpe", "vocab_size": 257, "eot_id": 256, "sha256": "t"}, "surprisal_bits": 5.0}
STATE = "run/state-000000001"
TEXT = Slice("train", 0, None)


class Reader(NamedTuple):
    """A reader: `inputs` of a full run; `renew` writes the recorded hashes of changed files again, None if none are."""

    name: str
    inputs: int
    write: Callable[[Path], object]
    read: Callable[[Path], object]
    renew: Callable[[Path], object] | None = None

    def hashed(self, path: Path) -> bool:
        """Return whether the good example records the hash of a file, so that a change of it must be found."""
        return self.renew is not None and path.suffix in (".bin", ".parquet", ".tiktoken", ".pkl", ".pt")


def renew_files(record: str, *keys: str) -> Callable[[Path], None]:
    """Return a function that puts each file's SHA-256 into {path: sha256}, or [{path, sha256}], of a JSON record."""

    def renew(folder: Path) -> None:
        with contextlib.suppress(Exception):  # a record that is not one any more
            path = folder / record
            content = entries = json.loads(path.read_text())
            for key in keys:
                entries = entries[key]
            for entry in entries:
                held = entry["path"] if isinstance(entry, dict) else entry
                with contextlib.suppress(Exception):
                    sha256 = sha256_file(path.parent / held)
                    if isinstance(entry, dict):
                        entry["sha256"] = sha256
                    else:
                        entries[entry] = sha256
            path.write_text(json.dumps(content))

    return renew


def renew_one(record: str, file: str, *keys: str) -> Callable[[Path], None]:
    """Return a function that puts the SHA-256 of one file under `keys` of a JSON record."""

    def renew(folder: Path) -> None:
        with contextlib.suppress(Exception):
            content = entry = json.loads((folder / record).read_text())
            for key in keys[:-1]:
                entry = entry[key]
            entry[keys[-1]] = sha256_file(folder / file)
            (folder / record).write_text(json.dumps(content))

    return renew


def write_token_file(folder: Path) -> None:
    """Write x.bin and x.json."""
    ids = np.where(IDS % 16 == 0, 256, IDS).astype("<u2")
    write_tokens(folder / "x.bin", [ids], "uint16", lambda: DESCRIBED)


def write_shards(folder: Path) -> None:
    """Write x.bin, a folder of three shards, and x.json."""
    for number, ids in enumerate(np.array_split(IDS.astype("<u2"), 3)):
        ids.tofile(folder / f"{number}.tmp")
    parts = sorted(folder.glob("*.tmp"))
    join_shards(folder / "x.bin", [Shard(part, 32, sha256_file(part)) for part in parts], "uint16", DESCRIBED)
    for part in parts:
        part.unlink()


def read_token_file(folder: Path) -> object:
    """Do with x.bin what audit and train do."""
    tokens = open_tokens(folder / "x.bin")
    check_id_range(tokens)
    check_tokenizer(tokens, "t")
    windows = TokenWindows(tokens.ids, 8, 2, seed=1).batch(3)
    return tokens.ids[:].tobytes(), document_spans(tokens).tobytes(), entropy_per_token(tokens), windows[0].tobytes()


def write_raw(folder: Path) -> None:
    """Write data/raw of one source."""
    for split in ("train", "validation"):
        write_documents(folder / split / "0000.parquet", TEXTS)
    splits = {split: describe_split(folder, split, "text") for split in ("train", "validation")}
    write_json(folder / MANIFEST, {"source": "mine", "column": "text", "splits": splits})


def read_raw(folder: Path) -> object:
    """Read the documents of a slice."""
    return str(list(iter_texts(folder, TEXT)))


def renew_raw(folder: Path) -> None:
    """Renew the hashes of the parquet files."""
    for split in ("train", "validation"):
        renew_files(MANIFEST, "splits", split, "files")(folder)


def write_selected(folder: Path) -> None:
    """Write data/raw and a selection that drops two of its documents."""
    write_raw(folder / "raw")
    make_selection(folder / "selection", folder / "raw", dropping({("mine", "train"): [0, 2]}))


def read_selected(folder: Path) -> object:
    """Read the documents that the selection keeps."""
    return str(list(iter_texts(folder / "raw", TEXT, read_dropped(folder / "selection", folder / "raw"))))


def renew_selected(folder: Path) -> None:
    """Renew the hashes of the parquet files and of the manifest."""
    renew_raw(folder / "raw")
    renew_one("selection/details.json", "raw/manifest.json", "manifest_sha256")(folder)
    renew_one("selection/details.json", "selection/dropped.parquet", "dropped_sha256")(folder)


def write_npy_file(folder: Path) -> None:
    """Write x.npy of two rows and its sidecar."""
    write_npy(folder / "x.npy", [IDS], DESCRIBED | SIDECAR, np.dtype("<u2"), 50, 0)


SIDECAR = {"format_version": 1, "dtype": "uint16", "tokens": len(IDS), "sha256": "s"}


def read_npy_file(folder: Path) -> object:
    """Read x.npy as a dataset and as a stream."""
    dataset, stream = NpyTokensDataset(folder / "x.npy", 8), npy_stream(folder / "x.npy")
    return len(dataset), dataset[-1][1].numpy().tobytes(), b"".join(block.tobytes() for block in stream.blocks())


def write_dump_folder(folder: Path) -> None:
    """Write dumps as this project does."""
    with replace_dumps(folder / "dumps") as new:
        options = {"seq_len": 8, "max_dump_size": 7, "pad_token": 9}
        write_dumps(new, [IDS.astype("<u2")[:93]], "uint16", lambda: DESCRIBED, **options)


def write_foreign_dumps(folder: Path) -> None:
    """Write dumps as other programs do."""
    write_foreign(folder / "dumps", [[5, 6, 70_000, 2**31], [1, 2, 3, 9]], [[300, 2, 9, 9]])


def read_dump_folder(folder: Path) -> object:
    """Read dumps as a dataset and as a stream."""
    dataset, stream = PickledTrainerDataset(folder / "dumps", 9), dumps_stream(folder / "dumps", 9)
    first = dataset[0]["labels"].numpy().tobytes() + dataset[-1]["attention_mask"].numpy().tobytes()
    return len(dataset), first, b"".join(block.tobytes() for block in stream.blocks())


def write_ranks(folder: Path) -> None:
    """Write a byte-level tokenizer of two merges."""
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"in": 256, b"int": 257}
    write_byte_level(folder, ranks, "bpe")


def read_ranks(folder: Path) -> object:
    """Encode and decode with data/tokenizer, and look up its tables."""
    tokenizer = load_tokenizer(folder)
    ids, lengths = tokenizer.encode_documents(["int main(void)\n", "漢字 é", ""])
    decoded = tokenizer.decode(range(min(tokenizer.vocab_size, 600)))
    return ids.tobytes(), lengths.tobytes(), decoded, tokenizer.count_bytes(ids), str(tokenizer.bytes_of(ids))


def read_engine(folder: Path) -> object:
    """Encode with gigatoken."""
    tokenizer = load_tokenizer(folder)
    with redirect_stderr(io.StringIO()):
        engine = open_engine(tokenizer)
    if engine is None:
        return "refused"
    texts = ["int main(void)\n", "漢字 é"]
    return engine.encode(Chunk(pa.array(texts), 0, 19, 24, None, {})).tobytes()


def write_gemma(folder: Path) -> None:
    """Write a tokenizer of Gemma's kind."""
    write_gemma_like(folder / "out", folder / "source")
    for path in (folder / "out").iterdir():
        path.rename(folder / path.name)
    for path in (folder / "source").iterdir():
        path.unlink()
    (folder / "source").rmdir()
    (folder / "out").rmdir()


def write_source(folder: Path) -> None:
    """Write a tokenizer as a repository of the hub has it."""
    vocab = {"<unk>": 0, "<eos>": 1, "a": 2, "b": 3, "ab": 4, " ": 5}
    backend = Backend.from_str(json.dumps({"model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]}}))
    backend.add_special_tokens(["<eos>"])
    save_tokenizer(backend, folder, tokenizer_class="PreTrainedTokenizerFast", eos_token="<eos>", unk_token="<unk>")


def read_source(folder: Path) -> object:
    """Make a tokenizer of a repository's files, as make_tokenizer does."""
    (folder / "made").mkdir()
    meta = write_huggingface(folder / "made", folder)
    tokenizer = load_tokenizer(folder / "made")
    return meta["vocab_size"], tokenizer.encode("ab a"), tokenizer.token_bytes.tobytes()


def write_models(folder: Path) -> None:
    """Write data/models of a tiny model."""
    tokenizer = type("", (), {"eot_id": 8, "sha256": "t"})
    write_trained(folder, build(9, **TINY), tokenizer)  # pyright: ignore[reportArgumentType]


def read_models(folder: Path) -> object:
    """Load a trained model and score some ids."""
    model, _ = load_trained(folder, CPU)
    return score(model)


@torch.no_grad()
def score(model) -> bytes:
    """Return the bits of a model's output for some ids."""
    ids = torch.arange(min(3, model.config.max_seq_len)) % model.config.vocab_size
    return model.hidden(ids[None]).numpy().tobytes()


def write_state(folder: Path) -> None:
    """Write a state of a run."""
    state = {"step": 1, "model": {"w": torch.ones(3)}, "rng": torch.get_rng_state()[:8], "losses": [1.0, 2.0]}
    save_state(folder / "run", 1, state | {"segments": [{"dtype": "float32"}]})


def read_state(folder: Path) -> object:
    """Load the newest state."""
    with redirect_stderr(io.StringIO()):
        state = load_newest_state(folder / "run")
    with contextlib.suppress(RecursionError):  # of str(): lists in lists, which no stage prints
        return str(state)
    return "deep"


def write_export(folder: Path) -> None:
    """Write a model in Hugging Face's format with our model.json."""
    model = build(9, **TINY)
    write_pretrained(folder, model, 8)
    record = {"config": dataclasses.asdict(model.config), "best": {"sha256": "s"}}
    write_json(folder / RECORD, record)


def read_export(folder: Path) -> object:
    """Load an exported model and compare it with its record."""
    model = read_pretrained(folder)
    own_record(folder / RECORD, model, "s")
    return score(model)


def write_params(folder: Path) -> None:
    """Copy params.yaml and presets.yaml."""
    for name in ("params.yaml", "presets.yaml"):
        (folder / name).write_bytes((ROOT / name).read_bytes())


def read_params(folder: Path) -> object:
    """Read sections of every shape."""
    train = read_section(folder / "params.yaml", "train", TrainParams)
    names = "sources.stories.train", "sources.stories.validation"
    slices = [read_section(folder / "presets.yaml", name, AnySlice) for name in names]
    selection = read_section(folder / "presets.yaml", "selections.none", Selection)
    return str([train, slices, selection, train.max_steps])


READERS = [
    Reader("X.json and X.bin", 10_000, write_token_file, read_token_file, renew_one("x.json", "x.bin", "sha256")),
    Reader("shards", 3_000, write_shards, read_token_file, renew_files("x.json", "shards")),
    Reader("manifest and parquet", 3_000, write_raw, read_raw, renew_raw),
    Reader("selection", 2_000, write_selected, read_selected, renew_selected),
    Reader(".npy", 30_000, write_npy_file, read_npy_file),
    Reader("dumps", 8_000, write_dump_folder, read_dump_folder, renew_files("dumps/" + PROVENANCE, "files")),
    Reader("dumps of other programs", 10_000, write_foreign_dumps, read_dump_folder),
    Reader("ranks", 20_000, write_ranks, read_ranks, renew_files("meta.json", "files")),
    Reader("ranks in gigatoken", 2_000, write_ranks, read_engine, renew_files("meta.json", "files")),
    Reader("tokenizer.json", 3_000, write_gemma, read_ranks, renew_files("meta.json", "files")),
    Reader("tokenizer of the hub", 2_000, write_source, read_source),
    Reader("model.json and .pt", 5_000, write_models, read_models, renew_one(RECORD, WEIGHTS, "best", "sha256")),
    Reader("states", 5_000, write_state, read_state, renew_one(f"{STATE}.json", f"{STATE}.pt", "sha256")),
    Reader("exported folder", 12_000, write_export, read_export),
    Reader("params.yaml", 2_000, write_params, read_params),
]
