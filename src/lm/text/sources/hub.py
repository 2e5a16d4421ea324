"""Download files of a Hugging Face repository at one commit: resumed, verified and cached.

The files of a commit never change, so a file in the Hugging Face cache is used without a network call. A missing file
is downloaded over plain HTTP (Xet hangs for minutes if it is announced but out of reach), under its digest.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from io import BufferedRandom, BufferedReader
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, TypeVar

import httpx2
import huggingface_hub as hf
from huggingface_hub import constants, errors
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, tqdm

from lm.core.errors import EnvironmentFailure, IntegrityError
from lm.core.params import needed
from lm.text.parquet import describe_split, open_parquet

T = TypeVar("T")
RepoType = Literal["dataset", "model"]

RETRY_WAITS_S = (1, 2, 4)
RETRIED_STATUS = (408, 429, 500, 502, 503, 504)


@dataclasses.dataclass(frozen=True)
class HubFetch:
    """The parquet files of each split in a dataset repository at `revision` (a commit, branch or tag)."""

    kind: Literal["hub"]
    repo: str
    revision: str
    files: dict[str, tuple[str, ...]]
    column: str

    def __post_init__(self):
        check_repository(self.repo, self.revision)
        check_splits("files", self.files)
        for split, paths in self.files.items():
            are_unique = 0 < len(paths) == len(set(paths))
            needed(are_unique, f"files.{split}", list(paths), "at least one path, none twice")
            for path in paths:
                is_inside = path == str(PurePosixPath("/", path))[1:] and ".." not in PurePosixPath(path).parts
                needed(is_inside, f"files.{split}", repr(path), "a path inside the repository")
                needed(path.endswith(".parquet"), f"files.{split}", repr(path), ".parquet, or kind: datasets")


def check_repository(repo: str, revision: str) -> None:
    """Raise ValueError if `repo` is not owner/name or `revision` is empty."""
    is_name = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repo) and "--" not in repo and ".." not in repo
    needed(is_name, "repo", repr(repo), "owner/name")
    needed(revision.strip(), "revision", "empty", "a 40-digit commit, or a branch or tag")


def check_splits(key: str, splits: Iterable[str]) -> None:
    """Raise ValueError if there is no split or a name is not usable for a folder."""
    are_names = splits and all(re.fullmatch(r"\w[\w-]*", split) for split in splits)
    needed(are_names, f"{key}", list(splits), "at least one split, named with letters and digits")


def fetch_hub(fetch: HubFetch, folder: Path) -> dict:
    """Copy the files into folder/<split> in the listed order, unchanged, and return the manifest."""
    commit = resolve_commit(fetch.repo, fetch.revision, "dataset")
    names = {split: [f"{fetch.repo}: {path}" for path in paths] for split, paths in fetch.files.items()}
    for split, paths in fetch.files.items():
        (folder / split).mkdir()
        for index, path in enumerate(paths):
            cached = download(fetch.repo, commit, path, "dataset")
            open_parquet(cached, fetch.column, names[split][index])  # fail before the next download
            shutil.copyfile(cached, folder / split / f"{index:04d}-{PurePosixPath(path).name}")
    origin = {"kind": fetch.kind, "repo": fetch.repo, "revision": fetch.revision, "commit": commit}
    splits = {split: describe_split(folder, split, fetch.column, names[split]) for split in fetch.files}
    return {**origin, "column": fetch.column, "splits": splits}


def resolve_commit(repo: str, revision: str, repo_type: RepoType) -> str:
    """Return the commit of a revision; ask the hub unless it is one. Raise EnvironmentFailure if the hub fails."""
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    asked = {"repo_type": repo_type, "revision": revision, "timeout": constants.HF_HUB_ETAG_TIMEOUT}
    with explained(repo, repo_type, f"revision {revision!r}"):
        return str(patiently(lambda: hf.HfApi().repo_info(repo, **asked)).sha)


def download(repo: str, commit: str, filename: str, repo_type: RepoType) -> Path:
    """Return the path of a file in the Hugging Face cache, verified by its digest; download it if it is not there."""
    with explained(repo, repo_type, f"{filename} at commit {commit}"):
        cached = hf.try_to_load_from_cache(repo, filename, revision=commit, repo_type=repo_type)
        if not isinstance(cached, str):
            _receive_into_cache(repo, commit, filename, repo_type)
            cached = hf.hf_hub_download(repo, filename, revision=commit, repo_type=repo_type)
    blob = Path(cached).resolve()  # its name is the digest, if the cache has symbolic links
    with open(blob, "rb") as file:
        _verify(file, blob.name, f"{repo}: {filename} in the cache (delete {blob} and run again)")
    return Path(cached)


def _receive_into_cache(repo: str, commit: str, filename: str, repo_type: RepoType) -> None:
    """Download a file to blobs/<digest>, where hf_hub_download looks; a partial file stays there for the next run."""
    url = hf.hf_hub_url(repo, filename, repo_type=repo_type, revision=commit)
    metadata = patiently(lambda: hf.get_hf_file_metadata(url))
    if not metadata.etag or metadata.size is None:
        return  # cannot be resumed: hf_hub_download downloads it or reports the error
    name = f"{repo}: {filename}"
    blobs = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repo, repo_type=repo_type), "blobs")
    blobs.mkdir(parents=True, exist_ok=True)
    with open(blobs / f"{metadata.etag}.incomplete", "a+b") as partial:
        fcntl.flock(partial, fcntl.LOCK_EX)
        if (blobs / metadata.etag).exists():
            return  # another process, or another commit with the same bytes, was first
        _receive(url, partial, metadata.size, name)
        try:
            _verify(partial, metadata.etag, f"{name} as received from {constants.ENDPOINT} (run again)")
        except IntegrityError:
            partial.truncate(0)
            raise
        os.replace(partial.name, blobs / metadata.etag)


def _receive(url: str, partial: BinaryIO, num_bytes: int, name: str) -> None:
    """Append the missing bytes of `num_bytes` to `partial`; show progress on a terminal."""
    start = partial.seek(0, os.SEEK_END)
    free_bytes = shutil.disk_usage(partial.name).free
    if free_bytes < num_bytes - start:
        found = f"{num_bytes - start} bytes are missing, {free_bytes} are free at {constants.HF_HUB_CACHE}"
        raise EnvironmentFailure(f"{name}: {found}; free some space, or set HF_HOME to another disk")
    with tqdm(total=num_bytes, initial=start, desc=name, unit="B", unit_scale=True, disable=None) as bar:
        try:
            patiently(lambda: _receive_rest(url, partial, num_bytes, bar), progress=partial.tell)
        except httpx2.TransportError as error:
            problem = f"then {constants.ENDPOINT} was lost ({_reason(error)}); run again to continue from there"
            raise EnvironmentFailure(f"{name}: received {partial.tell()} of {num_bytes} bytes, {problem}") from None


def _receive_rest(url: str, partial: BinaryIO, num_bytes: int, bar: tqdm) -> None:
    """Make one request for the bytes after the end of `partial`. Raise TransportError if it ends early."""
    start = partial.tell()
    if start >= num_bytes:
        return
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}  # httpx2 sends the token to the hub only
    headers |= {"Range": f"bytes={start}-"} if start else {}
    with hf.get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response:
        hf_raise_for_status(response)
        if start and response.status_code != httpx2.codes.PARTIAL_CONTENT:
            partial.truncate(partial.seek(0))
            bar.reset()
        for chunk in response.iter_bytes():
            bar.update(partial.write(chunk))
    if partial.tell() < num_bytes:
        raise httpx2.RemoteProtocolError("the answer ended early")


def patiently(call: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
    """Return call(); repeat it after each of RETRY_WAITS_S if the hub fails, from the first if `progress()` grew."""
    waits_s, before = list(RETRY_WAITS_S), progress()
    while True:
        try:
            return call()
        except (httpx2.TransportError, errors.HfHubHTTPError) as error:
            if isinstance(error, errors.HfHubHTTPError) and error.response.status_code not in RETRIED_STATUS:
                raise
            if progress() > before:
                waits_s, before = list(RETRY_WAITS_S), progress()
            if not waits_s:
                raise
            time.sleep(waits_s.pop(0))


def _verify(file: BufferedRandom | BufferedReader, etag: str, name: str) -> None:
    """Raise IntegrityError if the file does not have the digest in its ETag; other ETags are ignored."""
    header = b"blob %d\0" % file.seek(0, os.SEEK_END)
    file.seek(0)
    if re.fullmatch(r"[0-9a-f]{64}", etag):
        digest = hashlib.file_digest(file, "sha256")
    elif re.fullmatch(r"[0-9a-f]{40}", etag):
        digest = hashlib.file_digest(file, lambda: hashlib.sha1(header))
    else:
        return
    if digest.hexdigest() != etag:
        raise IntegrityError(f"{name}: {digest.name} is {digest.hexdigest()}, needed: {etag}")


@contextlib.contextmanager
def explained(repo: str, repo_type: RepoType, what: str) -> Iterator[None]:
    """Turn the client's exceptions about `what` of `repo` into an EnvironmentFailure with one sentence."""
    page = f"https://huggingface.co/{'datasets/' if repo_type == 'dataset' else ''}{repo}"
    try:
        yield
        return
    except errors.GatedRepoError:  # a subclass of RepositoryNotFoundError, so first
        problem = f"is gated; accept its licence at {page} and set HF_TOKEN to a token of that account"
    except errors.RevisionNotFoundError:
        problem = f"has no {what}: the revision does not exist; {page}/commits lists them"
    except errors.RemoteEntryNotFoundError:
        problem = f"has no {what}; {page}/tree/main lists its files"
    except errors.RepositoryNotFoundError:
        problem = f"is not a {repo_type} repository, or a private one; see {page}, and set HF_TOKEN if it is yours"
    except errors.HfHubHTTPError as error:
        problem = f"{what}: HTTP {error.response.status_code}; see {page}, check HF_TOKEN, or run again later"
    except (httpx2.HTTPError, errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        problem = f"{what}: not in the cache, and {constants.ENDPOINT} is out of reach ({_reason(error)})"
    raise EnvironmentFailure(f"{repo} {problem}")


def _reason(error: Exception) -> str:
    """Return the first line of an exception, or its name if it has no text."""
    return str(error).strip().split("\n")[0] or type(error).__name__
