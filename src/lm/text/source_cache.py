"""Keep the fetched sources of a mixture, each in a folder named by all that decides its bytes."""

import os
import shutil
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path

from lm.core.errors import IntegrityError
from lm.core.files import sha256_file, sha256_json
from lm.text.documents import MANIFEST, read_manifest

CODE = Path(__file__).parent  # this room, which writes the documents


def key_of(name: str, fetch: dict) -> str:
    """Return the hash of a source's name and definition, and of the code and the package that write its files."""
    files = sorted(path for path in CODE.rglob("*") if path.suffix in (".py", ".txt"))
    code = {path.relative_to(CODE).as_posix(): sha256_file(path) for path in files}
    return sha256_json({"name": name, "fetch": fetch, "code": code, "pyarrow": version("pyarrow")})


def is_whole(folder: Path) -> bool:
    """Return whether a source is there and every file has the SHA-256 of its manifest."""
    try:
        return bool(read_manifest(folder))
    except IntegrityError:
        return False


def link_files(source: Path, target: Path) -> None:
    """Fill the new folder `target` with links to the files of `source`, or with copies where that is impossible."""
    # Nothing writes into these files: DVC's cache may hold the same inode, and makes it read-only.
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir() or path.name == MANIFEST:
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, place)
        except OSError:  # on another disk
            shutil.copyfile(path, place)
    shutil.copyfile(source / MANIFEST, target / MANIFEST)


def describe_in_mixture(manifest: dict, name: str) -> dict:
    """Return a source's manifest for that of the mixture, where its files are in the folder `name`."""
    splits = {}
    for split, entry in manifest["splits"].items():
        splits[split] = {**entry, "files": [{**file, "path": f"{name}/{file['path']}"} for file in entry["files"]]}
    described = {key: value for key, value in manifest.items() if key != "format_version"}
    return {**described, "splits": splits}


def remove_others(cache: Path, keys: Collection[str]) -> None:
    for folder in cache.glob("*"):
        if folder.name not in keys:
            shutil.rmtree(folder, ignore_errors=True)
