"""Compare the files that DVC records with those in the workspace and in DVC's cache, byte by byte.

`dvc status` and `dvc data status` hash a file again only if its time, size or inode has changed, and a cache object
never, so that `dvc checkout` restores a damaged object. Here every byte is read, once for all checks. The hashes are
DVC's: the MD5 of a file, and for a folder the MD5 of the list of its files.
"""

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dvc.dependency import Dependency, ParamsDependency
from dvc.output import Output
from dvc.repo import Repo
from dvc.stage import Stage

from tools.common.lock import hash_of_folder
from tools.common.parameters import MISSING, differences, flatten
from tools.verify.records import NO_FILE, Digests, Finding

REPRO = "run `dvc repro`"


class Entry(NamedTuple):
    """A file or a folder, the MD5 that DVC records of it ("" if none), and the one that was found, or why none was."""

    path: str
    recorded: str
    found: str

    @property
    def is_wrong(self) -> bool:
        return bool(self.recorded) and self.found != self.recorded


class Outputs:
    """What DVC's stages record, and what was found: read once, when this object is made."""

    def __init__(self, repo: Repo, digests: Digests):
        self.repo = repo
        self.digests = digests
        self.outs: dict[str, Output] = {out.fs_path: out for stage in repo.index.stages for out in stage.outs}
        self.entries = {path: Entry(path, recorded_md5(out), self._md5(path)) for path, out in self.outs.items()}
        self.wrong = {path for path, entry in self.entries.items() if entry.is_wrong}

        # The stages that ran, and those of them whose inputs have changed since.
        self.inputs: dict[str, Finding] = {}
        for stage in repo.index.stages:
            if stage.deps and any(self.entries[out.fs_path].recorded for out in stage.outs):
                self.inputs[stage.addressing] = self._check_inputs(stage)
        self.stale = {name for name, finding in self.inputs.items() if finding.advice}

    @property
    def are_all_missing(self) -> bool:
        """Return whether no recorded output of the cache is here, as in a new clone."""
        recorded = [out.fs_path for out in self.outs.values() if out.use_cache and self.entries[out.fs_path].recorded]
        return bool(recorded) and all(self.entries[path].found == NO_FILE for path in recorded)

    def check_stages(self) -> Iterator[Finding]:
        """Report for each stage whether its inputs have changed, and whether its outputs are the recorded ones."""
        for stage in self.repo.index.stages:
            if stage.addressing in self.inputs:
                yield self.inputs[stage.addressing]
            for out in stage.outs:
                yield self._check_output(out)

    def check_cache(self) -> Iterator[Finding]:
        """Check every cache object that dvc.lock or a .dvc file refers to."""
        for path, out in self.outs.items():
            if not self.entries[path].recorded:
                continue
            damaged = [each for each in self._cache_objects(out) if each.is_wrong]
            for each in damaged:
                fault = f"md5 is {each.found}, recorded is {each.recorded}; {shown(path)} needs this file"
                yield Finding(shown(each.path), fault, self._advice(out))
            if not damaged:
                yield Finding(f"cache of {shown(path)}")

    def holding(self, path: Path) -> str | None:
        """Return the output that is or contains a file."""
        absolute = os.path.abspath(path)
        return next((out for out in self.outs if f"{absolute}/".startswith(f"{out}/")), None)

    def make_again(self, path: Path) -> str:
        """Return advice for a file that does not fit what it was made from."""
        out = self.outs.get(self.holding(path) or "")
        if out is None or out.stage.addressing in self.stale:
            return REPRO
        return f"run `dvc repro -fs {out.stage.addressing}`"

    def _check_inputs(self, stage: Stage) -> Finding:
        """Compare the inputs of a stage with those of its last run.

        An output of another stage counts by its recorded hash: if it is damaged, that is reported by itself.
        """
        changed = ["its command"] if getattr(stage, "cmd_changed", False) else []
        remade: list[str] = []  # outputs of other stages
        unseen: list[str] = []  # changed in place, with the size and time that DVC remembers
        for dep in stage.deps:
            if isinstance(dep, ParamsDependency):
                recorded = dep.hash_info.value if dep.hash_info else None
                before = flatten(recorded) if isinstance(recorded, dict) else {}
                now = flatten(dep.read_params())
                changed += [f"{name} {old} → {new}" for name, old, new in differences(before, now)]
                continue
            maker = self.outs.get(dep.fs_path)
            md5 = recorded_md5(maker) if maker else self._md5(dep.fs_path)
            if md5 == recorded_md5(dep):
                continue
            if maker and not maker.stage.is_data_source:
                remade.append(shown(dep.fs_path))
                continue
            changed.append(shown(dep.fs_path))
            if not maker and not dep.status():
                unseen.append(shown(dep.fs_path))

        name = stage.addressing
        if remade:
            return Finding(f"dvc.lock: {name}", f"was made from another {', '.join(remade)}", REPRO)
        if not changed:
            return Finding(f"{name}: {len(stage.deps)} dependencies")
        advice = REPRO
        if unseen:
            touch = f"find {shlex.join(unseen)} -type f -exec touch {{}} +"
            advice = f"DVC does not see it, so run `{touch} && dvc repro`"
        return Finding(name, advice=f"{', '.join(changed)} changed since it ran; {advice}")

    def _check_output(self, out: Output) -> Finding:
        path, recorded, found = entry = self.entries[out.fs_path]
        if not recorded:
            state = "not made yet" if found == NO_FILE else "is not in dvc.lock"
            return Finding(shown(path), advice=f"{state}; {REPRO}")
        if not entry.is_wrong:
            return Finding(shown(path))
        listed = self._listed_files(out)
        if found == NO_FILE:
            fault = "is missing"
        elif listed:
            fault = describe_differences(self._files(path), listed)
        else:
            fault = f"md5 is {found}, recorded is {recorded}"
        return Finding(shown(path), fault, self._advice(out))

    def _advice(self, out: Output) -> str:
        """Return the command that repairs an output and its cache objects, from what is intact of the two."""
        damaged = [each.path for each in self._cache_objects(out) if each.is_wrong]
        stage = out.stage.addressing
        target = shlex.quote(shown(out.fs_path))
        is_wrong = out.fs_path in self.wrong
        hint = ""
        if not is_wrong:
            again = f"dvc repro {stage}" if stage in self.stale else f"dvc commit {stage}"
        elif out.use_cache and not damaged:
            again = f"dvc checkout {target}"
        elif out.use_cache and self.repo.config["core"].get("remote"):
            again = f"dvc pull {target}"
        elif out.stage.is_data_source:
            is_wrong = False  # nothing can make it again, so it is not removed
            hint = "no intact copy is left here; put one of yours in its place, and "
            again = f"dvc add {target}"
        else:
            again = f"dvc repro -s {stage}"

        # DVC keeps a file or an object that exists, so what is damaged goes first.
        unwanted = [out.fs_path, *damaged] if is_wrong else damaged
        existing = [shown(path) for path in unwanted if os.path.lexists(path)]
        removal = f"{shlex.join(['rm', '-rf', *existing])} && " if existing else ""
        return f"{hint}run `{removal}{again}`"

    def _md5(self, path: str) -> str:
        """Return DVC's hash of a file or a folder."""
        return hash_of_folder(self._files(path)) if os.path.isdir(path) else self.digests.of(Path(path)).md5

    def _files(self, folder: str) -> dict[str, str]:
        """Return the MD5 of each file of a folder by its name there; {} for a file."""
        files = {}
        for path in self.repo.dvcignore.find(self.repo.fs, folder):
            name = Path(os.path.relpath(path, folder)).as_posix()
            files[name] = self.digests.of(Path(shown(path))).md5
        return files

    def _listed_files(self, out: Output) -> dict[str, str]:
        """Return the recorded MD5 of each file of a folder; {} for a file or if the list in the cache is damaged."""
        md5 = recorded_md5(out)
        path = Path(out.cache.oid_to_path(md5))
        if not md5.endswith(".dir") or self.digests.of(path).md5 != md5.removesuffix(".dir"):
            return {}
        return {entry["relpath"]: entry["md5"] for entry in json.loads(path.read_bytes())}

    def _cache_objects(self, out: Output) -> list[Entry]:
        """Return the objects that DVC's cache should have of an output: a file, or a list of files and the files.

        A file that Git tracks, only the run cache has, which may drop it.
        """
        objects = []
        for md5 in {recorded_md5(out), *self._listed_files(out).values()}:
            path = out.cache.oid_to_path(md5)
            found = self.digests.of(Path(path)).md5
            if out.use_cache or found != NO_FILE:
                objects.append(Entry(path, md5.removesuffix(".dir"), found))
        return sorted(objects)


def recorded_md5(out: Output | Dependency) -> str:
    """Return the recorded hash of an output or a dependency, "" if there is none."""
    return (out.hash_info.value or "") if out.hash_info else ""


def shown(path: str) -> str:
    """Return a path, relative or absolute, whichever is shorter."""
    return min(path, os.path.relpath(path), key=len)


def describe_differences(files: dict[str, str], listed: dict[str, str]) -> str:
    """Say which files of a folder differ from the recorded list; both map a name to its MD5."""
    found = []
    for name, recorded, now in differences(listed, files):
        if now == MISSING:
            found.append(f"{name} is missing")
        elif recorded == MISSING:
            found.append(f"{name} is new")
        else:
            found.append(f"{name} is changed")
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more
