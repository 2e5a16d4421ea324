"""Which record holds the SHA-256 of which file, and a reader that hashes each file once."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lm.core.errors import IntegrityError
from lm.core.files import read_json, read_parquet, reject_special_file, sha256_file
from lm.text.slices import TEST
from tools.common import paths
from tools.common.parameters import flatten

HASH = re.compile("[0-9a-f]{8,64}")  # a SHA-256 or its first digits; fewer would fit other files too
NO_FILE = "no file"  # in place of the digest of a missing file


class Link(NamedTuple):
    """A dotted entry of a record, and the file whose SHA-256, or the first digits of it, the entry is.

    A record is a JSON file, or a parquet file with the entry in its metadata.
    """

    record: Path
    entry: str
    file: Path


BEST = paths.MODELS / "best_model_params.pt"
LAST = paths.MODELS / "last_model_params.pt"
LINKS = [
    Link(paths.TRAIN_SIDECAR, "sha256", paths.TRAIN),
    Link(paths.TRAIN_SIDECAR, "tokenizer.sha256", paths.TOKENIZER_META),
    Link(paths.VALIDATION_SIDECAR, "sha256", paths.VALIDATION),
    Link(paths.VALIDATION_SIDECAR, "tokenizer.sha256", paths.TOKENIZER_META),
    Link(paths.AUDIT / "contamination.parquet", "validation_sha256", paths.VALIDATION),
    Link(paths.MODEL, "tokenizer_sha256", paths.TOKENIZER_META),
    Link(paths.MODEL, "data_sha256.train", paths.TRAIN),
    Link(paths.MODEL, "data_sha256.validation", paths.VALIDATION),
    Link(paths.MODEL, "best.sha256", BEST),
    Link(paths.MODEL, "last.sha256", LAST),
    Link(paths.EVALUATION_DETAILS, "weights_sha256", BEST),
]


def links_of_workspace() -> list[Link]:
    """Return every link of the workspace's records, in the order of the stages."""
    return [*links_of_text(), *links_of_tokenizer(), *LINKS]


def links_of_text() -> list[Link]:
    """Return the links to the files of data/raw, of the manifest and of what was made from a slice of them."""
    manifest = read_entries(paths.MANIFEST)
    splits = {name.split(".")[1]: name for name in manifest if re.fullmatch(r"splits\.[^.]+\.sha256", name)}
    if f"{TEST}.sha256" in manifest:
        splits[TEST] = f"{TEST}.sha256"
    links = [Link(paths.MANIFEST, entry, paths.RAW / f"{split}.parquet") for split, entry in splits.items()]

    # A record of what was made from a slice says of which split it is.
    made_from_text = {
        paths.TRAIN_SIDECAR: ("source.text_sha256", "slice.split"),
        paths.VALIDATION_SIDECAR: ("source.text_sha256", "slice.split"),
        paths.TOKENIZER_META: ("text.text_sha256", "text.slice.split"),
    }
    for record, (entry, split_entry) in made_from_text.items():
        split = read_entries(record).get(split_entry)
        if split is not None:
            links.append(Link(record, entry, paths.RAW / f"{split}.parquet"))
    return links


def links_of_tokenizer() -> list[Link]:
    """Return the links of the tokenizer's meta.json to its other files."""
    meta = paths.TOKENIZER_META
    entries = [entry for entry in read_entries(meta) if entry.startswith("files.")]
    return [Link(meta, entry, paths.TOKENIZER / entry.removeprefix("files.")) for entry in entries]


def links_of_finished_run(done: Path) -> list[Link]:
    """Return the links to all files that `train` publishes of a finished run instead of training it again."""
    from lm.train.outputs import SUMS  # torch takes seconds to import

    record = done / SUMS
    links = []
    for entry in read_entries(record):
        place, _, name = entry.partition(".")
        links.append(Link(record, entry, done.parent / place / name))
    return links


def read_entries(record: Path) -> dict[str, object]:
    """Return the entries of a record by their dotted names, {} if it is missing or cannot be read."""
    try:
        return _read_entries(record) if record.exists() else {}
    except (IntegrityError, OSError):
        return {}


def _read_entries(record: Path) -> dict[str, object]:
    if record.suffix != ".parquet":
        return flatten(read_json(record))
    metadata = read_parquet(record).schema.metadata or {}
    return {name.decode(): value.decode() for name, value in metadata.items()}


class Finding(NamedTuple):
    """The result of one check: `fault` says what is wrong, `advice` what to do."""

    subject: str
    fault: str | None = None
    advice: str = ""


class Digests:
    """Hash files, each once. Hard links are one file."""

    def __init__(self):
        self._known: dict[tuple[int, int], str] = {}

    def of(self, path: Path) -> str:
        """Return a file's SHA-256 in hex; what stands for that of a missing or unreadable file equals no recorded one.

        Raise IntegrityError for a pipe or a device, whose bytes may never come.
        """
        try:
            stat = reject_special_file(path).stat()
            if (stat.st_dev, stat.st_ino) not in self._known:
                self._known[stat.st_dev, stat.st_ino] = sha256_file(path)
            return self._known[stat.st_dev, stat.st_ino]
        except OSError as error:
            return NO_FILE if isinstance(error, FileNotFoundError) else f"unreadable ({error.strerror})"


def check_link(link: Link, digests: Digests, advice: str) -> Iterator[Finding]:
    """Check the file against the entry; yield nothing without the entry: a downloaded vocabulary records no text."""
    subject = f"{link.record} (from {link.file})"
    try:
        recorded = _read_entries(link.record).get(link.entry) if link.record.exists() else None
    except (IntegrityError, OSError):
        form = "parquet file" if link.record.suffix == ".parquet" else "JSON object"
        yield Finding(subject, f"cannot be read as a {form}", advice)
        return
    if recorded is None:
        return
    sha256 = digests.of(link.file)
    if HASH.fullmatch(str(recorded)) and sha256.startswith(str(recorded)):
        yield Finding(subject)
    else:
        yield Finding(subject, f"{link.entry} is {recorded}, but the SHA-256 of {link.file} is {sha256}", advice)
