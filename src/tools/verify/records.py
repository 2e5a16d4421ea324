"""Which record holds the SHA-256 of which file, and a reader that hashes each file once."""

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from lm.core.errors import IntegrityError
from lm.core.files import read_json, reject_special_file
from lm.core.paths import KEPT_WEIGHTS
from lm.text.slices import TEST
from tools.common import paths
from tools.common.parameters import flatten

HASH = re.compile("[0-9a-f]{8,64}")  # a SHA-256 or its first digits; fewer would fit other files too


class Link(NamedTuple):
    """A dotted entry of a JSON record, and the file whose SHA-256, or the first digits of it, the entry is."""

    record: Path
    entry: str
    file: Path


BEST, LAST = (paths.MODELS / f"{name}_model_params.pt" for name in ("best", "last"))
LINKS = [
    *(
        Link(tokens.with_suffix(".json"), entry, file)
        for tokens in (paths.TRAIN, paths.VALIDATION)
        for entry, file in (("sha256", tokens), ("tokenizer.sha256", paths.TOKENIZER_META))
    ),
    Link(paths.MODEL, "tokenizer_sha256", paths.TOKENIZER_META),
    Link(paths.MODEL, "data_sha256.train", paths.TRAIN),
    Link(paths.MODEL, "data_sha256.validation", paths.VALIDATION),
    Link(paths.MODEL, "best.sha256", BEST),
    Link(paths.MODEL, "last.sha256", LAST),
    Link(paths.EVALUATION_DETAILS, "weights_sha256", BEST),
]


def links_of_text() -> list[Link]:
    """Return the links to the files of data/raw, of the manifest and of what was made from a slice of them."""
    links = []
    if paths.MANIFEST.exists():
        manifest = read_json(paths.MANIFEST)
        splits = manifest.get("splits", {})
        links += [Link(paths.MANIFEST, f"splits.{split}.sha256", paths.RAW / f"{split}.parquet") for split in splits]
        if TEST in manifest:
            links.append(Link(paths.MANIFEST, f"{TEST}.sha256", paths.RAW / f"{TEST}.parquet"))
    records = {paths.TRAIN_SIDECAR: "source.text_sha256", paths.VALIDATION_SIDECAR: "source.text_sha256"}
    for record, entry in (records | {paths.TOKENIZER_META: "text.text_sha256"}).items():
        content = flatten(read_json(record)) if record.exists() else {}
        split = content.get("slice.split", content.get("text.slice.split"))
        if split is not None:
            links.append(Link(record, entry, paths.RAW / f"{split}.parquet"))
    return links


def links_of_checkpoints(record: dict) -> list[Link]:
    """Return the links of the checkpoints in the content of a model.json: to its record, and to each one's own."""
    folders = {name: paths.MODELS / KEPT_WEIGHTS / name for name in record.get(KEPT_WEIGHTS, {})}
    links = [Link(paths.MODEL, f"{KEPT_WEIGHTS}.{name}", folder / BEST.name) for name, folder in folders.items()]
    return [*links, *(Link(f / paths.MODEL.name, "best.sha256", f / BEST.name) for f in folders.values())]


class Finding(NamedTuple):
    """The result of one check: `fault` says what is wrong, `advice` what to do. Advice without a fault is a note."""

    subject: str
    fault: str | None = None
    advice: str = ""


class Digest(NamedTuple):
    """A file's hex MD5 and hex SHA-256; for an unreadable file both hold the reason."""

    md5: str
    sha256: str


class Digests:
    """Hash files, each once and completely; call `on_bytes` with the size of each block. Hard links are one file."""

    def __init__(self, on_bytes: Callable[[int], object] = lambda num_bytes: None):
        self.num_bytes = 0
        self._on_bytes = on_bytes
        self._known: dict[tuple[int, int], Digest] = {}

    def of(self, path: Path) -> Digest:
        """Return a file's digest; that of a missing or unreadable file equals no recorded one.

        Raises IntegrityError for a pipe or a device, whose bytes may never come.
        """
        try:
            stat = reject_special_file(path).stat()
            if (stat.st_dev, stat.st_ino) not in self._known:
                self._known[stat.st_dev, stat.st_ino] = self._read(path)
            return self._known[stat.st_dev, stat.st_ino]
        except OSError as error:
            reason = "no file" if isinstance(error, FileNotFoundError) else f"unreadable ({error.strerror})"
            return Digest(reason, reason)

    def _read(self, path: Path) -> Digest:
        md5 = hashlib.md5(usedforsecurity=False)
        sha256 = hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                md5.update(block)
                sha256.update(block)
                self.num_bytes += len(block)
                self._on_bytes(len(block))
        return Digest(md5.hexdigest(), sha256.hexdigest())


def check_link(link: Link, digests: Digests, advice: str) -> Iterator[Finding]:
    """Check the file against the entry; yield nothing without the entry: a downloaded vocabulary records no text."""
    subject = f"{link.record} (from {link.file})"
    try:
        recorded = flatten(read_json(link.record)).get(link.entry) if link.record.exists() else None
    except (IntegrityError, OSError):
        yield Finding(subject, "cannot be read as a JSON object", advice)
        return
    if recorded is None:
        return
    sha256 = digests.of(link.file).sha256
    if HASH.fullmatch(str(recorded)) and sha256.startswith(str(recorded)):
        yield Finding(subject)
    else:
        yield Finding(subject, f"{link.entry} is {recorded}, but the SHA-256 of {link.file} is {sha256}", advice)
