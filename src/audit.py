"""Stage audit: both splits → metrics/data.json (a data card) and flags of duplicate documents.

    python src/audit.py data/raw data/processed_datasets/train.bin data/processed_datasets/validation.bin \
        data/audit/duplicates.parquet data/audit/overlap.parquet metrics/data.json

Duplicates, exact and after folding white space, and what validation documents share with the training
text in runs of 13 tokens are counted and flagged, and never removed.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm.core.errors import IntegrityError, command
from lm.core.files import atomic_write, output_lock, sha256_file, write_json
from lm.text.documents import Slice, iter_texts, read_manifest
from lm.tokens.ngrams import shared_tokens
from lm.tokens.tokenfile import TokenFile, document_spans, open_tokens

SHARED_NGRAM = 13  # tokens (Brown et al. 2020, C)
CLEAN_BELOW, LEAKED_FROM = 0.2, 0.8  # of a document's tokens (Touvron et al. 2023, A.6)


def digest(text: str) -> int:
    """64 bits of a text's BLAKE2b; among a million documents equal digests are equal texts but for 1 in 10⁷."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


def document_digests(raw: Path, part: Slice) -> np.ndarray:
    """(D, 2) uint64: each document's digest as it stands and with runs of white space as one blank."""
    batches = [
        np.array([(digest(text), digest(" ".join(text.split()))) for text in texts], np.uint64)
        for texts in iter_texts(raw, part)
    ]  # a batch at a time: as Python numbers they would take nine times the memory
    return np.concatenate(batches)


def is_repeat(digests: np.ndarray) -> np.ndarray:
    """(D,) bool: whether an equal document stands before this one."""
    first = np.unique(digests, return_index=True)[1]
    repeat = np.ones(len(digests), bool)
    repeat[first] = False
    return repeat


def flag_duplicates(train: np.ndarray, validation: np.ndarray) -> pa.Table:
    """One row a document of either split: split, index, repeated within, present in the other; exact and folded."""
    columns = {"split": [], "document": []}
    names = ("exact", "folded")
    columns |= {f"{name}_{where}": [] for name in names for where in ("within", "across")}
    for split, own, other in (("train", train, validation), ("validation", validation, train)):
        columns["split"].append(np.full(len(own), split))
        columns["document"].append(np.arange(len(own)))
        for i, name in enumerate(names):
            columns[f"{name}_within"].append(is_repeat(own[:, i]))
            columns[f"{name}_across"].append(np.isin(own[:, i], other[:, i]))
    return pa.table({name: np.concatenate(parts) for name, parts in columns.items()})


def count_flags(flags: pa.Table) -> dict:
    """Flagged documents by split and kind."""
    split = flags["split"].to_numpy(zero_copy_only=False)
    kinds = [name for name in flags.column_names if name not in ("split", "document")]
    return {
        name: {kind: int(flags[kind].to_numpy()[split == name].sum()) for kind in kinds}
        for name in ("train", "validation")
    }


def measure_overlap(train: TokenFile, validation: TokenFile) -> pa.Table:
    """One row a validation document: its tokens, and the share of them in n-grams of the training text."""
    shared = shared_tokens(validation.ids, train.ids, validation.eot_id, SHARED_NGRAM)
    spans = document_spans(validation)
    counts = spans[:, 1] - spans[:, 0] - 1  # the end-of-text id is not text
    sums = np.concatenate([[0], np.cumsum(shared)])
    share = (sums[spans[:, 1]] - sums[spans[:, 0]]) / np.maximum(counts, 1)
    table = pa.table({"document": np.arange(len(spans)), "tokens": counts, "shared_share": share})
    return table.replace_schema_metadata({"validation_sha256": validation.meta["sha256"]})


def describe_overlap(overlap: pa.Table) -> dict:
    """The shares over all documents: of tokens, and of documents that are clean or leaked."""
    tokens, share = (overlap[name].to_numpy() for name in ("tokens", "shared_share"))
    return {
        "ngram_tokens": SHARED_NGRAM,
        "shared_token_share": float((tokens * share).sum() / max(1, tokens.sum())),
        "clean_documents": int((share < CLEAN_BELOW).sum()),
        "leaked_documents": int((share >= LEAKED_FROM).sum()),
    }


def write_table(path: Path, table: pa.Table) -> None:
    """Write parquet with page checksums, whole or not at all."""
    with output_lock(path), atomic_write(path) as file:
        pq.write_table(table, file, compression="none", write_page_checksum=True)


def describe(tokens: TokenFile) -> dict:
    """The figures of a split that its sidecar holds."""
    meta = tokens.meta
    counts = {name: meta[name] for name in ("documents", "characters", "utf8_bytes", "tokens")}
    counts["bytes_per_token"] = meta["utf8_bytes"] / meta["tokens"]
    counts["tokens_per_document"] = meta["tokens"] / meta["documents"]
    if meta["surprisal_bits"] is not None:
        counts["surprisal_bits_per_document"] = meta["surprisal_bits"] / meta["documents"]
        counts["surprisal_bits_per_byte"] = meta["surprisal_bits"] / meta["utf8_bytes"]
    return counts


@command
def main(argv: list[str]) -> None:
    """Audit the slices that argv[1] and argv[2] were made of from argv[0]; tables to argv[3:5], card to argv[5]."""
    raw, train_path, validation_path, flags_path, overlap_path, metrics_path = map(Path, argv)
    manifest, files = read_manifest(raw), [open_tokens(path) for path in (train_path, validation_path)]
    manifest_sha256 = sha256_file(raw / "manifest.json")
    for tokens in files:
        if tokens.meta["source"]["manifest_sha256"] != manifest_sha256:
            raise IntegrityError(f"{tokens.path}: made from another data/raw than the present one; run `dvc repro`")
    flags = flag_duplicates(*(document_digests(raw, Slice(**tokens.meta["slice"])) for tokens in files))
    overlap = measure_overlap(*files)
    card = {
        "source": manifest["source"],
        "train": describe(files[0]),
        "validation": describe(files[1]),
        "duplicates": count_flags(flags),
        "overlap": describe_overlap(overlap),
        "dropped_rows": {name: split["dropped_rows"] for name, split in manifest["splits"].items()},
        "replaced_characters": manifest.get("replaced_characters", 0),
    }
    write_table(flags_path, flags)
    write_table(overlap_path, overlap)
    write_json(metrics_path, card)
    across = card["duplicates"]["validation"]["folded_across"]
    print(
        f"{across} of {card['validation']['documents']} validation documents also stand in train; "
        f"{card['overlap']['shared_token_share']:.1%} of their tokens are part of {SHARED_NGRAM} that do"
    )


if __name__ == "__main__":
    sys.exit(main())
