"""What a power cut can leave of a list of file operations.

The model promises no more than POSIX. The bytes of a file are safe after its fsync; before, they are absent, torn,
zeros or whole. A name (created, linked, renamed, removed) is safe after an fsync of its folder; before, any of the
waiting changes may be missing. A rename is there or not, never half.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath

from shim import Operation
from small_stages import Tree, is_lock

ALL_SUBSETS = 4  # waiting changes of names of which every subset is tried
DAMAGES = ("absent", "torn", "zeros")


class Inode:
    """A file, with its bytes now and those that are safe; or a folder, with its names now and those that are safe."""

    def __init__(self, is_folder: bool, content: bytes = b""):
        self.is_folder = is_folder
        self.content = bytearray(content)
        self.safe_content = bytes(content)
        self.names: dict[str, Inode] = {}
        self.safe_names: dict[str, Inode] = {}

    def after_cut(self, damage: str) -> bytes:
        """Return the bytes that a power cut leaves if those since the last fsync are damaged."""
        kept = self.safe_content if self.content.startswith(self.safe_content) else b""
        rest = bytes(self.content[len(kept) :])
        match damage:
            case "absent":
                return self.safe_content
            case "torn":
                return kept + rest[: len(rest) // 2]
            case "zeros":
                return kept + bytes(len(rest))
        return bytes(self.content)


Change = list[tuple[Inode, str, Inode | None]]  # (folder, name, what it is then), together or not at all


class Disk:
    """A disk on which operations happen one by one, and what a power cut would leave at each moment."""

    def __init__(self, tree: Tree):
        self.root = Inode(is_folder=True)
        self.waiting: list[Change] = []
        self.files: list[Inode] = []
        self.published: dict[str, set[bytes | None]] = {}  # the whole contents that each path has had
        for name, content in tree.items():
            folder, last = self._find_parent(name)
            inode = Inode(content is None, content or b"")
            folder.names[last] = inode
            folder.safe_names[last] = inode
            self.files.append(inode)
            self.published[name] = {content}

    def _find(self, path: str) -> Inode:
        inode = self.root
        for name in PurePosixPath(path).parts:
            inode = inode.names[name]
        return inode

    def _find_parent(self, path: str) -> tuple[Inode, str]:
        place = PurePosixPath(path)
        return self._find(str(place.parent)), place.name

    def _change(self, *changes: tuple[str, Inode | None]) -> None:
        """Change names together; the change waits for an fsync."""
        change = []
        for path, inode in changes:
            folder, name = self._find_parent(path)
            change.append((folder, name, inode))
        _apply(change, current_names)
        self.waiting.append(change)

    def apply(self, operation: Operation) -> None:
        """Do what an operation of a log did."""
        call, path, other, number, data = operation
        match call:
            case "open":
                folder, name = self._find_parent(path)
                if name not in folder.names:
                    self.files.append(Inode(is_folder=False))
                    self._change((path, self.files[-1]))
                elif number:
                    folder.names[name].content.clear()
            case "write":
                self._find(path).content[number : number + len(data)] = data
            case "truncate":
                del self._find(path).content[number:]
            case "fsync":
                self._sync(self._find(path))
            case "rename":
                moved = self._find(path)
                self._change((path, None), (other, moved))
                for name, content in _walk(moved, other, current_names, {}):
                    self.published.setdefault(name, set()).add(content)
            case "link":
                self._change((other, self._find(path)))
                self.published.setdefault(other, set()).add(bytes(self._find(path).content))
            case "unlink":
                self._change((path, None))
            case "mkdir":
                self._change((path, Inode(is_folder=True)))

    def _sync(self, inode: Inode) -> None:
        """Make the bytes of a file safe, or the waiting changes of names in a folder."""
        if not inode.is_folder:
            inode.safe_content = bytes(inode.content)
            return
        waiting = []
        for change in self.waiting:
            if any(folder is inode for folder, _, _ in change):
                _apply(change, safe_names)
            else:
                waiting.append(change)
        self.waiting = waiting

    def after_cut(self) -> Iterator[Tree]:
        """Yield what a power cut at this moment can leave; the same tree may come several times."""
        # Damage none of the unsafe files, all of them in each way, and each one alone.
        unsafe = [inode for inode in self.files if inode.content != inode.safe_content]
        damages: list[dict[int, str]] = [{}]
        damages += [{id(inode): damage for inode in unsafe} for damage in DAMAGES]
        if len(unsafe) > 1:
            damages += [{id(inode): damage} for inode in unsafe for damage in DAMAGES]

        for chosen in _choices(len(self.waiting)):
            names = NamesAfterCut()
            for number in chosen:
                _apply(self.waiting[number], names)
            for damaged in damages:
                yield dict(_walk(self.root, "", names, damaged))


def current_names(folder: Inode) -> dict[str, Inode]:
    return folder.names


def safe_names(folder: Inode) -> dict[str, Inode]:
    return folder.safe_names


class NamesAfterCut:
    """The names of each folder, called with it: those that are safe, in a copy, to which changes can be added."""

    def __init__(self):
        self.of: dict[int, dict[str, Inode]] = {}

    def __call__(self, folder: Inode) -> dict[str, Inode]:
        return self.of.setdefault(id(folder), dict(folder.safe_names))


NamesOf = Callable[[Inode], dict[str, Inode]]


def _apply(change: Change, names_of: NamesOf) -> None:
    """Write, move or remove names."""
    for folder, name, inode in change:
        if inode is None:
            names_of(folder).pop(name, None)
        else:
            names_of(folder)[name] = inode


def _walk(inode: Inode, path: str, names_of: NamesOf, damaged: dict[int, str]) -> Iterator[tuple[str, bytes | None]]:
    """Yield the paths below an inode, with the bytes of files."""
    if not inode.is_folder:
        yield path, inode.after_cut(damaged.get(id(inode), "whole"))
        return
    if path:
        yield path, None
    for name, child in names_of(inode).items():
        yield from _walk(child, f"{path}/{name}" if path else name, names_of, damaged)


def _choices(number: int) -> Iterator[Sequence[int]]:
    """Yield which of `number` waiting changes have reached the disk: all subsets of few, else the extremes."""
    everything = range(number)
    if number <= ALL_SUBSETS:
        for size in range(number + 1):
            yield from itertools.combinations(everything, size)
        return
    for last in everything:
        yield range(last + 1)  # in the order of the calls
        yield [last]
        yield [i for i in everything if i != last]
    yield []


def joined(operations: Sequence[Operation]) -> list[Operation]:
    """Return the operations without those on locks, where writes that continue each other are one."""
    result: list[Operation] = []
    for operation in operations:
        if is_lock(operation.path):
            continue
        if result and continues(result[-1], operation):
            before = result[-1]
            result[-1] = before._replace(data=before.data + operation.data)
        else:
            result.append(operation)
    return result


def continues(before: Operation, operation: Operation) -> bool:
    """Return whether an operation writes where the one before has ended."""
    if not before.call == operation.call == "write":
        return False
    end = before.number + len(before.data)
    return operation.path == before.path and operation.number == end


def temporary_part(path: str) -> str:
    """Return a path up to its first temporary name, which the next writer removes; "" if it has none."""
    parts = PurePosixPath(path).parts
    for number, name in enumerate(parts, 1):
        if name.startswith(".") and name.endswith(".tmp"):
            return "/".join(parts[:number])
    return ""
