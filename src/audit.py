"""Stage audit: both splits → data/audit (duplicates, contamination, a data card) and metrics/data.json.

    python src/audit.py --raw data/raw --selection data/selection --tokenizer data/tokenizer \
        --train data/processed_datasets/train.bin --validation data/processed_datasets/validation.bin \
        --audit data/audit --metrics metrics

Duplicates (exact, and with white space folded) and contamination (runs of 13 validation tokens that are in the
training text too) are counted and marked. Nothing is removed. Memory grows by a byte for each document.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import lm.core.environment  # noqa: F401 - before NumPy

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from lm.core.errors import IntegrityError, command
from lm.core.files import atomic_folder, output_lock, read_json, sha256_file, write_json
from lm.text.documents import Dropped, iter_texts, parts_of, read_manifest
from lm.text.duplicates import Digests, count_duplicates, flag_duplicates, iter_duplicates, write_digests
from lm.text.selection import DETAILS, add_up, describe_selection, read_dropped
from lm.text.slices import slice_from
from lm.tokenizer.load import load_tokenizer
from lm.tokenizer.quality import describe_quality
from lm.tokens.ngrams import CLEAN_BELOW, count_shared
from lm.tokens.tokenfile import TokenFile, check_tokenizer, open_tokens

NGRAM_TOKENS = 13  # Brown et al. 2020, appendix C
LEAKED_FROM = 0.8  # of a document's tokens (Touvron et al. 2023, A.6)
DUPLICATES = pa.schema(
    [("split", pa.string()), ("document", pa.int64())]
    + [(name, pa.bool_()) for name in ("exact_within", "exact_across", "folded_within", "folded_across")]
)
CONTAMINATION = pa.schema(
    [("document", pa.int64()), ("tokens", pa.int64()), ("leaked_fraction", pa.float64()), ("utf8_bytes", pa.int64())]
)


def digest_documents(raw: Path, dropped: Dropped, tokens: TokenFile, path: Path) -> Digests:
    """Write digests of the documents that a token file was made from, and show progress."""
    batches = iter_texts(raw, slice_from(tokens.meta["slice"]), dropped)
    with tqdm(desc="compare", total=tokens.meta["documents"], unit="doc", leave=False, disable=None) as bar:
        return write_digests(counted(batches, bar), path)


def counted(batches: Iterable[list[str]], bar: tqdm) -> Iterator[list[str]]:
    """Yield the batches, and move the bar by the documents of each."""
    for texts in batches:
        yield texts
        bar.update(len(texts))


def audit_duplicates(train: Digests, validation: Digests, path: Path) -> dict:
    """Write a row for each document that is a duplicate; return the number of them by split and kind."""
    flags = dict(zip(("train", "validation"), flag_duplicates(train, validation), strict=True))

    def rows() -> Iterator[pa.Table]:
        """Yield a table of documents at a time, and count them in `total`."""
        for split, of_split in flags.items():
            for columns in iter_duplicates(of_split):
                yield pa.table({"split": pa.repeat(split, len(columns["document"])), **columns}, schema=DUPLICATES)

    write_tables(path, rows(), DUPLICATES)
    return {split: count_duplicates(of_split) for split, of_split in flags.items()}


def audit_contamination(train: TokenFile, validation: TokenFile, documents: Digests, path: Path) -> dict:
    """Write a row for each validation document: the fraction of its tokens in n-grams that train has too.

    Returns the leaked fraction of all tokens, and the number of documents that are clean or leaked.
    """
    total = dict.fromkeys(("documents", "tokens", "leaked", "clean_documents", "leaked_documents"), 0)

    def rows() -> Iterator[pa.Table]:
        """Yield a table of documents at a time, and count them in `total`."""
        for tokens, leaked in count_shared(validation.ids, train.ids, validation.eot_id, NGRAM_TOKENS):
            first, fraction = total["documents"], leaked / np.maximum(tokens, 1)
            clean, mostly = (fraction < CLEAN_BELOW).sum(), (fraction >= LEAKED_FROM).sum()
            for name, count in zip(total, (len(tokens), tokens.sum(), leaked.sum(), clean, mostly), strict=True):
                total[name] += int(count)
            utf8_bytes = documents.read("utf8_bytes", first, total["documents"])
            numbers = np.arange(first, total["documents"])
            yield pa.table([numbers, tokens, fraction, utf8_bytes], schema=CONTAMINATION)

    write_tables(path, rows(), CONTAMINATION.with_metadata({"validation_sha256": validation.meta["sha256"]}))
    return {
        "ngram_tokens": NGRAM_TOKENS,
        "leaked_fraction": total["leaked"] / max(1, total["tokens"]),
        "clean_documents": total["clean_documents"],
        "leaked_documents": total["leaked_documents"],
    }


def write_tables(path: Path, tables: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Write tables, one after the other, as a parquet file."""
    with pq.ParquetWriter(path, schema, compression="none", write_page_checksum=True) as writer:
        for table in tables:
            writer.write_table(table)


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
    for name in ("raw", "selection", "tokenizer", "train", "validation", "audit", "metrics"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args(argv)

    # Check that the text, the tokenizer and both token files belong together.
    manifest = read_manifest(args.raw)
    dropped = read_dropped(args.selection, args.raw)
    train, validation = (open_current(path, args.raw, args.selection) for path in (args.train, args.validation))
    tokenizer = load_tokenizer(args.tokenizer)
    for tokens in (train, validation):
        check_tokenizer(tokens, tokenizer.sha256)

    with output_lock(args.audit), atomic_folder(args.audit) as folder:
        # Compare the documents of both splits as text, then as tokens. What does not fit in memory is beside them.
        with tempfile.TemporaryDirectory(dir=folder) as spilled:
            documents = [
                digest_documents(args.raw, dropped, t, Path(spilled, t.path.name)) for t in (train, validation)
            ]
            duplicates = audit_duplicates(documents[0], documents[1], folder / "duplicates.parquet")
            contamination = audit_contamination(train, validation, documents[1], folder / "contamination.parquet")

        # Write the data card.
        card = {
            "source": manifest["source"],
            "train": describe_tokens(train),
            "validation": describe_tokens(validation),
            "duplicates": duplicates,
            "contamination": contamination,
            "tokenizer": describe_quality(train, validation, tokenizer),
            "selection": describe_dropped(read_json(args.selection / DETAILS)),
            **describe_rows(manifest),
        }
        write_json(folder / "details.json", card)

    # Write the two figures that a person decides by, and print a summary.
    leaked_fraction = contamination["leaked_fraction"]
    metrics = {"bytes_per_token": card["train"]["bytes_per_token"], "leaked_fraction": leaked_fraction}
    write_json(args.metrics / "data.json", metrics)
    repeated = f"{duplicates['validation']['folded_across']} of {card['validation']['documents']}"
    leaked = f"{leaked_fraction:.1%} of the validation tokens are in {NGRAM_TOKENS}-grams of train"
    print(f"{repeated} validation documents are also in train; {leaked}")


if __name__ == "__main__":
    sys.exit(main())
