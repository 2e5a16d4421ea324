"""Stage audit: both splits → data/audit (duplicates, contamination, a data card) and metrics/data.json.

    python src/audit.py --raw data/raw --tokenizer data/tokenizer \
        --train data/processed_datasets/train.bin --validation data/processed_datasets/validation.bin \
        --audit data/audit --metrics metrics

It counts and marks duplicates (exact, and with white space folded) and contamination (runs of 13 validation tokens
that the training text also contains). It removes nothing. Memory grows by 16 bytes for each document.
"""

import argparse
import itertools
import sys
from pathlib import Path
from typing import NamedTuple

import lm.core.environment  # noqa: F401 - before NumPy

from lm.core.start import start_stage

if __name__ == "__main__":
    sys.exit(start_stage(__file__))  # which imports this file

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from lm.core.errors import IntegrityError, exit_with_status
from lm.core.files import PARQUET, atomic_folder, output_lock, write_json
from lm.core.inputs import StageInputs
from lm.core.messages import say
from lm.text.documents import Text, is_mixture, open_texts
from lm.text.duplicates import KINDS, Digests, digest_texts, duplicates_of, flag_duplicates
from lm.text.mixture import missed_weights
from lm.text.selection import sum_by_rule
from lm.text.slices import slice_from
from lm.tokenizer.load import load_tokenizer
from lm.tokenizer.quality import measure_vocabulary
from lm.tokens.ngrams import CLEAN_BELOW, count_shared
from lm.tokens.tokenfile import TokenFile, check_tokenizer, open_tokens

NGRAM_TOKENS = 13  # Brown et al. 2020, appendix C
CONTAMINATED_FROM = 0.8  # fraction of a document's tokens (Touvron et al. 2023, A.6)
MAX_COPIES = 0.05  # fraction of the validation documents above which to warn
MAX_CONTAMINATED = 0.2  # fraction of the validation tokens above which to warn
MAX_SHARE = 0.1  # fraction of the validation text in one document above which to warn
DUPLICATES = pa.schema([("split", pa.string()), ("document", pa.int64())] + [(kind, pa.bool_()) for kind in KINDS])
CONTAMINATION = pa.schema(
    [
        ("document", pa.int64()),
        ("tokens", pa.int64()),
        ("contaminated_fraction", pa.float64()),
        ("utf8_bytes", pa.int64()),
    ]
)


def digest_documents(text: Text, num_documents: int) -> Digests:
    """Return the digests of a text's documents, and show progress."""
    documents = itertools.chain.from_iterable(text.batches())
    return digest_texts(tqdm(documents, "compare", num_documents, unit="doc", leave=False, disable=None))


def audit_duplicates(train: Digests, validation: Digests, path: Path) -> dict:
    """Write a row for each duplicate document; return the counts by split and kind."""
    counts = {}
    with pq.ParquetWriter(path, DUPLICATES, **PARQUET) as writer:
        for split, flags in zip(("train", "validation"), flag_duplicates(train, validation), strict=True):
            columns = duplicates_of(flags)
            if rows := len(columns["document"]):
                writer.write_table(pa.table({"split": pa.repeat(split, rows), **columns}, schema=DUPLICATES))
            counts[split] = {kind: int(columns[kind].sum()) for kind in KINDS}
    return counts


class Contamination(NamedTuple):
    """The tokens of each validation document, and those inside n-grams of the training text: (D,) int64 each."""

    tokens: np.ndarray
    contaminated: np.ndarray

    @property
    def fractions(self) -> np.ndarray:
        """Return the contaminated fraction of each document, (D,) float64."""
        return self.contaminated / np.maximum(self.tokens, 1)


def find_contamination(train: TokenFile, validation: TokenFile) -> Contamination:
    """Count the tokens of each validation document that are inside n-grams of the training text."""
    blocks = count_shared(validation.ids, train.ids, validation.eot_id, NGRAM_TOKENS)
    tokens, contaminated = (np.concatenate(column) for column in zip(*blocks, strict=True))
    return Contamination(tokens, contaminated)


def write_contamination(path: Path, found: Contamination, utf8_bytes: np.ndarray, validation: TokenFile) -> None:
    """Write a row for each validation document. utf8_bytes: bytes of each document, (D,)."""
    schema = CONTAMINATION.with_metadata({"validation_sha256": validation.meta["sha256"]})
    columns = [np.arange(len(found.tokens)), found.tokens, found.fractions, utf8_bytes]
    pq.write_table(pa.table(columns, schema=schema), path, **PARQUET)


def describe_contamination(found: Contamination) -> dict:
    """Return the contaminated fraction of all tokens, and the number of documents that are clean or contaminated."""
    return {
        "ngram_tokens": NGRAM_TOKENS,
        "contaminated_fraction": int(found.contaminated.sum()) / max(1, int(found.tokens.sum())),
        "clean_documents": int((found.fractions < CLEAN_BELOW).sum()),
        "contaminated_documents": int((found.fractions >= CONTAMINATED_FROM).sum()),
    }


def describe_tokens(tokens: TokenFile) -> dict:
    """Return the counts of a token file, from its sidecar."""
    meta = tokens.meta
    counts = {name: meta[name] for name in ("documents", "characters", "utf8_bytes", "tokens")}
    counts["bytes_per_token"] = meta["utf8_bytes"] / meta["tokens"]
    counts["tokens_per_document"] = meta["tokens"] / meta["documents"]
    return counts


def describe_rows(manifest: dict) -> dict:
    """Return the counts of dropped rows and replaced characters by split, and by source for a mixture."""
    sources = manifest["sources"]
    dropped = {}
    for name, source in sources.items():
        dropped[name] = {split: entry["dropped_rows"] for split, entry in source["splits"].items()}
    return {
        "dropped_rows": dropped if is_mixture(manifest) else dropped[manifest["source"]],
        "replaced_characters": sum(source.get("replaced_characters", 0) for source in sources.values()),
    }


def warnings_about_validation(num_copies: int, contaminated_fraction: float, utf8_bytes: np.ndarray) -> list[str]:
    """Return a warning for each reason why the validation loss may mislead.

    num_copies: number of validation documents that train also has. contaminated_fraction: of the validation tokens.
    utf8_bytes: bytes of each validation document, (D,).
    """
    num_documents = len(utf8_bytes)
    longest_share = utf8_bytes.max() / utf8_bytes.sum()
    warnings = []
    if num_copies > MAX_COPIES * num_documents:
        share = f"{num_copies / num_documents:.0%} of the validation documents"
        warnings.append(f"{share} are copies of training text (but for white space); the validation loss is too low")
    if contaminated_fraction > MAX_CONTAMINATED:
        share = f"{contaminated_fraction:.0%} of the validation tokens are in {NGRAM_TOKENS}-grams of train"
        warnings.append(f"{share} (near-copies or repeated passages); the validation loss is too low")
    if longest_share > MAX_SHARE:
        share = f"{longest_share:.0%} of the text"
        warnings.append(
            f"the longest of {num_documents} validation documents holds {share}; few documents decide the score"
        )
    return warnings


def check_made_from(tokens: TokenFile, text: Text) -> None:
    """Raise IntegrityError if a token file was made from another text."""
    if tokens.meta["source"] != text.source:
        raise IntegrityError(f"{tokens.path}: made from another version of {text.raw}; run `dvc repro`")


@exit_with_status
def main(argv: list[str]) -> None:
    """Audit the slices of --raw that --train and --validation were made from."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    for name, text in {
        "raw": "folder of the text and its manifest",
        "tokenizer": "folder of the tokenizer",
        "train": "token file for training",
        "validation": "token file for validation",
        "audit": "folder to write",
        "metrics": "folder for data.json",
    }.items():
        parser.add_argument(f"--{name}", type=Path, required=True, help=text)
    args = parser.parse_args(argv)
    inputs = StageInputs("audit")

    # Open the token files and the text, and check that they and the tokenizer belong together.
    train = open_tokens(args.train)
    validation = open_tokens(args.validation)
    slices = [slice_from(tokens.meta["slice"]) for tokens in (train, validation)]
    train_text, validation_text = open_texts(args.raw, slices)
    check_made_from(train, train_text)
    check_made_from(validation, validation_text)
    tokenizer = load_tokenizer(args.tokenizer)
    for tokens in (train, validation):
        check_tokenizer(tokens, tokenizer.sha256)

    say("comparing the documents and the n-grams of both splits")
    with output_lock(args.audit), atomic_folder(args.audit) as folder:
        # Compare the documents of both splits as text.
        train_digests = digest_documents(train_text, train.meta["documents"])
        validation_digests = digest_documents(validation_text, validation.meta["documents"])
        duplicates = audit_duplicates(train_digests, validation_digests, folder / "duplicates.parquet")

        # Compare them as tokens.
        utf8_bytes = validation_text.utf8_bytes()
        found = find_contamination(train, validation)
        write_contamination(folder / "contamination.parquet", found, utf8_bytes, validation)
        contamination = describe_contamination(found)

        # Write the data card.
        manifest = train_text.manifest
        selection = manifest["selection"]
        card = {
            "source": manifest["source"],
            "train": describe_tokens(train),
            "validation": describe_tokens(validation),
            "duplicates": duplicates,
            "contamination": contamination,
            "tokenizer": measure_vocabulary(train, validation, tokenizer),
            "selection": {"name": selection["name"], "dropped": sum_by_rule(selection["dropped"])},
            **describe_rows(manifest),
        }
        write_json(folder / "details.json", card)
        inputs.check_unchanged()

    # Write the two headline metrics, and print a summary.
    fraction = contamination["contaminated_fraction"]
    metrics = {"bytes_per_token": card["train"]["bytes_per_token"], "contaminated_fraction": fraction}
    write_json(args.metrics / "data.json", metrics)
    num_copies = duplicates["validation"]["folded_across"]
    contaminated = f"{fraction:.1%} of the validation tokens are in {NGRAM_TOKENS}-grams of train"
    say(f"{num_copies} of {len(utf8_bytes)} validation documents are also in train; {contaminated}")
    for warning in missed_weights(manifest) + warnings_about_validation(num_copies, fraction, utf8_bytes):
        say(f"warning: {warning}", file=sys.stderr)
