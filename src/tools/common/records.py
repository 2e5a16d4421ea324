"""Is each file what its record says, and was it made from the records that lie there?

    manifest.json → meta.json (tokenizer) → X.json → model.json → metrics, an exported folder

Every check is a `Finding`; a damaged record is one of its own, and what needs it is left out. Files
are read to their last byte, each once, whatever their times say.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from lm.core.errors import IntegrityError
from lm.core.files import read_json
from lm.tokens.tokenfile import DTYPES, blocks_of, files_of, map_ids, sha256_of_stream, sidecar_path

BLOCK_BYTES = 1 << 20
NO_FILE = "no file"


class Finding(NamedTuple):
    """One thing that was checked.

    `fault` is what is wrong with it, a clause; None if nothing is. `blamed` are the files that can
    be at fault, the one made from the others last. `advice` is what to do, a clause too; of a finding
    without a fault it is a note.
    """

    subject: str
    fault: str | None = None
    blamed: tuple[Path, ...] = ()
    advice: str = ""


class Digest(NamedTuple):
    """What was read of a file: its bytes, hex MD5 and hex SHA-256, or in their place why there is none."""

    num_bytes: int
    md5: str
    sha256: str


class Digests:
    """Digests of files, each read once, in blocks; `on_bytes` hears of every block. Hard links are one file."""

    def __init__(self, on_bytes: Callable[[int], object] = lambda num_bytes: None):
        self.num_bytes = 0
        self._on_bytes = on_bytes
        self._known: dict[tuple[int, int], Digest] = {}

    def of(self, path: Path) -> Digest:
        """Digest a file; one that is missing or cannot be read has a digest that equals none."""
        try:
            found = path.stat()
            identity = found.st_dev, found.st_ino
            if identity not in self._known:
                self._known[identity] = self._read(path)
            return self._known[identity]
        except FileNotFoundError:
            return Digest(0, NO_FILE, NO_FILE)
        except OSError as error:
            return Digest(0, f"unreadable ({error.strerror})", f"unreadable ({error.strerror})")

    def _read(self, path: Path) -> Digest:
        md5, sha256, num_bytes = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
        with open(path, "rb") as file:
            while block := file.read(BLOCK_BYTES):
                md5.update(block)
                sha256.update(block)
                num_bytes += len(block)
                self._on_bytes(len(block))
        self.num_bytes += num_bytes
        return Digest(num_bytes, md5.hexdigest(), sha256.hexdigest())


class Record(NamedTuple):
    """A JSON file and what it holds."""

    path: Path
    content: dict


class Places(NamedTuple):
    """Where the pipeline's files lie; each need not exist yet."""

    raw: Path
    tokenizer: Path
    train: Path  # X.bin
    validation: Path
    models: Path
    metrics: Path


def differences(found: dict, recorded) -> str | None:
    """Where what was found is not what is recorded of it, as a clause; None if nowhere."""
    recorded = recorded if isinstance(recorded, dict) else {}
    return (
        "; ".join(f"{k} is {v}, recorded is {recorded.get(k)}" for k, v in found.items() if v != recorded.get(k))
        or None
    )


def check_chain(places: Places, digests: Digests) -> Iterator[Finding]:
    """Check each record that exists against its files and against the records that it names."""
    manifest, meta = places.raw / "manifest.json", places.tokenizer / "meta.json"
    train, validation = sidecar_path(places.train), sidecar_path(places.validation)
    model = places.models / "model.json"
    metrics = {name: places.metrics / f"{name}.json" for name in ("data", "train", "eval")}
    checks = [
        (manifest_files, manifest),
        (tokenizer_files, meta),
        (text_of_tokenizer, meta, manifest),
        (token_file, train),
        (token_file, validation),
        (text_of_tokens, train, manifest),
        (text_of_tokens, validation, manifest),
        (tokenizer_of_tokens, train, meta),
        (tokenizer_of_tokens, validation, meta),
        (weights, model),
        (tokenizer_of_model, model, meta),
        (tokens_of_model, model, train, validation),
        (audit_of_tokens, metrics["data"], manifest, train, validation),
        (training_of_model, metrics["train"], model),
        (score_of_model, metrics["eval"], model, validation),
    ]
    yield from run_checks(checks, digests)


def run_checks(checks: list[tuple], digests: Digests) -> Iterator[Finding]:
    """Run each (check, record path, …) whose records are all there; one that is damaged is named once."""
    paths = dict.fromkeys(path for _, *needed in checks for path in needed)
    records = {}
    for path in filter(Path.exists, paths):
        try:
            records[path] = Record(path, read_json(path))
        except (IntegrityError, OSError):
            yield Finding(str(path), "cannot be read as a JSON object", (path,))
    for check, *needed in checks:
        if all(path in records for path in needed):
            try:
                yield from check(digests, *(records[path] for path in needed))
            except (KeyError, TypeError, ValueError, AttributeError, IntegrityError) as error:
                yield Finding(str(needed[0]), f"is not as it was written ({error!r})", tuple(needed[::-1]))


def link(record: Record, *origins: Record, found: dict, recorded) -> Finding:
    """Whether a record names what its origins are now."""
    names = ", ".join(str(origin.path) for origin in origins)
    blamed = tuple(each.path for each in (*origins, record))
    return Finding(f"{record.path} (from {names})", differences(found, recorded), blamed)


def manifest_files(digests: Digests, manifest: Record) -> Iterator[Finding]:
    """Every parquet file as the manifest has it, and none that it does not know."""
    raw, listed = manifest.path.parent, set()
    for split in manifest.content["splits"].values():
        for entry in split["files"]:
            path = raw / entry["path"]
            found = digests.of(path)
            fault = differences({"bytes": found.num_bytes, "sha256": found.sha256}, entry)
            listed.add(path)
            yield Finding(f"{path} (in {manifest.path.name})", fault, (path,))
    for path in sorted(set(raw.rglob("*.parquet")) - listed):
        yield Finding(str(path), f"is not in {manifest.path.name}", (path,))


def tokenizer_files(digests: Digests, meta: Record) -> Iterator[Finding]:
    """Every file of a tokenizer as meta.json has it."""
    for name, sha256 in meta.content["files"].items():
        path = meta.path.parent / name
        fault = differences({"sha256": digests.of(path).sha256}, {"sha256": sha256})
        yield Finding(f"{path} (in {meta.path.name})", fault, (path,))


def text_of_tokenizer(digests: Digests, meta: Record, manifest: Record) -> Iterator[Finding]:
    """A trained vocabulary was trained on the text that lies there; others know no text."""
    if "text" in meta.content:
        found = {"manifest_sha256": digests.of(manifest.path).sha256}
        yield link(meta, manifest, found=found, recorded=meta.content["text"])


def token_file(digests: Digests, sidecar: Record) -> Iterator[Finding]:
    """X.bin, a file or shards, as its sidecar has it, and all of its ids in the vocabulary."""
    path, meta = sidecar.path.with_suffix(".bin"), sidecar.content
    item_bytes, is_whole = DTYPES[meta["dtype"]].itemsize, True
    for file in files_of(path, meta):
        found = digests.of(file.path)
        expected = {"bytes": file.tokens * item_bytes, "sha256": file.sha256}
        fault = differences({"bytes": found.num_bytes, "sha256": found.sha256}, expected)
        if fault:
            is_whole = False
            yield Finding(f"{file.path} (in {sidecar.path.name})", fault, (file.path,))
    if is_whole:
        yield Finding(f"{path} (in {sidecar.path.name})", _fault_of_stream(path, meta), (path,))


def _fault_of_stream(path: Path, meta: dict) -> str | None:
    """What is wrong with a stream whose files are as recorded: their order, or an id, as a clause."""
    if "shards" in meta:
        fault = differences({"sha256": sha256_of_stream(file.path for file in files_of(path, meta))}, meta)
        if fault:
            return fault
    highest = max(int(block.max()) for _, block in blocks_of(map_ids(path, meta)))
    vocab_size = meta["tokenizer"]["vocab_size"]
    return None if highest < vocab_size else f"holds the id {highest}, its vocabulary has {vocab_size} entries"


def text_of_tokens(digests: Digests, sidecar: Record, manifest: Record) -> Iterator[Finding]:
    """The tokens are those of the text that lies there."""
    found = {"name": manifest.content["source"], "manifest_sha256": digests.of(manifest.path).sha256}
    yield link(sidecar, manifest, found=found, recorded=sidecar.content["source"])


def tokenizer_of_tokens(digests: Digests, sidecar: Record, meta: Record) -> Iterator[Finding]:
    """The tokens were made with the tokenizer that lies there."""
    found = {name: meta.content[name] for name in ("kind", "vocab_size", "eot_id", "dtype")}
    found["sha256"] = digests.of(meta.path).sha256
    recorded = {**sidecar.content["tokenizer"], "dtype": sidecar.content["dtype"]}
    yield link(sidecar, meta, found=found, recorded=recorded)


def weights(digests: Digests, model: Record) -> Iterator[Finding]:
    """Each set of weights as model.json has it."""
    for name in ("best", "last"):
        path = model.path.with_name(f"{name}_model_params.pt")
        fault = differences({"sha256": digests.of(path).sha256}, model.content[name])
        yield Finding(f"{path} (in {model.path.name})", fault, (path,))


def tokenizer_of_model(digests: Digests, model: Record, meta: Record) -> Iterator[Finding]:
    """The model knows the ids of the tokenizer that lies there."""
    found = {"tokenizer_sha256": digests.of(meta.path).sha256, "vocab_size": meta.content["vocab_size"]}
    recorded = {**model.content, "vocab_size": model.content["config"]["vocab_size"]}
    yield link(model, meta, found=found, recorded=recorded)


def tokens_of_model(digests: Digests, model: Record, train: Record, validation: Record) -> Iterator[Finding]:
    """The model was trained on the token files that lie there."""
    found = {"train": train.content["sha256"], "validation": validation.content["sha256"]}
    yield link(model, train, validation, found=found, recorded=model.content["data_sha256"])


def audit_of_tokens(
    digests: Digests, metrics: Record, manifest: Record, train: Record, validation: Record
) -> Iterator[Finding]:
    """metrics/data.json counts the token files that lie there."""
    names = ("documents", "characters", "utf8_bytes", "tokens")
    found, recorded = {"source": manifest.content["source"]}, {"source": metrics.content["source"]}
    for split, sidecar in (("train", train), ("validation", validation)):
        found |= {f"{split}.{name}": sidecar.content[name] for name in names}
        recorded |= {f"{split}.{name}": metrics.content[split][name] for name in names}
    yield link(metrics, manifest, train, validation, found=found, recorded=recorded)


def training_of_model(digests: Digests, metrics: Record, model: Record) -> Iterator[Finding]:
    """metrics/train.json has the losses of the model that lies there."""
    best, last = model.content["best"], model.content["last"]
    found = {"best_val_loss": best["val_loss"], "best_tokens_seen": best["tokens_seen"]}
    found |= {"last_val_loss": last["val_loss"], "tokens_seen": last["tokens_seen"], "steps": last["step"]}
    yield link(metrics, model, found=found, recorded=metrics.content)


def score_of_model(digests: Digests, metrics: Record, model: Record, validation: Record) -> Iterator[Finding]:
    """metrics/eval.json is of the model and the validation file that lie there."""
    found = {name: validation.content[name] for name in ("documents", "tokens", "utf8_bytes")}
    found["window_tokens"] = model.content["seq_len"]
    found["weights_sha256"] = model.content["best"]["sha256"][:12]
    yield link(metrics, model, validation, found=found, recorded=metrics.content)
