"""Stage audit: both splits → data/audit (duplicates, contamination, a data card) and metrics/data.json.

    python src/audit.py --raw data/raw --selection data/selection \
        --train data/processed_datasets/train.bin --validation data/processed_datasets/validation.bin \
        --audit data/audit --metrics metrics

Duplicates (exact, and with white space folded) and contamination (runs of 13 validation tokens that are in the
training text too) are counted and marked. Nothing is removed.
"""

import argparse
import hashlib
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm.core.errors import IntegrityError, command
from lm.core.files import atomic_folder, output_lock, read_json, sha256_file, write_json
from lm.text.documents import Dropped, iter_texts, parts_of, read_manifest
from lm.text.selection import DETAILS, add_up, describe_selection, read_dropped
from lm.text.slices import Slice, slice_from
from lm.tokens.ngrams import CLEAN_BELOW, shared_tokens
from lm.tokens.tokenfile import TokenFile, document_spans, open_tokens

NGRAM_TOKENS = 13  # Brown et al. 2020, appendix C
LEAKED_FROM = 0.8  # of a document's tokens (Touvron et al. 2023, A.6)


def digest(text: str) -> int:
    """Return 64 bits of the text's BLAKE2b. Among a million documents, two texts collide with probability 10⁻⁷."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


def describe_documents(raw: Path, text_slice: Slice, dropped: Dropped) -> np.ndarray:
    """Return of each document the digest, that with white space folded, and the UTF-8 bytes: (D, 3) uint64."""
    row_of = lambda text: (digest(text), digest(" ".join(text.split())), len(text.encode()))  # noqa: E731
    # Make arrays batch by batch: Python integers would take nine times the memory.
    return np.concatenate(
        [np.array([*map(row_of, texts)], np.uint64) for texts in iter_texts(raw, text_slice, dropped)]
    )


def is_repeat(digests: np.ndarray) -> np.ndarray:
    """Return for each document, (D,) bool, if an equal one comes before it."""
    repeat = np.ones(len(digests), bool)
    repeat[np.unique(digests, return_index=True)[1]] = False
    return repeat


def flag_duplicates(train: np.ndarray, validation: np.ndarray) -> pa.Table:
    """Return each document's split, number, and duplicates within and across splits; columns 0 and 1 are digests."""
    tables = []
    for split, own, other in (("train", train, validation), ("validation", validation, train)):
        columns = {"split": np.full(len(own), split), "document": np.arange(len(own))}
        for i, kind in enumerate(("exact", "folded")):
            columns[f"{kind}_within"] = is_repeat(own[:, i])
            columns[f"{kind}_across"] = np.isin(own[:, i], other[:, i])
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)


def count_duplicates(flags: pa.Table) -> dict:
    """Return the number of marked documents by split and kind."""
    split, kinds = flags["split"].to_numpy(zero_copy_only=False), flags.column_names[2:]
    count = lambda name: {kind: int(flags[kind].to_numpy()[split == name].sum()) for kind in kinds}  # noqa: E731
    return {name: count(name) for name in ("train", "validation")}


def measure_contamination(train: TokenFile, validation: TokenFile) -> pa.Table:
    """Return one row per validation document: its tokens, and the fraction in n-grams that train has too."""
    leaked = shared_tokens(validation.ids, train.ids, validation.eot_id, NGRAM_TOKENS)
    spans = document_spans(validation)
    tokens = spans[:, 1] - spans[:, 0] - 1  # without the end-of-text id
    sums = np.concatenate([[0], np.cumsum(leaked)])
    fraction = (sums[spans[:, 1]] - sums[spans[:, 0]]) / np.maximum(tokens, 1)
    table = pa.table({"document": np.arange(len(spans)), "tokens": tokens, "leaked_fraction": fraction})
    return table.replace_schema_metadata({"validation_sha256": validation.meta["sha256"]})


def describe_contamination(contamination: pa.Table) -> dict:
    """Return the leaked fraction of all tokens, and the number of documents that are clean or leaked."""
    tokens, fraction = (contamination[name].to_numpy() for name in ("tokens", "leaked_fraction"))
    return {
        "ngram_tokens": NGRAM_TOKENS,
        "leaked_fraction": float((tokens * fraction).sum() / max(1, tokens.sum())),
        "clean_documents": int((fraction < CLEAN_BELOW).sum()),
        "leaked_documents": int((fraction >= LEAKED_FROM).sum()),
    }


def describe_tokens(tokens: TokenFile) -> dict:
    """Return the counts of a token file, from its sidecar."""
    meta = tokens.meta
    counts = {name: meta[name] for name in ("documents", "characters", "utf8_bytes", "tokens")}
    counts["bytes_per_token"] = meta["utf8_bytes"] / meta["tokens"]
    counts["tokens_per_document"] = meta["tokens"] / meta["documents"]
    if meta["surprisal_bits"] is not None:
        counts["surprisal_bits_per_document"] = meta["surprisal_bits"] / meta["documents"]
        counts["surprisal_bits_per_byte"] = meta["surprisal_bits"] / meta["utf8_bytes"]
    return counts


def describe_rows(manifest: dict) -> dict:
    """Return the rows that fetch dropped in each split, of each part if it is a mixture, and replaced characters."""
    parts = parts_of(manifest)
    dropped = {
        name: {split: entry["dropped_rows"] for split, entry in part["splits"].items()} for name, part in parts.items()
    }
    replaced = sum(part.get("replaced_characters", 0) for part in parts.values())
    return {
        "dropped_rows": dropped if "parts" in manifest else dropped[manifest["source"]],
        "replaced_characters": replaced,
    }


def describe_dropped(details: dict) -> dict:
    """Return the name of the selection, and how many documents and characters of data/raw each rule dropped."""
    return {"name": details["selection"], "dropped": add_up(details["documents"])}


def open_current(path: Path, raw: Path, selection: Path) -> TokenFile:
    """Open a token file. Raise IntegrityError if it was made from another data/raw or another selection of it."""
    tokens = open_tokens(path)
    if tokens.meta["source"]["manifest_sha256"] != sha256_file(raw / "manifest.json"):
        raise IntegrityError(f"{path}: made from another version of {raw}; run `dvc repro`")
    if tokens.meta["source"].get("selection") != describe_selection(selection, raw):
        raise IntegrityError(f"{path}: made with another version of {selection}; run `dvc repro`")
    return tokens


@command
def main(argv: list[str]) -> None:
    """Audit the slices of --raw that --train and --validation were made from."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    for name in ("raw", "selection", "train", "validation", "audit", "metrics"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args(argv)

    # Check that the text and both token files belong together.
    manifest = read_manifest(args.raw)
    dropped = read_dropped(args.selection, args.raw)
    train, validation = (open_current(path, args.raw, args.selection) for path in (args.train, args.validation))

    # Compare the documents of both splits as text, then as tokens.
    slices = [slice_from(tokens.meta["slice"]) for tokens in (train, validation)]
    documents = [describe_documents(args.raw, each, dropped) for each in slices]
    flags = flag_duplicates(*documents)
    contamination = measure_contamination(train, validation)
    contamination = contamination.append_column("utf8_bytes", [documents[1][:, 2].astype(np.int64)])

    # Write the tables and the data card.
    card = {
        "source": manifest["source"],
        "train": describe_tokens(train),
        "validation": describe_tokens(validation),
        "duplicates": count_duplicates(flags),
        "contamination": describe_contamination(contamination),
        "selection": describe_dropped(read_json(args.selection / DETAILS)),
        **describe_rows(manifest),
    }
    with output_lock(args.audit), atomic_folder(args.audit) as folder:
        for name, table in (("duplicates", flags), ("contamination", contamination)):
            pq.write_table(table, folder / f"{name}.parquet", compression="none", write_page_checksum=True)
        write_json(folder / "details.json", card)

    # Write the two figures that a person decides by, and print a summary.
    leaked_fraction = card["contamination"]["leaked_fraction"]
    metrics = {"bytes_per_token": card["train"]["bytes_per_token"], "leaked_fraction": leaked_fraction}
    write_json(args.metrics / "data.json", metrics)
    repeated = f"{card['duplicates']['validation']['folded_across']} of {card['validation']['documents']}"
    leaked = f"{leaked_fraction:.1%} of the validation tokens are in {NGRAM_TOKENS}-grams of train"
    print(f"{repeated} validation documents are also in train; {leaked}")


if __name__ == "__main__":
    sys.exit(main())
