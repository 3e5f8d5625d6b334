"""Reads `multipart/form-data`: each part goes straight to a sink or a small buffer, within limits."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.errors import InvalidRequest, TooLarge, invalid_value

_FLUSH = 1024 * 1024
"""Bytes gathered before they are written."""


class Sink(Protocol):
    """Takes the content of a part as it comes."""

    async def write(self, content: bytes) -> None: ...


class FileSink:
    """Writes a part to a new file, in threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        self._file: BinaryIO | None = None

    @property
    def digest(self) -> str:
        """Hex SHA-256 of what was written."""
        return self._digest.hexdigest()

    async def write(self, content: bytes) -> None:
        await asyncio.to_thread(self._write, content)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, content: bytes) -> None:
        if self._file is None:
            self._file = self._path.open("xb")
        self._digest.update(content)
        self._file.write(content)


class Form:
    """Reads a form whose parts are known by name.

    Args:
        sinks: part -> what takes it; it is written to at least once.
        limits: part -> most bytes; parts without a sink are kept in memory.
        optional: parts that may be left out.
        observe: told how many bytes have come, before they are written; what it raises ends the form.
    """

    def __init__(
        self,
        content_type: str,
        *,
        sinks: Mapping[str, Sink],
        limits: Mapping[str, int],
        optional: Collection[str] = (),
        observe: Callable[[int], None] = lambda count: None,
    ) -> None:
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not 1 <= len(boundary) <= 70:
            raise InvalidRequest(
                "the content-type names no boundary; let your client make it (curl: -F)",
                param="Content-Type",
                code="invalid_multipart",
            )
        self._sinks = sinks
        self._limits = limits
        self._optional = optional
        self._observe = observe
        self.values: dict[str, bytearray] = {}
        """What was sent; for a part with a sink, what is not written yet."""
        self.filenames: dict[str, str] = {}
        """Names of files, as the client has named them, by part."""
        self._sizes: dict[str, int] = {}
        self._written: set[str] = set()
        self._part = ""
        self._header = bytearray()
        self._value = bytearray()
        self._disposition = b""
        self._complete = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_data,
                "on_end": self._on_end,
            },
        )

    async def read(self, chunks: AsyncIterator[bytes], *, patience: float) -> None:
        """Take the whole body.

        Args:
            patience: seconds that a client may send nothing.

        Raises:
            InvalidRequest: it is not such a form, or stays silent.
            TooLarge: a part is above its limit.
        """
        try:
            while True:
                async with asyncio.timeout(patience):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    break
                self._observe(len(chunk))
                self._parser.write(chunk)
                await self._flush(_FLUSH)
            self._parser.finalize()
            await self._flush(1)
        except FormParserError as error:
            raise InvalidRequest(f"the body is not multipart/form-data: {error}", code="invalid_multipart") from None
        except TimeoutError:
            raise InvalidRequest(f"nothing was sent for {patience:g} s", code="invalid_multipart") from None
        if not self._complete:
            raise InvalidRequest("the body ends before its last boundary", code="invalid_multipart")
        for name in self._limits:
            if name not in self._sizes and name not in self._optional:
                raise InvalidRequest(
                    f"{name}: the form has no such part", param=name, code="missing_required_parameter"
                )

    async def _flush(self, least: int) -> None:
        for name, sink in self._sinks.items():
            pending = self.values.get(name)
            if pending is None or (len(pending) < least and name in self._written):
                continue
            self._written.add(name)
            content, self.values[name] = bytes(pending), bytearray()
            await sink.write(content)

    def _begin(self) -> None:
        self._part, self._disposition = "", b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _on_headers_finished(self) -> None:
        options = parse_options_header(self._disposition)[1]
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name not in self._limits:
            known = ", ".join(self._limits)
            raise InvalidRequest(
                f"{name[:64]}: no such part; the form has {known}", param=name[:64], code="unknown_parameter"
            )
        if name in self._sizes:
            raise invalid_value(name, "given twice")
        self._part = name
        self._sizes[name] = 0
        self.values[name] = bytearray()
        self.filenames[name] = options.get(b"filename", b"").decode("utf-8", "replace")

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._sizes[self._part] += end - start
        if self._sizes[self._part] > self._limits[self._part]:
            most = self._limits[self._part]
            raise TooLarge(f"{self._part}: may have {most} bytes", param=self._part)
        self.values[self._part] += data[start:end]

    def _on_end(self) -> None:
        self._complete = True
