"""The arguments and the model of `compress` and `decompress`, and the format of the compressed file."""

import argparse
import hashlib
import struct
from pathlib import Path
from typing import NamedTuple

import torch

from lm.core.errors import IntegrityError, ParamsError
from lm.model.gemma3 import Gemma3Model
from lm.model.weights import check_trained_with, load_trained
from lm.tokenizer.load import Tokenizer, load_tokenizer
from tools.record.arguments import tool_parser
from tools.record.lock import warn_of_changed_code
from tools.record.paths import MODELS, TOKENIZER

MAGIC = b"RLMC"
VERSION = 3
FIELDS = struct.Struct(">4sBBII8s8s")  # big-endian: MAGIC, VERSION, and the fields of Header
DIGEST_BYTES = 8  # of a SHA-256
HEADER_BYTES = FIELDS.size + DIGEST_BYTES


class Header(NamedTuple):
    """The fields between the version and the digest of the file."""

    token_bytes: int  # of a token file: 2 or 4; 0 for a text
    num_tokens: int
    stride: int
    weights_digest: bytes
    content_digest: bytes


def parse(name: str, description: str | None, argv: list[str], reads: str, writes: str) -> argparse.Namespace:
    """Read the arguments of `compress` or `decompress`; raise ParamsError for a wrong path."""
    parser = tool_parser(name, description)
    parser.add_argument("file", type=Path, metavar="FILE", help=reads)
    parser.add_argument("out", type=Path, metavar="OUT", help=writes)
    parser.add_argument("--models", type=Path, default=MODELS, help=f"folder of the model ({MODELS})")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help=f"tokenizer folder ({TOKENIZER})")
    args = parser.parse_args(argv)
    if not args.file.is_file():
        raise ParamsError(f"{args.file}: is not a file; name the file to read")
    if args.out.is_dir() or args.file.resolve() == args.out.resolve():
        raise ParamsError(f"{args.out}: is {'a folder' if args.out.is_dir() else 'the input'}; name another output")
    return args


def load(models: Path, tokenizer_folder: Path) -> tuple[Gemma3Model, dict, Tokenizer]:
    """Return the best model of a folder in exact numerics, its model.json, and its tokenizer.

    Raise IntegrityError if the model was trained with another tokenizer.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    model, record = load_trained(models, torch.device("cpu"), "exact")
    check_trained_with(tokenizer.sha256, tokenizer.folder, models, record)
    warn_of_changed_code(models)
    return model, record, tokenizer


def digest(content: bytes) -> bytes:
    """Return the first bytes of the SHA-256 of some bytes."""
    return hashlib.sha256(content).digest()[:DIGEST_BYTES]


def first_bytes(sha256: str) -> bytes:
    """Return the first bytes of a SHA-256 in hex."""
    return bytes.fromhex(sha256)[:DIGEST_BYTES]


def join(header: Header, payload: bytes) -> bytes:
    """Return the bytes of a compressed file."""
    fields = FIELDS.pack(MAGIC, VERSION, *header)
    return fields + digest(fields + payload) + payload


def split(path: Path) -> tuple[Header, bytes]:
    """Return the header and the payload; raise IntegrityError unless the file is as `compress` wrote it."""
    content = path.read_bytes()
    fields = content[: FIELDS.size]
    recorded = content[FIELDS.size : HEADER_BYTES]
    payload = content[HEADER_BYTES:]
    if not content.startswith(MAGIC):
        raise IntegrityError(f"{path}: was not written by `compress`; it must begin with {MAGIC.decode()}")
    version = content[len(MAGIC) : len(MAGIC) + 1]
    if version != bytes([VERSION]):
        raise IntegrityError(f"{path}: has version {version.hex()}; it must be {VERSION:02}: compress the text again")
    if digest(fields + payload) != recorded:
        raise IntegrityError(
            f"{path}: is truncated or changed, because its SHA-256 is not that in its header; copy it again"
        )
    return Header(*FIELDS.unpack(fields)[2:]), payload
