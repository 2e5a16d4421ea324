"""Convert token files between X.bin, X.npy and folders of dump-*.pkl.

    python src convert train.bin train.npy --row_length 2049
    python src convert train.bin dumps/ --seq_len 1536
    python src convert dumps/ train.bin

The stream of ids and its sidecar stay the same, so converting back gives the same bytes, and training accepts every
X.bin. If the input has no sidecar, --tokenizer is required. The last row or sample is padded with end-of-text ids. The
sidecar records the padding, which is not part of the stream.
"""

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from extras.formats.dumps import dumps_stream, replace_dumps, write_dumps
from extras.formats.npy import npy_stream, write_npy
from extras.formats.stream import Stream, bin_stream, checked, narrowed
from lm.core.errors import DataError, IntegrityError, ParamsError, exit_with_status
from lm.core.files import output_lock, sha256_file
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokens.tokenfile import make_sidecar, write_tokens
from tools.record.arguments import tool_parser

ONLY_FOR = {"row_length": ".npy", "seq_len": "dumps"}
SAMPLES_PER_DUMP = 10_000


def parse(argv: list[str]) -> argparse.Namespace:
    parser = tool_parser("convert", __doc__)
    add = parser.add_argument
    add("input", type=Path, metavar="IN", help="X.bin, X.npy or a folder of dumps")
    add("output", type=Path, metavar="OUT", help="X.bin, X.npy, or any other name for a folder of dumps")
    add("--tokenizer", type=Path, help="folder of the tokenizer that made IN; only needed if IN has no sidecar")
    add("--row_length", type=int, help=".npy: tokens per row of a 2-D array (default: 1-D)")
    add("--seq_len", type=int, help="dumps: tokens per sample (required)")
    add("--input_pad_token", type=int, help="id of the padding in dumps of other programs; -1: none")
    return parser.parse_args(argv)


def format_of(path: Path) -> str:
    """Return ".bin", ".npy" or "dumps"; raise ParamsError for another suffix."""
    if path.is_dir() or not path.suffix:
        return "dumps"
    if path.suffix not in (".bin", ".npy"):
        raise ParamsError(f"{path}: is neither X.bin nor X.npy nor a folder of dumps (a name without a suffix)")
    return path.suffix


def check_arguments(args: argparse.Namespace) -> None:
    """Raise ParamsError if arguments contradict each other or do not fit IN and OUT."""
    if not args.input.exists():
        raise ParamsError(f"{args.input}: no such file or folder; name the input")
    if args.input.resolve() == args.output.resolve():
        raise ParamsError(f"{args.output}: is the input; name another output")
    out_format = format_of(args.output)
    for name, only in ONLY_FOR.items():
        value = getattr(args, name)
        if value is not None and out_format != only:
            raise ParamsError(f"--{name} is for {only} outputs, {args.output} is {out_format}; leave it out")
        if value is not None and value < 1:
            raise ParamsError(f"--{name} is {value}; it must be at least 1")
    if out_format == "dumps" and args.seq_len is None:
        raise ParamsError(f"{args.output}: a folder of dumps needs --seq_len, the tokens per sample")


def open_input(args: argparse.Namespace) -> Stream:
    """Return IN's stream; raise ParamsError if --input_pad_token is missing, or IN is not of another program."""
    in_format = format_of(args.input)
    pad_token = args.input_pad_token
    if in_format == ".bin":
        stream = bin_stream(args.input)
    elif in_format == ".npy":
        stream = npy_stream(args.input)
    else:
        stream = dumps_stream(args.input, pad_token)
    is_of_others = in_format == "dumps" and stream.meta is None
    if pad_token is not None and not is_of_others:
        raise ParamsError(f"{args.input}: --input_pad_token is only for dumps of other programs; leave it out")
    if pad_token is None and is_of_others:
        raise ParamsError(
            f"{args.input} does not name its padding token; give --input_pad_token (the --pad_token of "
            "the original script, 32014 by default), or -1 if nothing is padded"
        )
    return stream


def sidecar_of(stream: Stream, tokenizer: Tokenizer | None) -> dict:
    """Return the stream's sidecar, or create one; raise IntegrityError if it names another tokenizer."""
    if stream.meta is None:
        if tokenizer is None:
            raise ParamsError(f"{stream.path}: has no sidecar; give --tokenizer, the folder of its tokenizer")
        return describe_stream(stream, tokenizer)
    recorded = stream.meta["tokenizer"]["sha256"]
    if tokenizer is not None and tokenizer.sha256 != recorded:
        differing = f"made with tokenizer {recorded[:12]}…, --tokenizer is {tokenizer.sha256[:12]}…"
        raise IntegrityError(f"{stream.path}: {differing}; leave --tokenizer out")
    return stream.meta


def checked_with_progress(stream: Stream, meta: dict) -> Iterator[np.ndarray]:
    """Yield the stream's checked ids and show the number of tokens so far."""
    with tqdm(total=meta["tokens"], unit="tok", unit_scale=True, desc="convert", disable=None) as bar:
        for ids in checked(stream, meta):
            yield ids
            bar.update(len(ids))


def write_output(args: argparse.Namespace, stream: Stream, meta: dict) -> int:
    """Write the stream in the format that OUT's name gives; return the padding in tokens."""
    chunks = checked_with_progress(stream, meta)
    dtype = meta["dtype"]
    out_format = format_of(args.output)
    described = {key: meta[key] for key in meta if key not in ("format_version", "dtype", "tokens")}
    if out_format == ".bin":
        write_tokens(args.output, chunks, dtype, lambda: described)
        return 0
    if out_format == ".npy":
        return write_npy(args.output, chunks, meta, args.row_length)
    sizes = {"seq_len": args.seq_len, "pad_token": meta["tokenizer"]["eot_id"], "max_dump_size": SAMPLES_PER_DUMP}
    with replace_dumps(args.output) as folder:
        return write_dumps(folder, chunks, dtype, lambda: described, **sizes)["padding_tokens"]


def describe_stream(stream: Stream, tokenizer: Tokenizer) -> dict:
    """Read a stream once and return its sidecar; characters and bytes are None if the vocabulary is not of bytes."""
    dtype = tokenizer.meta["dtype"]
    eot_id = tokenizer.eot_id
    digest = hashlib.sha256()
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    last_id = None
    for ids in narrowed(stream.blocks(), dtype, tokenizer.vocab_size, stream.path):
        digest.update(ids.data)
        counts += np.bincount(ids, minlength=len(counts))
        last_id = int(ids[-1]) if len(ids) else last_id
    if last_id is None:
        raise DataError(f"{stream.path}: holds no token; it must hold at least one")
    sha256 = sha256_file(stream.path) if stream.path.is_file() else None
    characters = utf8_bytes = None
    if tokenizer.is_byte_level:
        utf8_bytes = int(counts @ tokenizer.token_bytes)
        continuing = {rank: sum(byte & 0xC0 == 0x80 for byte in token) for token, rank in tokenizer.ranks.items()}
        characters = utf8_bytes - sum(int(counts[rank]) * num_bytes for rank, num_bytes in continuing.items())
    described = {
        "documents": int(counts[eot_id]) + (last_id != eot_id),
        "characters": characters,
        "utf8_bytes": utf8_bytes,
        "tokenizer": tokenizer.sidecar_entry(),
        "slice": None,
        "source": {"name": stream.path.name, "sha256": sha256},
    }
    return make_sidecar(dtype, int(counts.sum()), described, digest.hexdigest())


@exit_with_status
def main(argv: list[str]) -> None:
    """Convert IN to OUT, which appears complete or not at all."""
    args = parse(argv)
    check_arguments(args)
    stream = open_input(args)
    meta = sidecar_of(stream, load_tokenizer(args.tokenizer) if args.tokenizer else None)
    with output_lock(args.output):
        padding = write_output(args, stream, meta)
    print(f"{args.output}: {meta['tokens']:,} tokens" + (f" and {padding:,} of padding" if padding else ""))
