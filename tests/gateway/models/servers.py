"""A web server with ranges that speaks the hub's API, and a package index in a folder."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

REPOSITORY = "acme/tiny-GGUF"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FileServer(ThreadingHTTPServer):
    """Serves `files` by their path, with what goes wrong as the attributes say."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.ranges = True
        self.sized = True
        self.status: int | None = None
        self.etag: Callable[[bytes], str | None] = lambda data: f'"{hashlib.md5(data).hexdigest()}"'
        self.cuts: list[int] = []
        """How many bytes of a body the next answers with more than one byte send before they break off."""
        self.pause_after: int | None = None
        """Bytes of a body after which nothing more is sent, without an end of the connection."""
        self.held: dict[str, Event] = {}
        """By path, what a body waits for in its middle."""
        self.token: str | None = None
        self.read: list[tuple[str, int, int]] = []
        """Path, start and end of what was asked for, but for single bytes."""
        self.authorizations: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def publish(self, file: str, data: bytes, *, hold: bool = False) -> None:
        """Put a file into the repository that the hub's API describes; `hold` the second half until `release`."""
        path = _path(file)
        self.files[path] = data
        if hold:
            self.held[path] = Event()

    def release(self, file: str) -> None:
        """Send the second half of a file."""
        self.held[_path(file)].set()


def _path(file: str) -> str:
    return f"/{REPOSITORY}/resolve/{COMMIT}/{file}"


class _Handler(BaseHTTPRequestHandler):
    server: FileServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        authorization = self.headers.get("authorization")
        server.authorizations.append(authorization)
        if server.token is not None and authorization != f"Bearer {server.token}":
            return self._json(401, {"error": "Invalid username or password."})
        if self.path.startswith("/api/models/"):
            return self._describe()
        if (where := server.redirects.get(self.path)) is not None:
            self.send_response(302)
            self.send_header("location", where)
            self.send_header("content-length", "0")
            return self.end_headers()
        if self.path not in server.files or server.status is not None:
            return self._json(server.status or 404, {"error": "no such file"})
        self._send(server.files[self.path])

    def _send(self, data: bytes) -> None:
        server = self.server
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", "")) if server.ranges else None
        start = int(asked[1]) if asked else 0
        end = min(int(asked[2]) + 1, len(data)) if asked and asked[2] else len(data)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("content-range", f"bytes {start}-{end - 1}/{len(data)}")
        if (etag := server.etag(data)) is not None:
            self.send_header("etag", etag)
        if server.sized:
            self.send_header("content-length", str(end - start))
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        if end - start > 1:
            server.read.append((self.path, start, end))
            if server.cuts:
                end = start + server.cuts.pop(0)
        with suppress(OSError):
            if server.pause_after is not None and end - start > server.pause_after:
                self.wfile.write(data[start : start + server.pause_after])
                self.rfile.read(1)  # until the client has gone
            else:
                if end - start > 1 and (release := server.held.get(self.path)) is not None:
                    half = (start + end) // 2
                    self.wfile.write(data[start:half])
                    release.wait(120)
                    start = half
                self.wfile.write(data[start:end])

    def _describe(self) -> None:
        found = re.fullmatch(r"/api/models/(.+?)/revision/([\w.-]+)\?.*", self.path)
        if found is None or found[1] != REPOSITORY:
            self.send_response(404)
            self.send_header("x-error-code", "RepoNotFound")
            self.send_header("content-length", "0")
            return self.end_headers()
        prefix = f"/{REPOSITORY}/resolve/{COMMIT}/"
        siblings = [
            {
                "rfilename": path.removeprefix(prefix),
                "size": len(data),
                "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134},
            }
            for path, data in self.server.files.items()
            if path.startswith(prefix)
        ]
        self._json(
            200,
            {"id": REPOSITORY, "sha": COMMIT, "tags": ["license:apache-2.0"], "siblings": siblings},
        )

    def _json(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def file_server() -> Iterator[FileServer]:
    with FileServer() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def write_wheel(index: Path, name: str, version: str, members: dict[str, bytes]) -> Path:
    """Write a wheel with these members into a folder, from which `pip download --find-links` takes it."""
    plain = name.replace("-", "_")
    index.mkdir(exist_ok=True)
    wheel = index / f"{plain}-{version}-py3-none-any.whl"
    folder = f"{plain}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(f"{folder}/METADATA", metadata)
        archive.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{folder}/RECORD", "")
    return wheel
