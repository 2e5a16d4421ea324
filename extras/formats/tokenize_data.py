"""Tokenize a parquet file of code or text into a folder of dump-*.pkl: the original script's command line.

    python src tokenize_data --data_file train-00000-of-00257.parquet --tokenization_folder tokenized_data
    python src tokenize_data --data_file train-00000-of-00257.parquet --tokenization_folder validation_512 \\
        --seq_length 512 --starting_character 100000000 --chars_to_tokenize 2000000 --disjoint_from tokenized_data

Documents that begin in the range of characters are encoded whole, each followed by the end-of-text id. The stream is
cut into samples, and only the last one is padded. The folder also gets dump-provenance.yaml and the tokenizer.
`python src convert` turns it into an X.bin.
"""

import argparse
import math
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from extras.formats.dumps import TOKENIZER, open_dumps, replace_dumps, write_dumps
from lm.core.errors import DataError, IntegrityError, ParamsError, exit_with_status
from lm.core.files import output_lock, sha256_file
from lm.text.documents import Text
from lm.text.mixture import tag_rows
from lm.text.parquet import iter_batches, open_parquet
from lm.text.raw_files import write_manifest, write_split
from lm.text.rows import keep_rows, measured
from lm.text.slices import Slice
from lm.tokenizer.build import write_from_hub, write_huggingface, write_tiktoken
from lm.tokenizer.counts import TextCounts
from lm.tokenizer.encoding import encode_here, show_progress
from lm.tokenizer.load import BACKEND, META, Tokenizer, load_tokenizer
from tools.common.arguments import tool_parser

SPLIT = "train"


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the arguments: those of the original script, and those that fix its defects."""
    parser = tool_parser("tokenize_data", __doc__)
    add = parser.add_argument
    add("--data_file", type=Path, required=True, help="parquet file")
    add("--tokenization_folder", type=Path, required=True, help="folder for the dumps; older dumps are replaced")
    add(
        "--tokenizer_base",
        default="deepseek-ai/deepseek-coder-33b-base",
        help="Hugging Face repository, gpt2, or a folder such as data/tokenizer (default: %(default)s)",
    )
    add("--tokenizer_revision", default="main", help="of a Hugging Face repository (default: %(default)s)")
    add("--column", default="content", help="text column (default: %(default)s)")
    add("--seq_length", type=int, default=3 * 512, help="tokens per sample (default: %(default)s)")
    add("--starting_character", type=int, default=0, help="start of the range (default: %(default)s)")
    add("--chars_to_tokenize", type=int, default=100_000_000, help="its maximal length (default: %(default)s)")
    add(
        "--chunk_size",
        type=int,
        default=10_000_000,
        help="characters encoded at a time; changes memory, not the result (default: %(default)s)",
    )
    add("--max_dump_size", type=int, default=10_000, help="samples per dump (default: %(default)s)")
    add(
        "--min_sample_length",
        type=int,
        default=1,
        help="a last sample with fewer tokens is left out instead of padded (default: %(default)s)",
    )
    add("--pad_token", type=int, help="id that fills up the last sample (default: the end-of-text id)")
    add(
        "--disjoint_from",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="reject a range that overlaps with what these folders tokenized",
    )
    return parser.parse_args(argv)


def check_arguments(args: argparse.Namespace) -> None:
    """Raise ParamsError for an argument out of range, before any text is read."""
    positive = ("seq_length", "chars_to_tokenize", "chunk_size", "max_dump_size", "min_sample_length")
    for name, minimum in {"starting_character": 0, **dict.fromkeys(positive, 1)}.items():
        if (value := getattr(args, name)) < minimum:
            raise ParamsError(f"--{name} is {value}; it must be at least {minimum}")
    if not args.data_file.is_file():
        raise ParamsError(f"--data_file {args.data_file}: there is no such file")


def make_tokenizer(base: str, revision: str, folder: Path) -> Tokenizer:
    """Write the tokenizer that `base` names into a new folder and load it from there."""
    source = Path(base)
    folder.mkdir()
    if (source / META).is_file():
        for name in [META, *load_tokenizer(source).meta["files"]]:
            shutil.copyfile(source / name, folder / name)
    elif (source / BACKEND).is_file():
        write_huggingface(folder, source)
    elif source.is_dir():
        raise ParamsError(f"--tokenizer_base {base}: a folder without {META} or {BACKEND} holds no tokenizer")
    elif base == "gpt2":
        write_tiktoken(folder, base)
    elif base.count("/") == 1:
        write_from_hub(folder, base, revision)
    else:
        raise ParamsError(f"--tokenizer_base is {base!r}; it must be owner/name on the hub, gpt2, or a folder")
    return load_tokenizer(folder)


def reject_overlap(text_slice: Slice, file_sha256: str, folder: Path) -> None:
    """Raise ParamsError if `folder` holds a character of the range already."""
    provenance = open_dumps(folder).provenance
    stream = provenance["stream"] if provenance else {}
    if not stream.get("slice"):
        raise IntegrityError(f"--disjoint_from {folder}: names no range of characters; tokenize it again")
    other = Slice(**stream["slice"])
    first = max(text_slice.start_char, other.start_char)
    end = min(text_slice.end_char, other.end_char)
    if stream["source"]["sha256"] == file_sha256 and first < end:
        held = f"characters {first} to {'the end' if end == math.inf else end} of the same file"
        raise ParamsError(f"--disjoint_from {folder}: holds {held} too; move --starting_character or shorten a range")


def tokenize(args: argparse.Namespace, raw: Path, folder: Path) -> dict:
    """Fill the empty `folder` with dumps and the tokenizer; return the provenance."""
    # Make `raw` a data/raw of this one file for the pipeline's reader.
    open_parquet(args.data_file, args.column)
    raw.mkdir(parents=True, exist_ok=True)
    rows = (measured(batch) for batch in iter_batches(args.data_file, [args.column]))
    with_text = (keep_rows(each, each[1] > 0) for each in rows)
    entry = write_split(raw, SPLIT, tag_rows(with_text, 0), [args.data_file.name])
    manifest = write_manifest(raw, args.data_file.name, {args.data_file.name: {}}, {SPLIT: entry}, {})

    # Choose the range, which ends with the file at the latest.
    file_sha256 = sha256_file(args.data_file)
    num_chars = entry["characters"]
    if args.starting_character >= num_chars:
        begins = f"--starting_character is {args.starting_character}"
        raise DataError(f"{begins}; it must be below the {num_chars} characters of {args.data_file}")
    missing = args.starting_character + args.chars_to_tokenize - num_chars
    if missing > 0:
        short = f"the range ends there, {missing:,} short of --chars_to_tokenize"
        print(f"{args.data_file}: has {num_chars:,} characters; {short}", file=sys.stderr)
    text_slice = Slice(SPLIT, args.starting_character, args.chars_to_tokenize if missing <= 0 else None)
    for other in args.disjoint_from:
        reject_overlap(text_slice, file_sha256, other)

    # Write the tokenizer into the folder.
    tokenizer = make_tokenizer(args.tokenizer_base, args.tokenizer_revision, folder / TOKENIZER)
    pad_token = tokenizer.eot_id if args.pad_token is None else args.pad_token
    if not 0 <= pad_token < tokenizer.vocab_size and pad_token not in tokenizer.meta["special_tokens"].values():
        wanted = f"an id of the tokenizer's {tokenizer.vocab_size}; leave it out for the end-of-text id"
        raise ParamsError(f"--pad_token is {pad_token}; it must be {wanted} {tokenizer.eot_id}")

    # Encode the documents and write the dumps.
    chunks = Text(raw, manifest, text_slice).chunks(args.chunk_size)
    counts = TextCounts()
    total = int(min(text_slice.end_char, num_chars)) - text_slice.start_char
    source = {"name": args.data_file.name, "sha256": file_sha256}
    return write_dumps(
        folder,
        counts.ids_of(show_progress(encode_here(chunks, tokenizer), total)),
        tokenizer.meta["dtype"],
        lambda: counts.sidecar_entries(tokenizer, text_slice, source),
        seq_len=args.seq_length,
        pad_token=pad_token,
        max_dump_size=args.max_dump_size,
        min_sample_length=args.min_sample_length,
    )


def report(provenance: dict, folder: Path) -> None:
    stream = provenance["stream"]
    padding = provenance["padding_tokens"]
    print(f"{folder}: {stream['documents']:,} documents, {stream['characters']:,} characters")
    print(f"Total number of files: {len(provenance['files'])}")
    print(f"Total number of samples: {provenance['samples']:,} of {provenance['seq_len']:,}")
    print(f"Total number of tokens: {stream['tokens']:,}" + (f", and {padding:,} of padding" if padding else ""))
    if provenance["left_out_tokens"]:
        print(f"left out: the last {provenance['left_out_tokens']:,} tokens, shorter than --min_sample_length")


@exit_with_status
def main(argv: list[str]) -> None:
    """Tokenize a range of a parquet file into a folder of dumps, which appears complete or not at all."""
    args = parse(argv)
    check_arguments(args)
    out = args.tokenization_folder
    with output_lock(out), TemporaryDirectory() as raw, replace_dumps(out) as folder:
        provenance = tokenize(args, Path(raw), folder)
    report(provenance, out)
