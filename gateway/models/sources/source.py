"""What all sources of a model's bytes have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from gateway.models.store import ModelStoreError


class SourceError(ModelStoreError):
    """A source does not give the file; another one may."""


class SourceInterrupted(SourceError):
    """A source stopped giving the file, or cannot at the moment; it may go on where it stopped."""


class ByteSource(Protocol):
    """Gives any part of one file."""

    @property
    def label(self) -> str:
        """What the source is called in messages."""
        ...

    @property
    def size(self) -> int | None:
        """Bytes of the file, if that is known."""
        ...

    @property
    def sha256(self) -> str | None:
        """Digest that the source promises, if it does."""
        ...

    @property
    def identity(self) -> str | None:
        """What stays the same as long as the file does; None: an unfinished file has to be fetched anew."""
        ...

    @property
    def scratch(self) -> int:
        """Bytes that the source itself needs on the disk while it is read."""
        ...

    def read(self, start: int, end: int | None) -> Iterator[bytes]:
        """Yield the bytes from `start` to before `end`, or to the file's end.

        Raises:
            SourceError: there is no such file, or it has changed.
            SourceInterrupted: a later call may go on.
        """
        ...
