"""Pulls one model: tries its sources in order, goes on where an earlier pull stopped, keeps only the right bytes."""

from __future__ import annotations

import dataclasses
import errno
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from engine.checkpoint.digests import file_digest, read_digest
from gateway.models.chunks import ChunkedFile
from gateway.models.sources.source import ByteSource, SourceError, SourceInterrupted
from gateway.models.store import ModelStore, ModelStoreError, StoredModel
from gateway.models.targets import PullTarget

_RESERVE = 64 << 20
"""Bytes that a pull leaves free on the disk."""
_ATTEMPTS = 3
"""Attempts in a row that may bring nothing, at the last source; others are left for the next one at once."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Unreachable(ModelStoreError):
    """No source answers; later one may."""


class PullProgress(Protocol):
    """Is told how far a pull is."""

    def begin(self, label: str, size: int | None, done: int) -> None:
        """A source gives the file from now on, of which `done` bytes are there."""
        ...

    def advance(self, count: int) -> None:
        """So many bytes have come."""
        ...

    def fetching(self, package: str, count: int) -> None:
        """So many bytes of a package have come, from which bytes of the file will."""
        ...

    def say(self, line: str) -> None:
        """Something happened that the user should know."""
        ...


def pull(store: ModelStore, target: PullTarget, progress: PullProgress) -> StoredModel:
    """Have a model in the store, and return it.

    Raises:
        Unreachable: no source answers.
        ModelStoreError: no source gives it, its digest is wrong, or there is no room. What has come is kept.
    """
    if target.sha256 is None and (known := store.model(target.name)) is not None and known.source == target.source:
        target = dataclasses.replace(target, sha256=known.sha256)
    if target.local is not None:
        digest = file_digest(target.local)
        if target.sha256 not in (None, digest):
            raise ModelStoreError(f"{target.local} has the sha256 {digest}, not {target.sha256}; it is refused")
        store.adopt(target.local, digest)
    else:
        digest = _fetch(store, target, progress)
    size = store.blob(digest).stat().st_size
    model = StoredModel(target.name, target.file, size, digest, target.source, target.licence)
    store.add(model)
    return model


def _fetch(store: ModelStore, target: PullTarget, progress: PullProgress) -> str:
    """Return the digest of a file that is in the store now."""
    identity = target.sha256
    if identity is None:
        identity = target.openers[0](store.folder, progress.fetching).identity
    with store.claimed(identity or target.source, lambda: progress.say("waiting for another pull of it")) as partial:
        if target.sha256 is not None and store.blob(target.sha256).exists():
            if read_digest(store.blob(target.sha256)) == target.sha256:  # a failing disk changes no times
                return target.sha256
            progress.say(f"{target.name} is damaged; what is damaged is fetched again")
            store.reopen(target.sha256, partial)
        if identity is None:
            store.discard(partial)
        return _from_any(store, target, partial, progress)


def _from_any(store: ModelStore, target: PullTarget, partial: Path, progress: PullProgress) -> str:
    failures: list[str] = []
    interrupted = False
    for opener in target.openers:
        attempts = 1 if opener is not target.openers[-1] else _ATTEMPTS
        while attempts:
            wheels = partial.with_name(partial.name + ".wheels")
            shutil.rmtree(wheels, ignore_errors=True)
            wheels.mkdir()
            counted = _Counted(progress)
            try:
                source = opener(wheels, progress.fetching)
                digest = _from_one(store, target, source, partial, counted)
                if target.sha256 in (None, digest):
                    store.keep(partial, digest)
                    return digest
                store.discard(partial)
                raise SourceError(f"{source.label} gives a file with the sha256 {digest}, not {target.sha256}")
            except SourceInterrupted as error:
                attempts = attempts if counted.bytes else attempts - 1
                interrupted = True
                last = str(error)
                if attempts:
                    progress.say(f"{last}; going on")
                    time.sleep(1)
            except (SourceError, EOFError) as error:
                attempts, interrupted = 0, False
                last = str(error)
            finally:
                shutil.rmtree(wheels, ignore_errors=True)
        failures.append(last)
        if opener is not target.openers[-1]:
            progress.say(f"{last}; trying the mirror")
    kind = Unreachable if interrupted else ModelStoreError
    raise kind(f"{target.name} cannot be pulled: {'; '.join(failures)}")


class _Counted:
    """Passes bytes on and counts them."""

    def __init__(self, progress: PullProgress) -> None:
        self.progress = progress
        self.bytes = 0

    def __call__(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self.bytes += len(piece)
            self.progress.advance(len(piece))
            yield piece


def _from_one(store: ModelStore, target: PullTarget, source: ByteSource, partial: Path, counted: _Counted) -> str:
    """Fill the unfinished file from one source, and return its digest."""
    if target.sha256 is not None and source.sha256 not in (None, target.sha256):
        raise SourceError(f"{source.label} has another file: sha256 {source.sha256}, not {target.sha256}")
    if target.size is not None and source.size not in (None, target.size):
        raise SourceError(f"{source.label} has another file: {source.size} bytes, not {target.size}")
    try:
        with ChunkedFile(partial, target.size or source.size) as file:
            done = file.present()
            needed = (file.size or 0) - done + source.scratch + _RESERVE
            if needed > (free := store.free()):
                raise ModelStoreError(
                    f"{target.name} needs {needed:,} bytes more in {store.folder}, where {free:,} are free; make room, "
                    "or name another folder: models.store, or ROUNDHOUSE_MODELS_STORE"
                )
            counted.progress.begin(source.label, file.size, done)
            return file.fill(lambda start, end: counted(source.read(start, end)))
    except OSError as error:
        full = "the disk is full" if error.errno in _FULL else str(error)
        raise ModelStoreError(
            f"{store.folder}: {full}; what has come is kept, and another pull goes on from there"
        ) from error
