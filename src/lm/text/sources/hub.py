"""Files of a Hugging Face repository at one commit: resumed, verified, cached, then one folder a split.

A branch or tag is resolved to its commit first. A commit's file never changes, so one that lies in
the Hugging Face cache is used without any network call. A missing one is received over plain HTTP
(Xet, once announced but out of reach, hangs for minutes) into the cache, under the digest by which
the hub addresses it, and continues where an earlier run was cut or killed.
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
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, TypeVar

import httpx2
from huggingface_hub import (
    HfApi,
    constants,
    get_hf_file_metadata,
    get_session,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, tqdm

from lm.core.errors import EnvironmentFailure, IntegrityError
from lm.text.parquet import describe_split, open_parquet

T = TypeVar("T")
RepoType = Literal["dataset", "model"]
COMMIT = re.compile(r"[0-9a-f]{40}")
RETRY_WAITS_S = (1, 2, 4)
RETRIED_STATUS = (408, 429, 500, 502, 503, 504)


@dataclasses.dataclass(frozen=True)
class HubFetch:
    """Parquet files of a dataset repository at `revision` (a commit, branch or tag), by split."""

    kind: Literal["hub"]
    repo: str
    revision: str
    files: dict[str, tuple[str, ...]]
    column: str

    def __post_init__(self):
        check_repository(self.repo, self.revision)
        check_splits("files", self.files)
        for split, paths in self.files.items():
            if not paths or len(set(paths)) < len(paths):
                raise ValueError(f"files.{split} is {list(paths)}, needed: at least one path, none twice")
            for path in paths:
                if path != str(PurePosixPath("/", path))[1:] or ".." in PurePosixPath(path).parts:
                    raise ValueError(f"files.{split} has {path!r}, needed: a path inside the repository")
                if not path.endswith(".parquet"):
                    raise ValueError(f"files.{split} has {path!r}, needed: .parquet, or kind: datasets")


def check_repository(repo: str, revision: str) -> None:
    """Raise ValueError unless `repo` is owner/name and `revision` is given."""
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repo) or "--" in repo or ".." in repo:
        raise ValueError(f"repo is {repo!r}, needed: owner/name")
    if not revision.strip():
        raise ValueError("revision is empty, needed: a 40-digit commit, or a branch or tag to be resolved")


def check_splits(key: str, splits: Iterable[str]) -> None:
    """Raise ValueError unless there are splits and each name can be a folder's."""
    if not splits or not all(re.fullmatch(r"\w[\w-]*", split) for split in splits):
        raise ValueError(f"{key} has the splits {list(splits)}, needed: at least one, of letters and digits")


def fetch_hub(fetch: HubFetch, folder: Path) -> dict:
    """Fill folder/<split> with the files as they came, in their listed order; return the manifest."""
    commit = resolve_commit(fetch.repo, fetch.revision, "dataset")
    names = {split: [f"{fetch.repo}: {path}" for path in paths] for split, paths in fetch.files.items()}
    for split, paths in fetch.files.items():
        (folder / split).mkdir()
        for index, path in enumerate(paths):
            cached = download(fetch.repo, commit, path, "dataset")
            open_parquet(cached, fetch.column, names[split][index])  # before the next file is received
            shutil.copyfile(cached, folder / split / f"{index:04d}-{PurePosixPath(path).name}")
    return {
        "kind": fetch.kind,
        "repo": fetch.repo,
        "revision": fetch.revision,
        "commit": commit,
        "column": fetch.column,
        "splits": {split: describe_split(folder, split, fetch.column, names[split]) for split in fetch.files},
    }


def resolve_commit(repo: str, revision: str, repo_type: RepoType) -> str:
    """Return the 40-digit commit of a branch or tag; a commit is returned as it is, without a call.

    Raises EnvironmentFailure if the hub is out of reach, has no such revision, or refuses.
    """
    if COMMIT.fullmatch(revision):
        return revision
    asked = {"repo_type": repo_type, "revision": revision, "timeout": constants.HF_HUB_ETAG_TIMEOUT}
    with explained(repo, repo_type, f"revision {revision!r}"):
        return patiently(lambda: HfApi().repo_info(repo, **asked)).sha


def download(repo: str, commit: str, filename: str, repo_type: RepoType) -> Path:
    """Return the path of a commit's file in the Hugging Face cache, verified; cached ones need no network.

    Verified: the bytes have the SHA-256 (LFS) or the git SHA-1 by which the hub addresses them.
    Raises IntegrityError if not, EnvironmentFailure if the hub is out of reach, refuses or lacks it.
    """
    with explained(repo, repo_type, f"{filename} at commit {commit}"):
        cached = try_to_load_from_cache(repo, filename, revision=commit, repo_type=repo_type)
        if not isinstance(cached, str):
            _receive_into_cache(repo, commit, filename, repo_type)
            cached = hf_hub_download(repo, filename, revision=commit, repo_type=repo_type)
    blob = Path(cached).resolve()  # its name is the digest, save where the cache has no symbolic links
    with open(blob, "rb") as file:
        _verify(file, blob.name, f"{repo}: {filename} in the cache (delete {blob} and run again)")
    return Path(cached)


def _receive_into_cache(repo: str, commit: str, filename: str, repo_type: RepoType) -> None:
    """Bring a file's bytes to the cache's blobs/<digest>, where hf_hub_download finds and links them.

    A partial file stays beside it for the next run; two processes take turns.
    """
    url = hf_hub_url(repo, filename, repo_type=repo_type, revision=commit)
    metadata = patiently(lambda: get_hf_file_metadata(url))
    if not metadata.etag or metadata.size is None:
        return  # cannot be resumed: hf_hub_download receives it whole or says what is wrong
    name = f"{repo}: {filename}"
    blobs = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repo, repo_type=repo_type), "blobs")
    blobs.mkdir(parents=True, exist_ok=True)
    with open(blobs / f"{metadata.etag}.incomplete", "a+b") as partial:
        fcntl.flock(partial, fcntl.LOCK_EX)
        if (blobs / metadata.etag).exists():
            return  # another process, or another commit of the repository, brought the same bytes
        _receive(url, partial, metadata.size, name)
        try:
            _verify(partial, metadata.etag, f"{name} as received from {constants.ENDPOINT} (run again)")
        except IntegrityError:
            partial.truncate(0)
            raise
        os.replace(partial.name, blobs / metadata.etag)


def _receive(url: str, partial: BinaryIO, num_bytes: int, name: str) -> None:
    """Append what `partial` still lacks of its `num_bytes`; progress is shown on a terminal."""
    start = partial.seek(0, os.SEEK_END)
    free_bytes = shutil.disk_usage(partial.name).free
    if free_bytes < num_bytes - start:
        raise EnvironmentFailure(
            f"{name}: {num_bytes - start} bytes are to be received, {free_bytes} are free at "
            f"{constants.HF_HUB_CACHE}; make room, or let HF_HOME name another disk"
        )
    with tqdm(total=num_bytes, initial=start, desc=name, unit="B", unit_scale=True, disable=None) as bar:
        try:
            patiently(lambda: _receive_rest(url, partial, num_bytes, bar), progress=partial.tell)
        except httpx2.TransportError as error:
            raise EnvironmentFailure(
                f"{name}: received {partial.tell()} of {num_bytes} bytes, then {constants.ENDPOINT} was lost "
                f"({_reason(error)}); run again to continue from there"
            ) from None


def _receive_rest(url: str, partial: BinaryIO, num_bytes: int, bar: tqdm) -> None:
    """Make one request for the bytes from partial's end on; TransportError if they stop short."""
    start = partial.tell()
    if start >= num_bytes:
        return
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}  # no token goes to another origin: httpx2
    if start:
        headers["Range"] = f"bytes={start}-"
    timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=headers, timeout=timeout_s) as response:
        hf_raise_for_status(response)
        if start and response.status_code != httpx2.codes.PARTIAL_CONTENT:
            partial.truncate(partial.seek(0))
            bar.reset()
        for chunk in response.iter_bytes():
            bar.update(partial.write(chunk))
    if partial.tell() < num_bytes:
        raise httpx2.RemoteProtocolError("the answer ended early")


def patiently(call: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
    """Return call(), repeated after RETRY_WAITS_S while the network or the hub fails.

    Where `progress()` has grown the waits start anew: what moves is not given up.
    """
    waits_s, before = list(RETRY_WAITS_S), progress()
    while True:
        try:
            return call()
        except (httpx2.TransportError, HfHubHTTPError) as error:
            if isinstance(error, HfHubHTTPError) and error.response.status_code not in RETRIED_STATUS:
                raise
            if progress() > before:
                waits_s, before = list(RETRY_WAITS_S), progress()
            if not waits_s:
                raise
            time.sleep(waits_s.pop(0))


def _verify(file: BinaryIO, etag: str, name: str) -> None:
    """Raise IntegrityError unless the file has the digest that its ETag states (if it states one)."""
    header = b"blob %d\0" % file.seek(0, os.SEEK_END)
    file.seek(0)
    if re.fullmatch(r"[0-9a-f]{64}", etag):
        found = hashlib.file_digest(file, "sha256")
    elif re.fullmatch(r"[0-9a-f]{40}", etag):
        found = hashlib.file_digest(file, lambda: hashlib.sha1(header))
    else:
        return
    if found.hexdigest() != etag:
        raise IntegrityError(f"{name}: {found.name} is {found.hexdigest()}, needed: {etag}")


@contextlib.contextmanager
def explained(repo: str, repo_type: RepoType, what: str) -> Iterator[None]:
    """Turn what the client raises about `what` of `repo` into one sentence, an EnvironmentFailure."""
    page = f"https://huggingface.co/{'datasets/' if repo_type == 'dataset' else ''}{repo}"
    try:
        yield
        return
    except GatedRepoError:  # a RepositoryNotFoundError too, hence first
        problem = f"is gated; accept its licence at {page} and set HF_TOKEN to a token of that account"
    except RevisionNotFoundError:
        problem = f"has no {what}, for its revision does not exist; {page}/commits lists them"
    except RemoteEntryNotFoundError:
        problem = f"has no {what}; {page}/tree/main lists its files"
    except RepositoryNotFoundError:
        problem = f"is no {repo_type} repository or a private one; see {page}, and set HF_TOKEN for your own"
    except HfHubHTTPError as error:
        problem = f"{what}: HTTP {error.response.status_code}; see {page}, check HF_TOKEN, or run again later"
    except (httpx2.HTTPError, OfflineModeIsEnabled, LocalEntryNotFoundError) as error:
        problem = f"{what}: not in the cache, and {constants.ENDPOINT} is out of reach ({_reason(error)})"
    raise EnvironmentFailure(f"{repo} {problem}")


def _reason(error: Exception) -> str:
    """The first line of an exception, or its name where it has no text."""
    return str(error).strip().split("\n")[0] or type(error).__name__
