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


FOREVER = 10**9


class LoopbackHub:
    """Context manager that serves repositories with faults and records the requests."""

    def __init__(self):
        self.requests: list[tuple[str, str]] = []  # (method, path) in the order of arrival, both origins
        self.bytes_sent = 0  # of files, to all GETs
        self.xet = False  # announce Xet, where nothing listens
        self.repos = {}  # (type, name) → commits, branches, gated
        self.faults = {}  # (kind, end of a path) → [times left, value]
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

        repo_type: "datasets" or "models"; files: path in the repository → bytes. gated: True refuses every file (401
        without a token, 403 with one); a string is the token that opens them. What the API tells stays public.
        """
        entry = self.repos.setdefault((repo_type, repo), {"commits": {}})
        entry["gated"] = gated
        entry["commits"][commit] = dict(files)
        entry["main"] = commit

    def environment(self, home, **variables: str) -> dict[str, str]:
        """Return the environment for a client: the address, a cache in `home`, no inherited HF_ settings."""
        others = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        return {**others, "HF_ENDPOINT": self.url, "HF_HOME": str(home), **variables}

    def cut(self, path, after_bytes, times=FOREVER, hang=False):
        """Drop the next GETs of a file at its byte `after_bytes`: one resumed there receives nothing.

        hang: the connection stays open instead, and silent.
        """
        self.faults["cut", path] = [times, after_bytes]
        self.is_hanging = hang

    def corrupt(self, path, times=FOREVER):
        """Flip one bit in the middle of the file in its next GETs; size and ETag stay right."""
        self.faults["corrupt", path] = [times, 1]

    def fail(self, path, status, times=FOREVER):
        """Answer the next requests whose path ends with `path`, of any method, with `status`."""
        self.faults["fail", path] = [times, status]

    def take(self, kind, path) -> int | None:
        """Return the value of a fault of this kind that is set for a path, and count it; or None."""
        for (fault_kind, end), fault in self.faults.items():
            if fault_kind == kind and path.endswith(end) and fault[0] > 0:
                fault[0] -= 1
                return fault[1]
        return None


def git_sha1(content: bytes) -> str:
    """Return the SHA-1 by which git knows a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _tree(files: dict[str, bytes]) -> list[dict]:
    """Return every folder and file of a commit, as the tree route lists them."""
    folders = {str(folder) for path in files for folder in PurePosixPath(path).parents} - {"."}
    tree = [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in sorted(folders)]
    for path, content in sorted(files.items()):
        tree.append({"type": "file", "path": path, "size": len(content), "oid": git_sha1(content)})
    return tree


class _Handler(BaseHTTPRequestHandler):
    """Handler of one connection, kept alive; `hub` is the LoopbackHub."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        if status := self.hub.take("fail", path):
            self._refuse(status)
        elif match := API.fullmatch(path):
            self._api(*match.groups())
        elif match := RESOLVE.fullmatch(path):
            self._resolve(*match.groups())
        else:
            self._refuse(404)

    do_HEAD = do_GET

    def _files(self, repo_type, repo, revision) -> tuple[dict, str, dict] | None:
        """Return the repository's entry, the commit and its files; None after a refusal."""
        entry = self.hub.repos.get((repo_type, repo))
        if not entry:
            return self._refuse(404, "RepoNotFound")
        commit = entry["main"] if revision == "main" else revision
        if commit not in entry["commits"]:
            return self._refuse(404, "RevisionNotFound")
        return entry, commit, entry["commits"][commit]

    def _resolve(self, lfs, repo_type, repo, revision, path):
        """Send a file: its bytes, or the redirect to the other origin (`lfs`) that has them."""
        if not (found := self._files(repo_type or "models", repo, revision)):
            return
        entry, commit, files = found
        token = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        if lfs and token:
            self._refuse(400)  # only one way of authorization is allowed
        elif not lfs and entry["gated"] not in (False, token):
            self._refuse(403 if token else 401, "GatedRepo")
        elif path not in files:
            self._refuse(404, "EntryNotFound", commit)
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
                return self._refuse(404, "EntryNotFound")
        self._send(200, json.dumps(answer).encode(), {})

    def _file(self, path, content, headers):
        """Send a file or the requested range, with its faults."""
        stop = len(content)
        if self.command == "GET":
            if self.hub.take("corrupt", path):
                middle = len(content) // 2
                content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
            stop = self.hub.take("cut", path) or stop
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        if not asked:
            return self._send(200, content, headers, stop)
        first = int(asked[1])
        last = min(int(asked[2] or len(content)), len(content) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self._send(206, content[first : last + 1], headers, stop - first)

    def _refuse(self, status, code="", commit=""):
        """Refuse as the hub does, the reason in X-Error-Code."""
        headers = {"X-Error-Code": code, "X-Error-Message": code, "X-Repo-Commit": commit}
        self._send(status, json.dumps({"error": code}).encode(), headers)

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
            if self.hub.is_hanging:
                self.hub.closed.wait()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
