"""Check the outputs that DVC records, in the workspace and in DVC's cache, byte by byte.

`dvc status` and `dvc data status` hash a file again only if its time, size or inode has changed, and a cache object
never, so that `dvc checkout` restores a damaged object. Here every byte is read, once for all checks. The hashes are
DVC's: the MD5 of a file, and for a folder the MD5 of the list of its files.
"""

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from dvc.dependency import Dependency, ParamsDependency
from dvc.output import Output
from dvc.repo import Repo
from dvc.stage import Stage

from tools.common.lock import hash_of_folder
from tools.verify.records import Digests, Finding

REPRO = "run `dvc repro`"


def recorded_hash(out: Output | Dependency) -> str:
    """Return the recorded hash of an output or a dependency, "" if there is none."""
    return (out.hash_info.value or "") if out.hash_info else ""


def shown(path: str) -> str:
    """Return a path, relative or absolute, whichever is shorter."""
    return min(path, os.path.relpath(path), key=len)


def changed_parameters(dep: ParamsDependency) -> list[str]:
    """Return what has changed in a file of parameters: its entries, or the whole file if it is new."""
    status = dep.workspace_status().get(str(dep), {})
    if isinstance(status, dict):
        return [f"{name} in {dep}" for name in status]
    return [str(dep)]


def files_that_differ(files: dict[str, str], listed: dict[str, str]) -> str:
    """Say which files of a folder differ from the recorded list; both map a name to its MD5."""
    differences = []
    for name in sorted(files | listed):
        if name not in files:
            differences.append(f"{name} is missing")
        elif name not in listed:
            differences.append(f"{name} is new")
        elif files[name] != listed[name]:
            differences.append(f"{name} is changed")
    more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    return ", ".join(differences[:3]) + more


class Outputs:
    """Check what a repository's stages record; `check_stages` fills `wrong` (outputs) and `stale` (stages)."""

    def __init__(self, repo: Repo, digests: Digests):
        self.repo = repo
        self.digests = digests
        self.stages = repo.index.stages
        self.outs: dict[str, Output] = {out.fs_path: out for stage in self.stages for out in stage.outs}
        self.wrong: set[str] = set()  # outputs that differ from dvc.lock
        self.stale: set[str] = set()  # stages whose inputs have changed since they ran

    def check_stages(self) -> Iterator[Finding]:
        """Check for each stage whether its inputs have changed and whether its outputs are the recorded ones."""
        for stage in self.stages:
            if stage.deps and any(out.hash_info for out in stage.outs):
                yield self._check_inputs(stage)
            yield from map(self._check_output, stage.outs)

    def check_cache(self) -> Iterator[Finding]:
        """Check every cache object that dvc.lock or a .dvc file refers to; count the others."""
        known = set()
        for out in filter(recorded_hash, self.outs.values()):
            objects = self._objects(out)
            if not out.use_cache:  # only DVC's run cache keeps it, and may drop it
                objects = {path: md5 for path, md5 in objects.items() if os.path.exists(path)}
            known |= objects.keys()
            damaged = self._damaged(objects)
            for path, md5 in damaged.items():
                fault = f"md5 is {md5}; {shown(out.fs_path)} needs this file"
                yield Finding(shown(path), fault, advice=self._restore_object(out, path))
            if objects and not damaged:
                yield Finding(f"cache of {shown(out.fs_path)}")
        others = [path for path in Path(self.repo.cache.local.path).glob("??/*") if str(path) not in known]
        if others:
            yield Finding("cache", advice=f"{len(others)} objects of other runs are not checked")

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
        """Report inputs that are not the recorded outputs of other stages; note what else changed since it ran."""
        name = stage.addressing
        other_outputs: list[str] = []  # inputs that are outputs of other stages, but not those that this stage read
        changed: list[str] = ["its command"] if getattr(stage, "cmd_changed", False) else []
        unseen: list[str] = []  # changed in place, with the size and time that DVC remembers
        for dep in stage.deps:
            if isinstance(dep, ParamsDependency):
                changed += changed_parameters(dep)
                continue
            path = shown(dep.fs_path)
            maker = self.outs.get(dep.fs_path)
            # A damaged output of another stage is reported by itself, so its recorded hash counts here.
            md5 = recorded_hash(maker) if maker else self._hash(dep.fs_path)
            if md5 == recorded_hash(dep):
                continue
            if maker and not maker.stage.is_data_source:
                other_outputs.append(path)
                continue
            changed.append(path)
            if not maker and not dep.status():
                unseen.append(path)

        if other_outputs or changed:
            self.stale.add(name)
        if other_outputs:
            return Finding(f"dvc.lock: {name}", f"was made from another {', '.join(other_outputs)}", REPRO)
        if unseen:
            touch = f"find {shlex.join(unseen)} -type f -exec touch {{}} +"
            advice = f"DVC does not see it, so run `{touch} && dvc repro`"
            return Finding(name, advice=f"{', '.join(changed)} changed since it ran; {advice}")
        if changed:
            return Finding(name, advice=f"{', '.join(changed)} changed since it ran; {REPRO}")
        return Finding(f"{name}: {len(stage.deps)} dependencies")

    def _check_output(self, out: Output) -> Finding:
        """Compare an output with the recorded hash; note one that is not recorded."""
        name = shown(out.fs_path)
        recorded = recorded_hash(out)
        exists = os.path.lexists(out.fs_path)
        if not recorded:
            return Finding(name, advice=f"{'is not in dvc.lock' if exists else 'not made yet'}; {REPRO}")
        md5 = self._hash(out.fs_path) if exists else None
        if md5 == recorded:
            return Finding(name)
        self.wrong.add(out.fs_path)
        if not exists:
            return Finding(name, "is missing", self._restore(out))
        listed = self._listed_files(out)
        if not listed:
            return Finding(name, f"md5 is {md5}, recorded is {recorded}", self._restore(out))
        return Finding(name, files_that_differ(self._files(out.fs_path), listed), self._restore(out))

    def _hash(self, path: str) -> str:
        """Return DVC's hash of a file or folder."""
        return hash_of_folder(self._files(path)) if os.path.isdir(path) else self.digests.of(Path(path)).md5

    def _files(self, folder: str) -> dict[str, str]:
        """Return the MD5 of each file of a folder by its name there; {} for a file."""
        files = {}
        for path in self.repo.dvcignore.find(self.repo.fs, folder) if os.path.isdir(folder) else ():
            name = Path(os.path.relpath(path, folder)).as_posix()
            files[name] = self.digests.of(Path(shown(path))).md5
        return files

    def _listed_files(self, out: Output) -> dict[str, str]:
        """Return the recorded MD5 of each file of a folder; {} for a file or if the list in the cache is damaged."""
        md5 = recorded_hash(out)
        path = Path(out.cache.oid_to_path(md5))
        if not md5.endswith(".dir") or self.digests.of(path).md5 != md5.removesuffix(".dir"):
            return {}
        return {entry["relpath"]: entry["md5"] for entry in json.loads(path.read_bytes())}

    def _objects(self, out: Output) -> dict[str, str]:
        """Return the path and the MD5 of every known cache object of an output: a file, or a list and its files."""
        hashes = [recorded_hash(out), *self._listed_files(out).values()]
        return {out.cache.oid_to_path(md5): md5.removesuffix(".dir") for md5 in hashes}

    def _damaged(self, objects: dict[str, str]) -> dict[str, str]:
        """Return {path: present MD5} of the objects that are missing or have another MD5 than the recorded one."""
        present = {path: self.digests.of(Path(path)).md5 for path in objects}
        return {path: md5 for path, md5 in present.items() if md5 != objects[path]}

    def _restore(self, out: Output) -> str:
        """Return the command that restores an output: from an intact cache, else a remote, else by its stage."""
        damaged = self._damaged(self._objects(out))
        unwanted = [shown(path) for path in damaged if os.path.lexists(path)]
        target = shlex.quote(shown(out.fs_path))
        stage = out.stage.addressing
        if out.use_cache and not damaged:
            again = f"dvc checkout {target}"
        elif out.use_cache and self.repo.config["core"].get("remote"):
            again = f"dvc pull {target}"
        elif out.stage.is_data_source:
            removal = f"{shlex.join(['rm', '-f', *unwanted])} && " if unwanted else ""
            return f"no intact copy is left here; put one of yours in its place, and run `{removal}dvc add {target}`"
        elif damaged:
            again = f"dvc repro -fs {stage}"
        else:
            again = f"dvc repro -s {stage}"

        # DVC keeps a file or an object that exists, so what is damaged goes first.
        if os.path.lexists(out.fs_path):
            unwanted.insert(0, shown(out.fs_path))
        removal = f"{shlex.join(['rm', '-rf', *unwanted])} && " if unwanted else ""
        return f"run `{removal}{again}`"

    def _restore_object(self, out: Output, path: str) -> str:
        """Return the command that repairs a cache object, from the workspace if the output there is intact."""
        if out.fs_path in self.wrong:
            return self._restore(out)
        removal = shlex.join(["rm", "-f", shown(path)])
        if not out.use_cache:
            return f"run `{removal}`"
        again = "repro" if out.stage.addressing in self.stale else "commit"
        return f"run `{removal} && dvc {again} {out.stage.addressing}`"
