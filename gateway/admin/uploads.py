"""Adapters sent as `multipart/form-data`: each part goes straight to a file or a small buffer, within limits."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.errors import InvalidRequest, TooLarge, invalid_value

_FLUSH = 1024 * 1024
"""Bytes gathered before they are written, in a thread."""


class Form:
    """Reads a form whose parts are known by name.

    Args:
        files: part -> the file it goes to.
        limits: part -> most bytes; parts that are no file are kept in memory.
        observe: told how many bytes have come, before they are written; what it raises ends the form.
    """

    def __init__(
        self,
        content_type: str,
        *,
        files: Mapping[str, Path],
        limits: Mapping[str, int],
        observe: Callable[[int], None] = lambda count: None,
    ) -> None:
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not 1 <= len(boundary) <= 70:
            raise InvalidRequest(
                "the content-type names no boundary; let your client make it (curl: -F)",
                param="Content-Type",
                code="invalid_multipart",
            )
        self._paths = files
        self._limits = limits
        self._observe = observe
        self.values: dict[str, bytearray] = {}
        """What was sent; for a part that is a file, what is not written yet."""
        self._digests = {name: hashlib.sha256() for name in files}
        self._sizes: dict[str, int] = {}
        self._files: dict[str, BinaryIO] = {}
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
        finally:
            for file in self._files.values():
                file.close()
        if not self._complete:
            raise InvalidRequest("the body ends before its last boundary", code="invalid_multipart")
        for name in self._limits:
            if name not in self._sizes:
                raise InvalidRequest(
                    f"{name}: the form has no such part", param=name, code="missing_required_parameter"
                )

    @property
    def digest(self) -> str:
        """Of all files together."""
        return " ".join(f"{name}:{digest.hexdigest()}" for name, digest in sorted(self._digests.items()))

    async def _flush(self, least: int) -> None:
        for name, path in self._paths.items():
            pending = self.values.get(name)
            if pending is None or (len(pending) < least and name in self._files):
                continue
            if name not in self._files:
                self._files[name] = path.open("xb")
            content, self.values[name] = bytes(pending), bytearray()
            await asyncio.to_thread(self._write, name, content)

    def _write(self, name: str, content: bytes) -> None:
        self._digests[name].update(content)
        self._files[name].write(content)

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
        # The file's own name, which a client may choose, is not looked at.
        name = parse_options_header(self._disposition)[1].get(b"name", b"").decode("utf-8", "replace")
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

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._sizes[self._part] += end - start
        if self._sizes[self._part] > self._limits[self._part]:
            most = self._limits[self._part]
            raise TooLarge(f"{self._part}: may have {most} bytes", param=self._part)
        self.values[self._part] += data[start:end]

    def _on_end(self) -> None:
        self._complete = True
