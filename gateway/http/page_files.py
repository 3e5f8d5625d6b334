"""The files of the pages: compressed once, under addresses that change with them, so that browsers keep them for good.
Modules of our own leave their documentation behind.

`/static/<digest>/js/main.js` never changes: the digest is that of all files. Modules import each other by relative
addresses, so a page that is loaded from one digest stays with it. A gateway that has other files than the one that sent
the page, as during an update, answers with its own. `/static/js/main.js` is the same file, to be asked for each time.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_ANY_DIGEST = re.compile(r"[0-9a-f]{16}/")
_IMPORT = re.compile(r'^(?:import|export)\b[^;"]*"(\.[^"]+)";', re.MULTILINE)
_LATER = re.compile(r'(?:\b(?:import|styled|new URL)\(|\), )"(\.[^"]+)"(?=\)|, import\.meta\.url\))')
"""What a module loads when it is needed, alone or with a style sheet, and its worker."""
_NAMED = re.compile(r'"static/(?:[0-9a-f]{16}/)?([^"]+)"')
_DOCUMENTATION = re.compile(r"^[ \t]*/\*\*(?:(?!\*/).)*\*/[ \t]*$", re.MULTILINE | re.DOTALL)
"""A comment that has its lines for itself."""
_CATALOGUE = re.compile(r'<html[^>]* data-catalogue="([\w ]+)"')
_COMPRESSED_FROM = 512
"""Bytes of the smallest file that is compressed."""
_FOR_GOOD = "public, max-age=31536000, immutable"
_ASK = "no-cache"
"""Browsers ask each time whether a file has changed (and mostly hear 304), so that a new release shows at once."""


class PageFile(NamedTuple):
    """One file, ready to be sent."""

    content: bytes
    compressed: bytes | None
    media_type: str
    etag: str

    @classmethod
    def of(cls, content: bytes, media_type: str) -> PageFile:
        compressed = gzip.compress(content, mtime=0) if len(content) >= _COMPRESSED_FROM else None
        if compressed is not None and len(compressed) >= len(content):
            compressed = None
        return cls(content, compressed, media_type, f'"{hashlib.sha256(content).hexdigest()[:16]}"')

    def response(self, request: Request, headers: Mapping[str, str]) -> Response:
        """The answer to a request for it."""
        given = {**headers, "etag": self.etag, "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=given)
        accepted = {part.partition(";")[0].strip() for part in request.headers.get("accept-encoding", "").split(",")}
        if self.compressed is not None and "gzip" in accepted:
            return Response(self.compressed, headers={**given, "content-encoding": "gzip"}, media_type=self.media_type)
        return Response(self.content, headers=given, media_type=self.media_type)


class PageFiles:
    """All files of a folder but its pages (`*.html`), as an ASGI application; reading them is put off until the first
    request."""

    def __init__(self, folder: Path, headers: Mapping[str, str]) -> None:
        self._folder = folder
        self._headers = headers
        self._files: dict[str, PageFile] = {}
        self._pages: dict[str, PageFile] = {}
        self._workers: dict[str, PageFile] = {}
        self.digest = ""

    async def page(self, name: str, request: Request) -> Response:
        """Answer with a page, whose `static/` addresses name the digest."""
        await self._read()
        return self._pages[name].response(request, {**self._headers, "cache-control": _ASK})

    async def worker(self, page: str, name: str, request: Request) -> Response:
        """Answer with the service worker that keeps a page, which begins with its release."""
        await self._read()
        if name not in self._workers:
            self._workers[name] = await asyncio.to_thread(self._worker, page, name)
        return self._workers[name].response(request, {**self._headers, "cache-control": _ASK})

    def _worker(self, page: str, name: str) -> PageFile:
        files = sorted(_shell(self._pages[page].content.decode(), self._files))
        release = json.dumps({"digest": self.digest, "files": files})
        return PageFile.of(f"self.RELEASE = {release};\n".encode() + self._files[name].content, _TYPES[".js"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._read()
        path = scope["path"].removeprefix(scope.get("root_path", "")).lstrip("/")
        digest = _ANY_DIGEST.match(path)
        file = self._files.get(path[digest.end() :] if digest else path)
        if file is None or scope["method"] not in ("GET", "HEAD"):
            await Response(status_code=404, headers=dict(self._headers))(scope, receive, send)
            return
        kept = _FOR_GOOD if digest and digest[0][:-1] == self.digest else _ASK
        await file.response(Request(scope), {**self._headers, "cache-control": kept})(scope, receive, send)

    async def _read(self) -> None:
        if not self._files:
            self._files, self._pages, self.digest = await asyncio.to_thread(_read, self._folder)


@functools.cache
def _read(folder: Path) -> tuple[dict[str, PageFile], dict[str, PageFile], str]:
    contents = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
    files = {
        name: PageFile.of(_undocumented(name, content), _TYPES[Path(name).suffix])
        for name, content in contents.items()
        if Path(name).suffix in _TYPES
    }
    together = hashlib.sha256()
    for name, file in files.items():
        together.update(f"{name} {file.etag}\n".encode())
    digest = together.hexdigest()[:16]
    pages = {
        name: PageFile.of(_linked(content.decode(), contents, digest), "text/html; charset=utf-8")
        for name, content in contents.items()
        if name.endswith(".html")
    }
    return files, pages, digest


def _undocumented(name: str, content: bytes) -> bytes:
    """A file without the documentation of our own modules, which browsers do not need and which is a third of their
    bytes. Lines keep their numbers."""
    if not name.endswith(".js") or name.startswith("vendor/"):
        return content
    return _DOCUMENTATION.sub(lambda found: "\n" * found[0].count("\n"), content.decode()).encode()


def _linked(html: str, contents: Mapping[str, bytes], digest: str) -> bytes:
    """A page whose files have their digest's address, and which names all modules that its own import: none of them is
    found late."""

    def preloaded(script: re.Match[str]) -> str:
        indent, name = script[1], script[2]
        links = (f'{indent}<link rel="modulepreload" href="static/{each}">\n' for each in _imported(name, contents))
        return "".join(links) + script[0]

    html = re.sub(r'(?m)^( *)<script type="module" src="static/([^"]+)">', preloaded, html)
    return html.replace('"static/', f'"static/{digest}/').encode()


def _imported(name: str, contents: Mapping[str, bytes]) -> Iterator[str]:
    """Names of the modules that one imports, and that these import, each once."""
    seen, waiting = {name}, [name]
    while waiting:
        importer = waiting.pop(0)
        for relative in _IMPORT.findall(contents[importer].decode()):
            found = _beside(importer, relative)
            if found not in seen:
                seen.add(found)
                waiting.append(found)
                yield found


def _shell(html: str, files: Mapping[str, PageFile]) -> set[str]:
    """Names of the files with which a page works: those that it names, what its modules load later, but for libraries,
    and its texts in all languages."""
    found, waiting = set[str](), _NAMED.findall(html)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if name.endswith(".js") and not name.startswith("vendor/"):
            later = (_beside(name, each) for each in _LATER.findall(files[name].content.decode()))
            waiting += [each for each in later if not each.startswith("vendor/")]
            waiting += _imported(name, {each: file.content for each, file in files.items()})
    catalogues = _CATALOGUE.search(html)
    if catalogues:
        names = "|".join(catalogues[1].split())
        found |= {name for name in files if re.fullmatch(rf"languages/\w+/({names})\.js", name)}
    return found


def _beside(name: str, relative: str) -> str:
    """Name of the file that a file calls by a relative address."""
    return (Path("/") / name).parent.joinpath(relative).resolve().relative_to("/").as_posix()
