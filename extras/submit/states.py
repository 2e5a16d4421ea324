"""States of unfinished training runs in the DVC remote, from which another machine resumes an experiment."""

import contextlib
from pathlib import Path

from dvc.repo import Repo


class SavedStates:
    """A copy of an experiment's `.runs` in the folder submit/ of the default DVC remote."""

    def __init__(self, repository: Path, name: str):
        """Use the remote of a repository. A run finds its states by fingerprint, so one name may serve several runs."""
        with Repo(str(repository)) as repo:
            remote = repo.cloud.get_remote()
        self.fs, self.root = remote.fs, remote.fs.join(remote.path, "submit", name)
        self._sent: dict[str, tuple[int, int]] = {}  # file → time of change in ns, bytes

    def save(self, runs: Path) -> None:
        """Copy new files to the remote, a state before its record, and delete there what is gone here."""
        files = sorted((p for p in runs.rglob("[!.]*") if p.is_file()), key=lambda p: (p.suffix == ".json", p))
        present = {}
        for path in files:
            with contextlib.suppress(FileNotFoundError):  # training deletes old states meanwhile
                name, stat = path.relative_to(runs).as_posix(), path.stat()
                present[name] = stat.st_mtime_ns, stat.st_size
                if present[name] != self._sent.get(name):
                    self.fs.makedirs(self.fs.parent(self._there(name)), exist_ok=True)
                    self.fs.put_file(str(path), self._there(name))
        for name in self._sent.keys() - present.keys():
            self.fs.remove(self._there(name))
        self._sent = present

    def restore(self, runs: Path) -> None:
        """Copy what the remote has into `runs`, in which training finds it."""
        for there in self.fs.find(self.root) if self.fs.exists(self.root) else []:
            path = runs.joinpath(*self.fs.relparts(there, self.root))
            path.parent.mkdir(parents=True, exist_ok=True)
            self.fs.get_file(there, str(path))
            name, stat = path.relative_to(runs).as_posix(), path.stat()
            self._sent[name] = stat.st_mtime_ns, stat.st_size

    def delete(self) -> None:
        """Delete the copy."""
        if self.fs.exists(self.root):
            self.fs.remove(list(self.fs.find(self.root)))

    def _there(self, name: str) -> str:
        return self.fs.join(self.root, *name.split("/"))
