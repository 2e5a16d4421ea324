"""PyTorch's C++ and CUDA headers: real code of a pinned version of torch.

They are read from the installed torch if it has that version, else from a wheel, so that an upgrade keeps the text. The
subset is the same in the wheels of all platforms; a SHA-256 in sources.yaml checks this. Documents are ordered by the
hash of their content and split by lm.text.splits. The licence is BSD-3; nothing is redistributed.
"""

import hashlib
import importlib.metadata
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from lm.core.errors import DataError, EnvironmentFailure, IntegrityError
from lm.text.config import TorchHeadersFetch
from lm.text.parquet import describe_split, write_documents
from lm.text.splits import choose_split, text_sha256

SUFFIXES = (".h", ".hpp", ".cuh")
FOLDERS = (
    "c10/core/",
    "c10/util/",
    "ATen/core/",
    "ATen/cpu/",
    "ATen/functorch/",
    "ATen/native/",
    "torch/csrc/",
    "torch/headeronly/",
)
GENERATED_NAME = re.compile(r"/generated/|^ATen/native/metal/|/TensorBody\.h$|_generated\.h$")  # differ between wheels
GENERATED_HEAD_CHARS = 3000
IN_WHEEL = re.compile(r"^(?:[^/]+\.data/(?:pure|plat)lib/)?torch/include/(.+)$")
REMEDY = "reinstall torch with `rm -rf .venv && make`, or name another wheel in sources.torch_headers.fetch.wheel"


def fetch_torch_headers(fetch: TorchHeadersFetch, folder: Path) -> dict:
    """Write the headers, a folder for each split, and return the manifest; torch is not imported."""
    headers = read_headers(_include_files(fetch.torch_version, fetch.wheel))
    actual = hashlib.sha256("".join(f"{name}\0{text}\0" for name, text in headers).encode()).hexdigest()
    if actual != fetch.sha256:
        needed = f"sources.torch_headers.fetch.sha256 is {fetch.sha256}; {REMEDY}"
        raise IntegrityError(f"headers of torch {fetch.torch_version}: sha256 is {actual}, {needed}")
    texts = sorted((text for _, text in headers), key=text_sha256)
    split = choose_split(texts, fetch.split)
    if split is None:
        remedy = "raise sources.torch_headers.fetch.split.near_duplicates.threshold"
        raise DataError(f"headers of torch {fetch.torch_version}: near-duplicates of each other; {remedy}")
    for name in split.names:
        own = [text for text in texts if split.name_of(text) == name]
        write_documents(folder / name / "0000.parquet", own)
    origin = {"kind": fetch.kind, "package": f"torch=={fetch.torch_version}", "licence": "BSD-3-Clause"}
    splits = {name: describe_split(folder, name, "text") for name in split.names}
    return {**origin, "sha256": fetch.sha256, "column": "text", "splits": splits}


def _include_files(version: str, wheel: str | None) -> dict[str, bytes]:
    """Return path → content of the headers of torch `version`: installed, in `wheel`, or downloaded by pip."""
    include = _include_folder(version)
    if include:
        names = [path.relative_to(include).as_posix() for path in include.rglob("*.*")]
        return {name: (include / name).read_bytes() for name in _wanted(names)}
    if wheel:
        return _read_wheel(Path(wheel))
    with tempfile.TemporaryDirectory() as folder:
        return _read_wheel(_download_wheel(version, Path(folder)))


def _include_folder(version: str) -> Path | None:
    """Return the folder of headers of the installed torch, or None if it has another version; +suffixes are ignored."""
    try:
        torch = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    return Path(str(torch.locate_file("torch"))) / "include" if torch.version.split("+")[0] == version else None


def _download_wheel(version: str, folder: Path) -> Path:
    """Download a wheel of torch with pip, which shows progress. Raise EnvironmentFailure if it cannot."""
    print(f"torch {version} is not installed; pip downloads it to read its headers", file=sys.stderr)
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", f"--dest={folder}"]
    if subprocess.run([*pip, f"torch=={version}"], stdout=sys.stderr).returncode:
        problem = f"torch {version}, whose headers are the text, is not installed, and pip cannot download it"
        remedy = "name a wheel of it, for any platform, in sources.torch_headers.fetch.wheel"
        raise EnvironmentFailure(f"{problem} (its message is above); {remedy}")
    return next(folder.glob("*.whl"))


def _read_wheel(path: Path) -> dict[str, bytes]:
    """Return path → content of the headers in a wheel. Raise DataError if it cannot be read."""
    try:
        with zipfile.ZipFile(path) as wheel:
            inside = {match[1]: match[0] for match in map(IN_WHEEL.match, wheel.namelist()) if match}
            return {name: wheel.read(inside[name]) for name in _wanted(inside)}
    except (OSError, zipfile.BadZipFile, zlib.error) as error:
        where = f"sources.torch_headers.fetch.wheel: {path}"
        raise DataError(f"{where} is not a whole wheel ({error}); name a wheel of torch") from None


def _wanted(names: Iterable[str]) -> list[str]:
    """Return the paths of hand-written headers in order."""
    wanted = (name for name in names if name.startswith(FOLDERS) and name.endswith(SUFFIXES))
    return sorted(name for name in wanted if not GENERATED_NAME.search(name))


def read_headers(files: dict[str, bytes]) -> list[tuple[str, str]]:
    """Return (path, text) of the hand-written headers in path order; each text once, with LF line ends."""
    seen = set()
    headers = []
    for name in _wanted(files):
        text = files[name].decode("utf-8").replace("\r\n", "\n")
        if text and text not in seen and "@generated" not in text[:GENERATED_HEAD_CHARS]:
            seen.add(text)
            headers.append((name, text))
    return headers
