"""Download files of a Hugging Face repository at one commit: cached and verified.

The files of a commit never change, so a file in the Hugging Face cache is used without a network call. The client
resumes a connection that is cut; if it gives up, the next run starts that file again and keeps those before it.
"""

import contextlib
import functools
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Literal, TypeVar

os.environ.setdefault("HF_HUB_DISABLE_XET", "1")  # xet hangs for minutes if the Hub offers it and it is out of reach

import httpx2
import huggingface_hub as hf
from huggingface_hub import constants, errors

from lm.core.errors import EnvironmentFailure, IntegrityError

T = TypeVar("T")
RepoType = Literal["dataset", "model"]

RETRY_WAITS_S = (1, 2, 4)
RETRIED_STATUS = (408, 429, 500, 502, 503, 504)


def resolve_commit(repo: str, revision: str, repo_type: RepoType) -> str:
    """Return the commit of a revision; ask the Hub unless it is one. Raise EnvironmentFailure if the Hub fails."""
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    asked = {"repo_type": repo_type, "revision": revision, "timeout": constants.HF_HUB_ETAG_TIMEOUT}
    with explain_hub_errors(repo, repo_type, f"revision {revision!r}"):
        return str(retry(lambda: hf.HfApi().repo_info(repo, **asked)).sha)


def download(repo: str, commit: str, filename: str, repo_type: RepoType) -> Path:
    """Return the path of a file in the Hugging Face cache, verified by its digest; download it if it is not there."""
    cached = hf.try_to_load_from_cache(repo, filename, revision=commit, repo_type=repo_type)
    with explain_hub_errors(repo, repo_type, f"{filename} at commit {commit}"):
        get = functools.partial(hf.hf_hub_download, repo, filename, revision=commit, repo_type=repo_type)
        path = Path(cached if isinstance(cached, str) else retry(get))
    blob = path.resolve()  # its name is the digest, if the cache has symbolic links
    where = (
        f"in the cache (delete {blob} and run again)"
        if cached
        else f"as received from {constants.ENDPOINT} (run again)"
    )
    try:
        with open(blob, "rb") as file:
            _verify(file, blob.name, f"{repo}: {filename} {where}")
    except IntegrityError:
        if not cached:  # the next run downloads it again
            path.unlink()
            blob.unlink(missing_ok=True)
        raise
    return path


def retry(call: Callable[[], T]) -> T:
    """Return call(); repeat it after each of RETRY_WAITS_S if the Hub answers that it is temporarily unavailable."""
    for wait_s in RETRY_WAITS_S:
        try:
            return call()
        except errors.HfHubHTTPError as error:
            if error.response.status_code not in RETRIED_STATUS:
                raise
        time.sleep(wait_s)
    return call()


def _verify(file: BufferedReader, etag: str, name: str) -> None:
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
        raise IntegrityError(f"{name}: {digest.name} is {digest.hexdigest()}; it must be {etag}")


@contextlib.contextmanager
def explain_hub_errors(repo: str, repo_type: RepoType, what: str) -> Iterator[None]:
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
        problem = f"{what}: not in the cache, and {constants.ENDPOINT} is out of reach ({_reason(error)}); run again"
    raise EnvironmentFailure(f"{repo} {problem}")


def _reason(error: Exception) -> str:
    """Return the first line of an exception, or its name if the message is empty."""
    return str(error).strip().split("\n")[0] or type(error).__name__
