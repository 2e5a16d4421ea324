"""PyTorch's C++ and CUDA headers: real code that the pinned torch wheel installs on every machine.

The subset is the same in all wheels of a version; a SHA-256 in presets.yaml checks that. Documents are ordered by the
hash of their content, so that all character ranges are alike, and split as lm.text.splits says. The licence is BSD-3;
nothing is redistributed.
"""

import dataclasses
import hashlib
import importlib.metadata
import re
from pathlib import Path
from typing import Literal

from lm.core.errors import DataError, EnvironmentFailure, IntegrityError
from lm.text.parquet import describe_split, write_documents
from lm.text.splits import SplitParams, choose_validation, digest, in_batches

SPLITS = ("train", "validation")
SUFFIXES = (".h", ".hpp", ".cuh")
FOLDERS = (
    "c10/core/", "c10/util/", "ATen/core/", "ATen/cpu/", "ATen/functorch/", "ATen/native/",
    "torch/csrc/", "torch/headeronly/",
)  # fmt: skip
GENERATED_NAME = re.compile(r"/generated/|^ATen/native/metal/|/TensorBody\.h$|_generated\.h$")  # differ between wheels
GENERATED_HEAD_CHARS = 3000


@dataclasses.dataclass(frozen=True)
class TorchHeadersFetch:
    """The version of torch, the SHA-256 over path\\0text\\0 of its headers in path order, and the split."""

    kind: Literal["torch_headers"]
    torch_version: str
    sha256: str
    split: SplitParams


def fetch_torch_headers(fetch: TorchHeadersFetch, folder: Path) -> dict:
    """Write the headers as train and validation and return the manifest; torch is not imported."""
    headers = read_headers(_include_folder(fetch.torch_version))
    actual = hashlib.sha256("".join(f"{name}\0{text}\0" for name, text in headers).encode()).hexdigest()
    if actual != fetch.sha256:
        needed = f"sources.torch_headers.fetch.sha256 is {fetch.sha256}; reinstall torch with `make clean-venv && make`"
        raise IntegrityError(f"headers of torch {fetch.torch_version}: sha256 is {actual}, {needed}")
    texts = sorted((text for _, text in headers), key=digest)
    split = choose_validation(in_batches(texts), fetch.split)
    if split is None:
        raise DataError(f"headers of torch {fetch.torch_version}: near-duplicates of each other; raise split.threshold")
    for name in SPLITS:
        own = (text for text in texts if (digest(text) in split.digests) == (name == "validation"))
        write_documents(folder / name / "0000.parquet", own)
    origin = {"kind": fetch.kind, "package": f"torch=={fetch.torch_version}", "licence": "BSD-3-Clause"}
    splits = {name: describe_split(folder, name, "text") for name in SPLITS}
    return {**origin, "sha256": fetch.sha256, "column": "text", "splits": splits}


def _include_folder(version: str) -> Path:
    """Return the folder of headers of the installed torch, whose version must be `version`; a +suffix is ignored."""
    try:
        torch = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        raise EnvironmentFailure(f"torch is not installed, needed: {version}; run `make`") from None
    if torch.version.split("+")[0] != version:
        raise EnvironmentFailure(f"torch {torch.version} is installed, needed: {version}; run `make`")
    return Path(str(torch.locate_file("torch"))) / "include"


def read_headers(include: Path) -> list[tuple[str, str]]:
    """Return (path, text) of the hand-written headers in path order; each text once, with LF line ends."""
    seen, headers = set(), []
    for name in sorted(path.relative_to(include).as_posix() for path in include.rglob("*.*")):
        if not name.startswith(FOLDERS) or not name.endswith(SUFFIXES) or GENERATED_NAME.search(name):
            continue
        text = (include / name).read_bytes().decode("utf-8").replace("\r\n", "\n")
        if text and text not in seen and "@generated" not in text[:GENERATED_HEAD_CHARS]:
            seen.add(text)
            headers.append((name, text))
    return headers
