"""Check that the JSON records of the pipeline fit the files that they describe and were made from.

manifest.json → details.json (selection) → meta.json (tokenizer) → X.json → model.json → details.json (evaluation)
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from lm.core.errors import IntegrityError
from lm.core.files import read_json, regular
from tools.common import paths
from tools.common.parameters import flatten


class Link(NamedTuple):
    """An entry of a record, and the file whose SHA-256 it is, or the entry of another record that it repeats."""

    record: Path
    entry: str  # dotted
    origin: Path
    origin_entry: str = ""


SIDECARS = (paths.TRAIN_SIDECAR, paths.VALIDATION_SIDECAR)
# Records and the files beside them.
FILES = [
    Link(paths.SELECTION_DETAILS, "dropped_sha256", paths.SELECTION / "dropped.parquet"),
    *(Link(sidecar, "sha256", sidecar.with_suffix(".bin")) for sidecar in SIDECARS),
    *(Link(paths.MODEL, f"{name}.sha256", paths.MODELS / f"{name}_model_params.pt") for name in ("best", "last")),
]
# Records and the records that they were made from.
ORIGINS = [
    Link(paths.SELECTION_DETAILS, "manifest_sha256", paths.MANIFEST),
    Link(paths.TOKENIZER_META, "text.manifest_sha256", paths.MANIFEST),
    Link(paths.TOKENIZER_META, "text.dropped_sha256", paths.SELECTION_DETAILS, "dropped_sha256"),
    *(Link(sidecar, "source.manifest_sha256", paths.MANIFEST) for sidecar in SIDECARS),
    *(
        Link(sidecar, "source.selection.dropped_sha256", paths.SELECTION_DETAILS, "dropped_sha256")
        for sidecar in SIDECARS
    ),
    *(Link(sidecar, "tokenizer.sha256", paths.TOKENIZER_META) for sidecar in SIDECARS),
    Link(paths.MODEL, "tokenizer_sha256", paths.TOKENIZER_META),
    *(Link(paths.MODEL, f"data_sha256.{sidecar.stem}", sidecar, "sha256") for sidecar in SIDECARS),
    Link(paths.EVALUATION_DETAILS, "weights_sha256", paths.MODEL, "best.sha256"),  # the first digits
]


class Finding(NamedTuple):
    """The result of one check."""

    subject: str
    fault: str | None = None  # a clause that says what is wrong
    blamed: tuple[Path, ...] = ()  # files that can be at fault; the one that was made from the others is last
    advice: str = ""  # a clause that says what to do; without a fault it is a note


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
            stat = regular(path).stat()
            if (stat.st_dev, stat.st_ino) not in self._known:
                self._known[stat.st_dev, stat.st_ino] = self._read(path)
            return self._known[stat.st_dev, stat.st_ino]
        except OSError as error:
            reason = "no file" if isinstance(error, FileNotFoundError) else f"unreadable ({error.strerror})"
            return Digest(reason, reason)

    def _read(self, path: Path) -> Digest:
        md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                md5.update(block)
                sha256.update(block)
                self.num_bytes += len(block)
                self._on_bytes(len(block))
        return Digest(md5.hexdigest(), sha256.hexdigest())


def check_links(links: list[Link], digests: Digests) -> Iterator[Finding]:
    """Check the links whose record and origin exist; report a damaged record once."""
    records: dict[Path, dict] = {}
    for path in dict.fromkeys(
        path for link in links for path in (link.record, link.origin if link.origin_entry else None)
    ):
        if path and path.exists():
            try:
                records[path] = flatten(read_json(path))
            except (IntegrityError, OSError):
                yield Finding(str(path), "cannot be read as a JSON object", (path,))
    for record, entry, origin, origin_entry in links:
        recorded = records.get(record, {}).get(entry)
        is_missing = origin not in records if origin_entry else origin.suffix == ".json" and not origin.exists()
        if recorded is None or is_missing:  # a downloaded vocabulary records no text
            continue
        sha256 = records[origin].get(origin_entry) if origin_entry else digests.of(origin).sha256
        is_same = str(recorded) == str(sha256)[: len(str(recorded))]
        fault = None if is_same else f"{entry} is {recorded}, that of {origin} is {sha256}"
        yield Finding(f"{record} (from {origin})", fault, (origin, record))
