"""Check that each file is what its record says, and that each record names the files it was made from.

    manifest.json → details.json (selection) → meta.json (tokenizer) → X.json → model.json → details.json → metrics

Every check yields findings. A damaged record is one finding, and the checks that need it are left out.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lm.core.errors import IntegrityError
from lm.core.files import read_json
from lm.text.documents import files_of as text_files
from lm.tokens.tokenfile import DTYPES, blocks_of, map_ids
from tools.common import paths
from tools.common.parameters import flatten

NAMES_IN_DETAILS = {
    "bytes_per_token": "train.bytes_per_token", "leaked_fraction": "contamination.leaked_fraction",
    "val_loss": "best.val_loss", "tokens_seen": "last.tokens_seen", "train_loss": "training.last_train_loss",
    "parameters": "training.parameters", "bpb_se": "bits_per_byte_se", "clean_bpb": "clean.bits_per_byte",
}  # fmt: skip


class Finding(NamedTuple):
    """The result of one check."""

    subject: str
    fault: str | None = None  # a clause that says what is wrong
    blamed: tuple[Path, ...] = ()  # files that can be at fault; the one that was made from the others is last
    advice: str = ""  # a clause that says what to do; without a fault it is a note


class Record(NamedTuple):
    """A JSON file and its content."""

    path: Path
    content: dict[str, Any]


class Digest(NamedTuple):
    """A file's size, hex MD5 and hex SHA-256; for an unreadable file both hashes hold the reason."""

    num_bytes: int
    md5: str
    sha256: str


class Digests:
    """Hash files, each once and completely; call `on_bytes` with the size of each block. Hard links are one file."""

    def __init__(self, on_bytes: Callable[[int], object] = lambda num_bytes: None):
        self.num_bytes = 0
        self._on_bytes = on_bytes
        self._known: dict[tuple[int, int], Digest] = {}

    def of(self, path: Path) -> Digest:
        """Return a file's digest; that of a missing or unreadable file equals no recorded one."""
        try:
            stat = path.stat()
            identity = stat.st_dev, stat.st_ino
            if identity not in self._known:
                self._known[identity] = self._read(path)
            return self._known[identity]
        except OSError as error:
            reason = "no file" if isinstance(error, FileNotFoundError) else f"unreadable ({error.strerror})"
            return Digest(0, reason, reason)

    def _read(self, path: Path) -> Digest:
        md5, sha256, start = hashlib.md5(usedforsecurity=False), hashlib.sha256(), self.num_bytes
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                md5.update(block)
                sha256.update(block)
                self.num_bytes += len(block)
                self._on_bytes(len(block))
        return Digest(self.num_bytes - start, md5.hexdigest(), sha256.hexdigest())


def differences(found: dict, recorded) -> str | None:
    """Return a clause that names the entries of `found` that are recorded differently, or None."""
    recorded = recorded if isinstance(recorded, dict) else {}
    clauses = [f"{k} is {v}, recorded is {recorded.get(k)}" for k, v in found.items() if v != recorded.get(k)]
    return "; ".join(clauses) or None


def run_checks(checks: list[tuple], digests: Digests) -> Iterator[Finding]:
    """Run each (check, record path, …) whose records all exist; report a damaged record once."""
    records = {}
    for path in filter(Path.exists, dict.fromkeys(path for _, *needed in checks for path in needed)):
        try:
            records[path] = Record(path, read_json(path))
        except (IntegrityError, OSError):
            yield Finding(str(path), "cannot be read as a JSON object", (path,))
    for check, *needed in checks:
        if all(path in records for path in needed):
            try:
                yield from check(digests, *(records[path] for path in needed))
            except (KeyError, TypeError, ValueError, AttributeError, IntegrityError) as error:
                yield Finding(str(needed[0]), f"has an unknown structure ({error!r})", tuple(needed[::-1]))


# Files and the record beside them.


def check_file(path: Path, record: Record, found: dict, recorded) -> Finding:
    """Compare a file with what the record beside it says."""
    return Finding(f"{path} (in {record.path.name})", differences(found, recorded), (path,))


def manifest_files(digests: Digests, manifest: Record) -> Iterator[Finding]:
    """Compare every parquet file with the manifest; report files that it does not list."""
    raw, listed = manifest.path.parent, set()
    for entry in text_files(manifest.content):
        path = raw / entry["path"]
        digest = digests.of(path)
        listed.add(path)
        yield check_file(path, manifest, {"bytes": digest.num_bytes, "sha256": digest.sha256}, entry)
    for path in sorted(set(raw.rglob("*.parquet")) - listed):
        yield Finding(str(path), f"is not in {manifest.path.name}", (path,))


def selection_file(digests: Digests, details: Record) -> Iterator[Finding]:
    """Compare the list of dropped documents with details.json."""
    path = details.path.with_name("dropped.parquet")
    yield check_file(path, details, {"dropped_sha256": digests.of(path).sha256}, details.content)


def tokenizer_files(digests: Digests, meta: Record) -> Iterator[Finding]:
    """Compare every file of a tokenizer with meta.json."""
    for name, sha256 in meta.content["files"].items():
        path = meta.path.with_name(name)
        yield check_file(path, meta, {"sha256": digests.of(path).sha256}, {"sha256": sha256})


def token_file(digests: Digests, sidecar: Record) -> Iterator[Finding]:
    """Compare X.bin with its sidecar; then check that all ids are in the vocabulary."""
    path, meta = sidecar.path.with_suffix(".bin"), sidecar.content
    digest, num_bytes = digests.of(path), meta["tokens"] * DTYPES[meta["dtype"]].itemsize
    found = {"bytes": digest.num_bytes, "sha256": digest.sha256}
    finding = check_file(path, sidecar, found, {"bytes": num_bytes, "sha256": meta["sha256"]})
    yield finding if finding.fault else Finding(f"{path} (in {sidecar.path.name})", fault_of_ids(path, meta), (path,))


def fault_of_ids(path: Path, meta: dict) -> str | None:
    """Return a clause if an id is outside the vocabulary, else None."""
    highest = max(int(block.max()) for _, block in blocks_of(map_ids(path, meta)))
    vocab_size = meta["tokenizer"]["vocab_size"]
    return None if highest < vocab_size else f"holds the id {highest}, its vocabulary has {vocab_size} entries"


def weights(digests: Digests, model: Record) -> Iterator[Finding]:
    """Compare the best and the last weights with model.json."""
    for name in ("best", "last"):
        path = model.path.with_name(f"{name}_model_params.pt")
        yield check_file(path, model, {"sha256": digests.of(path).sha256}, model.content[name])


# Records and the records they were made from. Each function returns (values found now, recorded values).


def text_of_tokenizer(digests: Digests, meta: Record, manifest: Record):
    """Compare the text that a vocabulary was trained on; a downloaded vocabulary records no text."""
    found = {"manifest_sha256": digests.of(manifest.path).sha256} if "text" in meta.content else {}
    return found, meta.content.get("text")


def text_of_selection(digests: Digests, details: Record, manifest: Record):
    """Compare the text whose documents were selected."""
    return {"manifest_sha256": digests.of(manifest.path).sha256}, details.content


def selection_of_tokenizer(digests: Digests, meta: Record, details: Record):
    """Compare the documents that were left out of the text of a vocabulary; a downloaded one records no text."""
    found = {name: details.content[name] for name in ("dropped_sha256",) if "text" in meta.content}
    return found, meta.content.get("text")


def selection_of_tokens(digests: Digests, sidecar: Record, details: Record):
    """Compare the selection that the tokens were made with."""
    found = {name: details.content[name] for name in ("dropped_sha256", "validation_dropped_sha256")}
    return found, sidecar.content["source"].get("selection")


def text_of_tokens(digests: Digests, sidecar: Record, manifest: Record):
    """Compare the text that the tokens were made from."""
    found = {"name": manifest.content["source"], "manifest_sha256": digests.of(manifest.path).sha256}
    return found, sidecar.content["source"]


def tokenizer_of_tokens(digests: Digests, sidecar: Record, meta: Record):
    """Compare the tokenizer that the tokens were made with."""
    found = {name: meta.content[name] for name in ("kind", "vocab_size", "eot_id", "dtype")}
    found["sha256"] = digests.of(meta.path).sha256
    return found, {**sidecar.content["tokenizer"], "dtype": sidecar.content["dtype"]}


def audit_of_tokens(digests: Digests, card: Record, manifest: Record, train: Record, validation: Record):
    """Compare the counts of data/audit/details.json with the token files."""
    found = {"source": manifest.content["source"]}
    for split, sidecar in (("train", train), ("validation", validation)):
        names = ("documents", "characters", "utf8_bytes", "tokens")
        found |= {f"{split}.{name}": sidecar.content[name] for name in names}
    return found, flatten(card.content)


def tokenizer_of_model(digests: Digests, model: Record, meta: Record):
    """Compare the tokenizer that the model was trained with."""
    found = {"tokenizer_sha256": digests.of(meta.path).sha256, "vocab_size": meta.content["vocab_size"]}
    return found, {**model.content, "vocab_size": model.content["config"]["vocab_size"]}


def tokens_of_model(digests: Digests, model: Record, train: Record, validation: Record):
    """Compare the token files that the model was trained on."""
    return {"train": train.content["sha256"], "validation": validation.content["sha256"]}, model.content["data_sha256"]


def score_of_model(digests: Digests, score: Record, model: Record, validation: Record):
    """Compare the model and the validation file of data/evaluation/details.json."""
    found = {name: validation.content[name] for name in ("documents", "tokens", "utf8_bytes")}
    found["window_tokens"] = model.content["seq_len"]
    recorded = score.content["weights_sha256"]  # the first digits
    found["weights_sha256"] = model.content["best"]["sha256"][: len(recorded)]
    return found, score.content


def metrics_of_details(digests: Digests, metrics: Record, details: Record):
    """Compare every metric with the details that it was taken from."""
    known = flatten(details.content)
    return {name: known.get(NAMES_IN_DETAILS.get(name, name)) for name in metrics.content}, metrics.content


def link(compare: Callable) -> Callable[..., Iterator[Finding]]:
    """Make a check of a record against its origins from one of the functions above."""

    def check(digests: Digests, record: Record, *origins: Record) -> Iterator[Finding]:
        found, recorded = compare(digests, record, *origins)
        if found:
            names = ", ".join(str(origin.path) for origin in origins)
            blamed = tuple(each.path for each in (*origins, record))
            yield Finding(f"{record.path} (from {names})", differences(found, recorded), blamed)

    return check


# (check, record, *origins) as `run_checks` takes them.
FILE_CHECKS = [(manifest_files, paths.MANIFEST), (selection_file, paths.SELECTION_DETAILS)]
FILE_CHECKS += [(tokenizer_files, paths.TOKENIZER_META)]
FILE_CHECKS += [(token_file, paths.TRAIN_SIDECAR), (token_file, paths.VALIDATION_SIDECAR), (weights, paths.MODEL)]
LINK_CHECKS = [
    (link(compare), *needed)
    for compare, *needed in (
        (text_of_selection, paths.SELECTION_DETAILS, paths.MANIFEST),
        (text_of_tokenizer, paths.TOKENIZER_META, paths.MANIFEST),
        (selection_of_tokenizer, paths.TOKENIZER_META, paths.SELECTION_DETAILS),
        (text_of_tokens, paths.TRAIN_SIDECAR, paths.MANIFEST),
        (text_of_tokens, paths.VALIDATION_SIDECAR, paths.MANIFEST),
        (selection_of_tokens, paths.TRAIN_SIDECAR, paths.SELECTION_DETAILS),
        (selection_of_tokens, paths.VALIDATION_SIDECAR, paths.SELECTION_DETAILS),
        (tokenizer_of_tokens, paths.TRAIN_SIDECAR, paths.TOKENIZER_META),
        (tokenizer_of_tokens, paths.VALIDATION_SIDECAR, paths.TOKENIZER_META),
        (audit_of_tokens, paths.AUDIT_DETAILS, paths.MANIFEST, paths.TRAIN_SIDECAR, paths.VALIDATION_SIDECAR),
        (tokenizer_of_model, paths.MODEL, paths.TOKENIZER_META),
        (tokens_of_model, paths.MODEL, paths.TRAIN_SIDECAR, paths.VALIDATION_SIDECAR),
        (score_of_model, paths.EVALUATION_DETAILS, paths.MODEL, paths.VALIDATION_SIDECAR),
        (metrics_of_details, paths.DATA_METRICS, paths.AUDIT_DETAILS),
        (metrics_of_details, paths.TRAIN_METRICS, paths.MODEL),
        (metrics_of_details, paths.EVAL_METRICS, paths.EVALUATION_DETAILS),
    )
]
