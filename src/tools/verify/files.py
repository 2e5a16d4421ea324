"""Compare every byte of the outputs with dvc.lock, and name the command that brings one back.

`dvc status` hashes a file again only if its time, size or inode has changed, and never an object of DVC's cache.
"""

import json
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from lm.core.errors import IntegrityError
from tools.common.lock import Lock, md5_of
from tools.verify.records import Finding


def check_outputs(lock: Lock) -> Iterator[Finding]:
    """Compare each output with the hash that dvc.lock records. Raise IntegrityError if there is no data at all."""
    outputs = lock.hashes("outs")
    data = [Path(path) for path in outputs if path.startswith("data/")]
    if not any(path.exists() for path in data):
        remedy = "get them by `dvc pull`, or compute them by `make`"
        raise IntegrityError(f"the outputs that dvc.lock records are not here yet; {remedy}")
    for path, recorded in outputs.items():
        found = md5_of(Path(path))
        if found == recorded:
            yield Finding(path)
        elif found:
            yield Finding(path, f"its MD5 is {found}, dvc.lock records {recorded}", mend(path, lock))
        else:
            yield Finding(path, "is missing", mend(path, lock))


def mend(path: str, lock: Lock) -> str:
    """Return the command that brings back an output: from DVC's cache if it is intact there, else made again.

    DVC keeps a file that exists, and an object of its cache. So what is damaged goes first.
    """
    from dvc.repo import Repo  # takes a second to import

    with Repo() as repo:
        has_remote = bool(repo.config["core"].get("remote"))
        is_cached = repo.find_outs_by_path(path)[0].use_cache  # Git has the others
        objects = objects_of(lock.hashes("outs")[path], repo.cache.local.oid_to_path)
    damaged = [each for each, md5 in objects.items() if each.exists() and md5_of(each) != md5]

    if is_cached and not damaged and all(each.exists() for each in objects):
        again = f"dvc checkout {shlex.quote(path)}"
    elif is_cached and not damaged and has_remote:
        again = f"dvc pull {shlex.quote(path)}"
    else:
        again = "dvc repro"
    unwanted = [path, *(os.path.relpath(each) for each in damaged)]
    return f"run `{shlex.join(['rm', '-rf', *unwanted])} && {again}`"


def objects_of(md5: str, path_of: Callable[[str], str]) -> dict[Path, str]:
    """Return the objects of DVC's cache that an output of this hash consists of, each with the MD5 of its bytes.

    A folder is a list of files, and these files. Only an intact list is read.
    """
    objects = {Path(path_of(md5)): md5.removesuffix(".dir")}
    ((listed, md5_of_list),) = objects.items()
    if md5.endswith(".dir") and md5_of(listed) == md5_of_list:
        entries = json.loads(listed.read_bytes())
        objects |= {Path(path_of(entry["md5"])): entry["md5"] for entry in entries}
    return objects
