"""Stores a registry's files: in a folder of this machine, or in an object store through fsspec.

Both make a file or a folder appear whole or not at all. A folder has a lock as well, so that several processes can
change it; an object store has none, and of two changes at the same time the later one wins.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import fsspec

_COPY = 4 * 1024 * 1024
Progress = Callable[[int], object]
"""Called repeatedly with the number of further bytes that are done."""


class RegistryError(Exception):
    """The registry cannot be used, or cannot do what was asked; the message says why and what to do."""


class Storage(Protocol):
    """Reads and writes files; names are paths below the root, with slashes."""

    def read(self, name: str, *, most: int) -> bytes | None:
        """Read a file's content; None if there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Replace a file, atomically."""

    def stamp(self, name: str) -> str | None:
        """Return a value that changes whenever the file is replaced; cheap."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Lock to hold while something is read, changed and written."""

    def staging(self) -> contextlib.AbstractContextManager[Path]:
        """Make an empty local folder, removed afterwards unless it was published."""

    def publish(self, folder: Path, name: str, files: Sequence[str]) -> None:
        """Make a staged folder appear under a name that is not taken; the last of `files` makes it complete."""

    def local(self, name: str, files: Sequence[str], check: Callable[[Path], None]) -> Path:
        """Return a local folder with these files; `check` raises ValueError unless they are the right ones. They are
        fetched and checked only once, and fetched again if they were damaged here."""

    def folders(self, name: str) -> dict[str, float]:
        """List the folders below a name, and when they were made, in seconds since the epoch."""

    def delete(self, name: str) -> None:
        """Delete a file or folder, with all that is in it."""


def open_storage(url: str, cache: Path) -> Storage:
    """Open the storage at `url`: a folder's path, or an address that fsspec knows, such as s3://bucket/adapters.

    Args:
        cache: folder for files fetched from an object store.

    Raises:
        RegistryError: the address is of a kind that is not installed.
    """
    if "://" not in url or url.startswith("file://"):
        return FolderStorage(Path(url.removeprefix("file://")))
    try:
        files, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise RegistryError(f"adapter registry {url}: {error}") from error
    return ObjectStorage(files, root, cache)


class FolderStorage:
    """A folder that several processes of this machine may share."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._checked: set[str] = set()

    def read(self, name: str, *, most: int) -> bytes | None:
        try:
            return _bounded((self._root / name).read_bytes(), name, most)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RegistryError(f"adapter registry {self._root} cannot be read: {error.strerror}") from error

    def write(self, name: str, content: bytes) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync(path.parent)

    def stamp(self, name: str) -> str | None:
        try:
            status = (self._root / name).stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RegistryError(f"adapter registry {self._root} cannot be read: {error.strerror}") from error
        return f"{status.st_ino}.{status.st_mtime_ns}.{status.st_size}"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            file = (self._root / ".lock").open("w")
        except OSError as error:
            raise RegistryError(f"adapter registry {self._root} cannot be written: {error.strerror}") from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        with _staging(self._root / "staging") as folder:
            yield folder

    def publish(self, folder: Path, name: str, files: Sequence[str]) -> None:
        for file in files:
            _sync(folder / file)
        target = self._root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(target)
        _sync(target.parent)

    def local(self, name: str, files: Sequence[str], check: Callable[[Path], None]) -> Path:
        folder = self._root / name
        if name not in self._checked:
            check(folder)
            self._checked.add(name)
        return folder

    def folders(self, name: str) -> dict[str, float]:
        found: dict[str, float] = {}
        with contextlib.suppress(FileNotFoundError):
            for each in (self._root / name).iterdir():
                with contextlib.suppress(FileNotFoundError):  # deleted in between
                    found[each.name] = each.stat().st_mtime
        return found

    def delete(self, name: str) -> None:
        path = self._root / name
        if path.is_dir():
            # Renamed first, so that no reader finds half of it.
            doomed = self._root / "staging" / secrets.token_hex(8)
            doomed.parent.mkdir(exist_ok=True)
            path.rename(doomed)
            shutil.rmtree(doomed)
        else:
            path.unlink(missing_ok=True)
        self._checked.discard(name)


class ObjectStorage:
    """Any store that fsspec reaches. Writing one object is atomic there; a folder is complete with its last file."""

    _lock = threading.RLock()
    """Keeps this process's threads apart; nothing keeps other machines apart."""

    def __init__(self, files: Any, root: str, cache: Path) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self._cache = cache.absolute()
        self._checked: set[str] = set()

    def read(self, name: str, *, most: int) -> bytes | None:
        with contextlib.suppress(FileNotFoundError), self._reaching():
            return _bounded(self._files.cat_file(self._path(name)), name, most)
        return None

    def write(self, name: str, content: bytes) -> None:
        with self._reaching():
            self._files.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(self._path(name), content)

    def stamp(self, name: str) -> str | None:
        with contextlib.suppress(FileNotFoundError), self._reaching():
            self._files.invalidate_cache()
            return str(self._files.ukey(self._path(name)))
        return None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        with self._lock:
            yield

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        with _staging(self._cache / "staging") as folder:
            yield folder

    def publish(self, folder: Path, name: str, files: Sequence[str]) -> None:
        with self._reaching():
            self._files.makedirs(self._path(name), exist_ok=True)
            for file in files:
                self._files.put_file(str(folder / file), self._path(f"{name}/{file}"))

    def local(self, name: str, files: Sequence[str], check: Callable[[Path], None]) -> Path:
        target = self._cache / name
        if name in self._checked and target.is_dir():
            return target
        try:
            present = target.is_dir()
            if present:
                check(target)
        except ValueError:
            shutil.rmtree(target)
            present = False
        if not present:
            self._fetch(name, files, check, target)
        self._checked.add(name)
        return target

    def _fetch(self, name: str, files: Sequence[str], check: Callable[[Path], None], target: Path) -> None:
        with self.staging() as folder:
            with self._reaching():
                for file in files:
                    self._files.get_file(self._path(f"{name}/{file}"), str(folder / file))
            check(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                folder.rename(target)
            except OSError as error:
                if not target.is_dir():  # else another process was faster
                    raise RegistryError(f"{target} cannot be written: {error.strerror}") from error

    def folders(self, name: str) -> dict[str, float]:
        with contextlib.suppress(FileNotFoundError), self._reaching():
            self._files.invalidate_cache()
            found = self._files.ls(self._path(name), detail=False)
            return {path.rstrip("/").rpartition("/")[2]: self._made(path) for path in found}
        return {}

    def delete(self, name: str) -> None:
        with self._reaching():
            self._files.rm(self._path(name), recursive=True)
        self._checked.discard(name)

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        """Turn exceptions of backends, which come from their own libraries and share no class, into RegistryError."""
        try:
            yield
        except (FileNotFoundError, RegistryError):
            raise
        except Exception as error:
            raise RegistryError(f"adapter registry {self._root}: {type(error).__name__}: {error}") from error

    def _made(self, path: str) -> float:
        """Return when the newest file of a folder was written: object stores know no age of folders."""
        return max((self._files.modified(file).timestamp() for file in self._files.find(path)), default=0.0)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def copy_file(source: Path, target: Path, progress: Progress | None = None) -> None:
    """Copy a file's content only."""
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(_COPY):
            writer.write(chunk)
            if progress is not None:
                progress(len(chunk))


@contextlib.contextmanager
def _staging(parent: Path) -> Iterator[Path]:
    folder = parent / secrets.token_hex(8)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise RegistryError(f"adapter registry: {parent} cannot be written: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _bounded(content: bytes, name: str, most: int) -> bytes:
    if len(content) > most:
        raise RegistryError(f"adapter registry: {name} has more than {most:,} bytes; it was not written by Roundhouse")
    return content


def _sync(path: Path) -> None:
    """Make a file's content or a folder's entries survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
