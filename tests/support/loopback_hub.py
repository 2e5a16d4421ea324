"""A Hugging Face hub on loopback, to test with the real, unmodified clients.

    with LoopbackHub() as hub:
        hub.add("datasets", "owner/name", "a" * 40, {"data/x.parquet": content, "README.md": b""})
        environment = hub.environment(tmp_path / "hf")
        subprocess.run([sys.executable, "-c", CLIENT], env=environment)

The clients read HF_ENDPOINT and HF_HOME at import, so they need a subprocess. After the `with` block both ports are
closed, like a dead hub. Each path has one answer. Large files are served as on the real hub: a redirect to another
origin (here a second port) gives SHA-256 and size, and that origin refuses an Authorization header, as signed addresses
do. It also announces Xet, where nothing listens. README.md and *.json come directly from the hub with git's SHA-1 as
ETag. A fault is set for the end of a path and lasts for `times` requests or for ever.
"""

import hashlib
import io
import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from support.damage import flipped

FOREVER = 10**9


def parquet_bytes(**columns) -> bytes:
    """Return a parquet file with the columns: lists or arrays of equal length."""
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def git_sha1(content: bytes) -> str:
    """Return the SHA-1 by which git knows a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def listings_of(files: dict[str, bytes]) -> dict[str, list[dict]]:
    """Return the entries of each folder of a commit, as the tree route lists them; "." is the whole."""
    listings = {}
    for path, content in files.items():
        entry = {"type": "file", "path": path, "size": len(content), "oid": git_sha1(content)}
        for folder in map(str, PurePosixPath(path).parents):
            entries = listings.setdefault(folder, [])
            if entry not in entries:
                entries.append(entry)
            entry = {"type": "directory", "path": folder, "size": 0, "oid": "0" * 40}
    return listings


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes = b""


class LoopbackHub:
    """Context manager that serves repositories with faults and records the requests."""

    def __init__(self):
        self.requests: list[str] = []  # paths in the order of arrival, both origins
        self.bytes_sent = 0  # to all GETs
        self.answers: dict[str, Answer] = {}  # by path
        self.commits: set[tuple[str, str]] = set()  # (repository, commit)
        self.gated = {}  # repository → the token that opens its files, True if none does
        self.faults = {}  # (kind, end of a path) → its value for each of the next requests
        self.is_hanging = False
        self.closed = threading.Event()

        handler = type("Handler", (_Handler,), {"hub": self, "log_message": lambda *_: None})
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
        self.url, self.lfs_url = (f"http://127.0.0.1:{server.server_port}" for server in self._servers)

    def __enter__(self):
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        return self

    def __exit__(self, *exception):
        self.closed.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def add(self, repo_type, repo, commit, files, gated=False):
        """Add a commit and point `main` at it; earlier commits of the repository stay.

        repo_type: "datasets" or "models"; files: path in the repository → bytes. gated: True refuses every file, 401
        without a token, 403 with one.
        """
        self.commits.add((repo, commit))
        if gated:
            self.gated[repo] = gated

        # What the API tells of the commit.
        api = f"/api/{repo_type}/{repo}"
        description = json.dumps({"id": repo, "sha": commit}).encode()
        for revision in (commit, "main"):
            self.answers[f"{api}/revision/{revision}"] = Answer(200, {}, description)
        for folder, entries in listings_of(files).items():
            address = f"{api}/tree/{commit}/{folder}".removesuffix("/.")
            self.answers[address] = Answer(200, {}, json.dumps(entries).encode())

        # Its files.
        prefix = "" if repo_type == "models" else f"/{repo_type}"
        for path, content in files.items():
            address = f"{prefix}/{repo}/resolve/{commit}/{path}"
            digest = hashlib.sha256(content).hexdigest()
            of_small_file = {"X-Repo-Commit": commit, "ETag": f'"{git_sha1(content)}"'}
            of_redirect = {
                "X-Repo-Commit": commit,
                "Location": f"{self.lfs_url}/lfs{address}",
                "X-Linked-Etag": f'"{digest}"',
                "X-Linked-Size": str(len(content)),
                "X-Xet-Hash": digest,
                "X-Xet-Refresh-Route": "http://127.0.0.1:9/",
            }
            if path.endswith(("README.md", ".json")):
                self.answers[address] = Answer(200, of_small_file, content)
            else:
                self.answers[address] = Answer(302, of_redirect)
                self.answers[f"/lfs{address}"] = Answer(200, {}, content)

    def environment(self, home, **variables: str) -> dict[str, str]:
        """Return the environment for a client: the address, a cache in `home`, no inherited HF_ settings."""
        others = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        patience = {"HF_HUB_ETAG_TIMEOUT": "600", "HF_HUB_DOWNLOAD_TIMEOUT": "600"}  # an answer may be late
        return others | patience | {"HF_ENDPOINT": self.url, "HF_HOME": str(home)} | variables

    def cut(self, path, after_bytes, times=FOREVER, hang=False):
        """Drop the next GETs of a file after this many bytes; hang: leave the connection open instead, and silent."""
        self.faults["cut", path] = repeat(after_bytes, times)
        self.is_hanging = hang

    def corrupt(self, path, times=FOREVER):
        """Flip one bit in the middle of the file in its next GETs; size and ETag stay right."""
        self.faults["corrupt", path] = repeat(True, times)

    def fail(self, path, status, times=FOREVER):
        """Answer the next requests whose path ends with `path`, of any method, with `status`."""
        self.faults["fail", path] = repeat(status, times)

    def take(self, kind, path):
        """Return the value of a fault of this kind for the next request of a path; or None."""
        for (fault_kind, end), values in self.faults.items():
            if fault_kind == kind and path.endswith(end):
                return next(values, None)
        return None

    def answer(self, path: str, token: str) -> Answer:
        """Return the answer to a request; the reason of a refusal is in X-Error-Code, as on the real hub."""
        if status := self.take("fail", path):
            return Answer(status, {})
        if path.startswith("/lfs"):
            return Answer(400, {}) if token else self.answers[path]  # only one way of authorization is allowed
        for repo, opens in self.gated.items():
            if f"/{repo}/resolve/" in path and token != opens:
                return Answer(403 if token else 401, {"X-Error-Code": "GatedRepo"})
        return self.answers.get(path) or Answer(404, {"X-Error-Code": self.missing(path)})

    def missing(self, path: str) -> str:
        """Return what is missing: a repository, its commit or an entry of that."""
        commits = [commit for repo, commit in self.commits if f"/{repo}/" in path]
        if not commits:
            return "RepoNotFound"
        return "EntryNotFound" if any(commit in path for commit in commits) else "RevisionNotFound"


class _Handler(BaseHTTPRequestHandler):
    """Handler of one connection, kept alive; `hub` is the LoopbackHub."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = urlsplit(self.path).path
        self.hub.requests.append(path)
        token = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        status, headers, body = self.hub.answer(path, token)

        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET" and body:
            self._send(path, body)

    do_HEAD = do_GET

    def _send(self, path, body):
        """Send a body with its faults; drop the connection if it is not whole."""
        if self.hub.take("corrupt", path):
            body = flipped(body)
        sent = body[: self.hub.take("cut", path)]
        self.wfile.write(sent)
        self.hub.bytes_sent += len(sent)
        if len(sent) < len(body):
            if self.hub.is_hanging:
                self.hub.closed.wait()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
