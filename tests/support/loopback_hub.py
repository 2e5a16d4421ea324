"""A Hugging Face hub on loopback, to test with the real, unmodified clients.

    with LoopbackHub() as hub:
        hub.add("datasets", "owner/name", "a" * 40, {"data/x.parquet": content, "README.md": b""})
        environment = hub.environment(tmp_path / "hf")
        subprocess.run([sys.executable, "-c", CLIENT], env=environment)

The clients read HF_ENDPOINT and HF_HOME at import, so they need a subprocess. After the `with` block both ports are
closed, like a dead hub. Large files are served as on the real hub: a redirect to another origin (here a second port)
gives SHA-256 and size, and that origin refuses an Authorization header, as signed addresses do. README.md and *.json
come directly from the hub with git's SHA-1 as ETag. A fault is set for the path of a file, in any repository, and lasts
for `times` requests or for ever.
"""

import hashlib
import io
import json
import os
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

RESOLVE = re.compile(r"(/lfs)?/(?:(datasets)/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
API = re.compile(r"/api/(datasets|models)/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+)/?(.*))?")


def parquet_bytes(**columns) -> bytes:
    """Return a parquet file with the columns: lists or arrays of equal length."""
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


class LoopbackHub:
    """Context manager that serves repositories with faults and records the requests."""

    def __init__(self):
        self.requests: list[tuple[str, str]] = []  # (method, path) in the order of arrival, both origins
        self.bytes_sent = 0  # of files, to all GETs
        self.xet = False  # announce Xet, where nothing listens
        self.repos = {}  # (type, name) → commits, branches, gated
        # Faults: path → [times left, byte at which to cut, status or bit].
        self._cuts = {}
        self._failures = {}
        self._corrupt = {}
        self._hanging = False
        self._closed = threading.Event()

        handler = type("Handler", (_Handler,), {"hub": self, "log_message": lambda *_: None})
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
        hub, lfs = self._servers
        self.url = f"http://127.0.0.1:{hub.server_port}"
        self.lfs_url = f"http://127.0.0.1:{lfs.server_port}"

    def __enter__(self):
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        return self

    def __exit__(self, *exception):
        self._closed.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def add(self, repo_type, repo, commit, files, branch="main", gated=False):
        """Add a commit and point `branch` at it; earlier commits of the repository stay.

        repo_type: "datasets" or "models"; files: path in the repository → bytes. gated: True refuses every file (401
        without a token, 403 with one); a string is the token that opens them. What the API tells stays public.
        """
        entry = self.repos.setdefault((repo_type, repo), {"commits": {}, "branches": {}})
        entry["gated"] = gated
        entry["commits"][commit] = dict(files)
        entry["branches"][branch] = commit

    def environment(self, home, inherited=os.environ, **variables: str) -> dict[str, str]:
        """Return the environment for a client: the address, a cache in `home`, no inherited HF_ settings."""
        others = {name: value for name, value in inherited.items() if not name.startswith("HF_")}
        return {**others, "HF_ENDPOINT": self.url, "HF_HOME": str(home), **variables}

    def cut(self, path, after_bytes, times=10**9, hang=False):
        """Drop the next GETs of a file at its byte `after_bytes`: one resumed there receives nothing.

        hang: the connection stays open instead, and silent.
        """
        self._cuts[path] = [times, after_bytes]
        self._hanging = hang

    def interrupt(self, connection) -> None:
        """Stop an answer early."""
        if self._hanging:
            self._closed.wait()
        connection.shutdown(socket.SHUT_RDWR)

    def corrupt(self, path, times=10**9):
        """Flip one bit in the middle of the file in its next GETs; size and ETag stay right."""
        self._corrupt[path] = [times, 1]

    def fail(self, path, status, times=10**9):
        """Answer the next requests whose path ends with `path`, of any method, with `status`."""
        self._failures[path] = [times, status]

    def failure(self, url_path) -> int | None:
        """Return the status that an active `fail` sets, or None."""
        for path, fault in self._failures.items():
            status = _take(fault) if url_path.endswith(path) else None
            if status:
                return status
        return None

    def sent(self, path, content) -> tuple[bytes, int]:
        """Return the bytes that a GET sends, corrupted if a fault says so, and where it stops."""
        if _take(self._corrupt.get(path)):
            corrupted = bytearray(content)
            corrupted[len(content) // 2] ^= 1
            content = bytes(corrupted)
        stop = _take(self._cuts.get(path), len(content))
        return content, stop


def _take(fault: list[int] | None, otherwise: int | None = None) -> int | None:
    """Count a fault [times left, value] down and return its value, or `otherwise` if none is left."""
    if not fault or fault[0] <= 0:
        return otherwise
    fault[0] -= 1
    return fault[1]


def git_sha1(content: bytes) -> str:
    """Return the SHA-1 by which git knows a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _tree(files: dict[str, bytes]) -> list[dict]:
    """Return every folder and file of a commit, as the tree route lists them."""
    tree = []
    folders = {str(folder) for path in files for folder in PurePosixPath(path).parents}
    for path in sorted(folders - {"."}):
        tree.append({"type": "directory", "path": path, "size": 0, "oid": "0" * 40})
    for path, content in sorted(files.items()):
        tree.append({"type": "file", "path": path, "size": len(content), "oid": git_sha1(content)})
    return tree


class _Handler(BaseHTTPRequestHandler):
    """Handler of one connection, kept alive; `hub` is the LoopbackHub."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        if status := self.hub.failure(path):
            return self._refuse(status, "", f"armed to fail with {status}")
        for route, answer in ((API, self._api), (RESOLVE, self._resolve)):
            if match := route.fullmatch(path):
                return answer(*match.groups())
        self._refuse(404, "", "no such route")

    do_HEAD = do_GET

    def _token(self) -> str:
        return (self.headers["Authorization"] or "").removeprefix("Bearer ")

    def _files(self, repo_type, repo, revision) -> tuple[dict, str, dict] | None:
        """Return the repository's entry, the commit and its files; None after a refusal."""
        entry = self.hub.repos.get((repo_type, repo))
        if not entry:
            return self._refuse(404, "RepoNotFound", "Repository not found")
        commit = entry["branches"].get(revision, revision)
        if commit not in entry["commits"]:
            return self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return entry, commit, entry["commits"][commit]

    def _resolve(self, lfs, repo_type, repo, revision, path):
        """Send a file: its bytes, or the redirect to the other origin (`lfs`) that has them."""
        if not (found := self._files(repo_type or "models", repo, revision)):
            return
        entry, commit, files = found
        token = self._token()
        if lfs and token:
            self._refuse(400, "", "Only one auth mechanism allowed")
        elif not lfs and entry["gated"] not in (False, token):
            self._refuse(403 if token else 401, "GatedRepo", f"Access to {repo} is restricted")
        elif path not in files:
            self._refuse(404, "EntryNotFound", "Entry not found", commit)
        elif lfs or path.endswith(("README.md", ".json")):
            etag = git_sha1(files[path])
            self._file(path, files[path], {"X-Repo-Commit": commit, "ETag": f'"{etag}"'})
        else:
            self._redirect(files[path], commit)

    def _redirect(self, content, commit):
        """Send the address of a file at the other origin, with its SHA-256 and size."""
        digest = hashlib.sha256(content).hexdigest()
        headers = {
            "X-Repo-Commit": commit,
            "Location": f"{self.hub.lfs_url}/lfs{self.path}",
            "X-Linked-Etag": f'"{digest}"',
            "X-Linked-Size": str(len(content)),
        }
        if self.hub.xet:
            headers["X-Xet-Hash"] = digest
            headers["X-Xet-Refresh-Route"] = "http://127.0.0.1:9/"
        self._send(302, b"", headers)

    def _api(self, repo_type, repo, what, revision, folder):
        """Send the description of a repository, or the content of a folder (recursive=true: below it)."""
        if not (found := self._files(repo_type, repo, revision or "main")):
            return
        entry, commit, files = found
        answer = {"id": repo, "sha": commit, "gated": bool(entry["gated"])}
        if what == "tree":
            prefix = f"{folder}/" if folder else ""
            answer = [item for item in _tree(files) if item["path"].startswith(prefix)]
            if "recursive=true" not in self.path.lower():
                answer = [item for item in answer if "/" not in item["path"].removeprefix(prefix)]
            if not answer:
                return self._refuse(404, "EntryNotFound", f"{folder} does not exist")
        self._send(200, json.dumps(answer).encode(), {})

    def _file(self, path, content, headers):
        """Send a file or the requested range, with its faults."""
        stop = len(content)
        if self.command == "GET":
            content, stop = self.hub.sent(path, content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        if not asked:
            return self._send(200, content, headers, stop)
        first = int(asked[1])
        last_asked = int(asked[2] or len(content))
        last = min(last_asked, len(content) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self._send(206, content[first : last + 1], headers, stop - first)

    def _refuse(self, status, code, message, commit=""):
        """Refuse as the hub does, the reason in X-Error-Code."""
        headers = {"X-Error-Code": code, "X-Error-Message": message, "X-Repo-Commit": commit}
        self._send(status, json.dumps({"error": message}).encode(), headers)

    def _send(self, status, body, headers, stop=None):
        """Announce the whole body and send its bytes before `stop`; drop the connection if they are fewer."""
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        sent = body if stop is None else body[: max(0, stop)]
        if self.command != "HEAD":
            self.wfile.write(sent)
            if stop is not None:
                self.hub.bytes_sent += len(sent)
        if len(sent) < len(body):
            self.hub.interrupt(self.connection)
            self.close_connection = True
