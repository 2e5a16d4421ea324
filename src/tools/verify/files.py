"""Compare every byte of the outputs with dvc.lock, and name the command that restores them.

`dvc status` hashes a file again only if its time, size or inode has changed, and never an object of DVC's cache.
"""

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

from lm.core.errors import IntegrityError
from tools.record.lock import Lock, md5_of, wrong_outputs


def check_outputs(lock: Lock) -> int:
    """Return the number of outputs. Raise IntegrityError, with one command, if an output has another hash."""
    wrong = wrong_outputs(lock)
    if not wrong:
        return len(lock.hashes("outs"))

    missing = [path for path in wrong if not os.path.exists(path)]
    changed = [path for path in wrong if path not in missing]
    problems = []
    if missing:
        problems.append(f"{', '.join(missing)}: missing")
    if changed:
        problems.append(f"{', '.join(changed)}: not what dvc.lock records")
    raise IntegrityError(f"{'; '.join(problems)}; {repair_command(wrong)}")


def repair_command(wrong: dict[str, str]) -> str:
    """Return the command that restores outputs (path → recorded hash), from a cache or by running stages.

    DVC keeps files that exist, and objects of its cache, so the command deletes damaged ones first. It does not pull a
    damaged object, because the remote may have the same damage.
    """
    from dvc.repo import Repo  # takes a second to import

    objects: dict[Path, str] = {}
    with Repo() as repo:
        has_remote = bool(repo.config["core"].get("remote"))
        are_cached = all(repo.find_outs_by_path(path)[0].use_cache for path in wrong)  # Git has the others
        for md5 in wrong.values():
            objects |= objects_of(md5, repo.cache.local.oid_to_path)
    missing = [path for path in objects if not path.exists()]
    damaged = [path for path, md5 in objects.items() if path.exists() and md5_of(path) != md5]

    if damaged or not are_cached or (missing and not has_remote):
        again = ["dvc", "repro"]  # it restores outputs that are in its run cache
    else:
        again = ["dvc", "pull" if missing else "checkout", *wrong]
    unwanted = [path for path in wrong if os.path.lexists(path)] + [os.path.relpath(path) for path in damaged]
    removal = f"{shlex.join(['rm', '-rf', *unwanted])} && " if unwanted else ""
    command = f"run `{removal}{shlex.join(again)}`"
    if damaged and has_remote:
        # `dvc push` assumes that the remote has the files of a folder if it has their list.
        unsound = [path for path in objects if path in damaged or path.suffix == ".dir"]
        names = " ".join(os.path.relpath(path, ".dvc/cache") for path in unsound)
        command += f"; if `dvc pull` brought the damage, delete {names} in the remote, then `dvc push`"
    return command


def objects_of(md5: str, path_of: Callable[[str], str]) -> dict[Path, str]:
    """Return the objects of DVC's cache that an output of this hash consists of, each with the MD5 of its bytes.

    A folder is a list of files, and these files. Only an intact list is read.
    """
    first = Path(path_of(md5))
    objects = {first: md5.removesuffix(".dir")}
    if md5.endswith(".dir") and md5_of(first) == objects[first]:
        for entry in json.loads(first.read_bytes()):
            objects[Path(path_of(entry["md5"]))] = entry["md5"]
    return objects
