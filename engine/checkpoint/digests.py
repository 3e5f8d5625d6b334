"""SHA-256 digests of files that hold weights, remembered so that a later start need not read them again.

A digest is remembered for the device, inode, size and both times of a file. The kernel sets the second one (ctime)
whenever contents or attributes change, so that a file that was changed and given its old time back is read again. What
a failing disk changes has no times: `roundhouse models verify` and `roundhouse doctor` read every byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import msgspec

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.gguf.parts import parts_of
from engine.checkpoint.manifest import manifest_path

_READ = 1 << 22
"""Bytes read at a time."""


class _Remembered(msgspec.Struct, frozen=True):
    size: int
    mtime: int
    ctime: int
    sha256: str


def memory() -> Path:
    """Return the folder in which this user's processes remember digests."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "roundhouse" / "digests"


def remembered(path: Path) -> str | None:
    """Return the digest of a file that has not changed since it was computed; None if it is not known."""
    found = path.stat()
    try:
        entry = msgspec.json.decode(_entry(found).read_bytes(), type=_Remembered)
    except (OSError, msgspec.DecodeError):
        return None
    times = (entry.size, entry.mtime, entry.ctime)
    return entry.sha256 if times == (found.st_size, found.st_mtime_ns, found.st_ctime_ns) else None


def remember(path: Path, sha256: str) -> None:
    """Remember the digest of a file as it is now. Where nothing can be written, the next start reads the file again."""
    found = path.stat()
    entry = _entry(found)
    with contextlib.suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=entry.parent, delete=False) as file:
            file.write(msgspec.json.encode(_Remembered(found.st_size, found.st_mtime_ns, found.st_ctime_ns, sha256)))
        os.replace(file.name, entry)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's contents; read only if it is not remembered."""
    if known := remembered(path):
        return known
    before = path.stat()
    digest = read_digest(path)
    if _identity(path.stat()) == _identity(before):
        remember(path, digest)
    return digest


def read_digest(path: Path) -> str:
    """Return the SHA-256 of a file's contents, and read all of them."""
    sha = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_READ):
            sha.update(block)
    return sha.hexdigest()


def checkpoint_digest(path: Path, *, read: bool = False) -> str:
    """Return the digest of a checkpoint: a file's, or a folder's as `LC_ALL=C; sha256sum * | sha256sum` computes it.

    A split model, named by its first file, has that of all its files, as `sha256sum NAME-*-of-COUNT.gguf | sha256sum`.

    Args:
        read: read every byte, whatever is remembered.
    """
    of_file = read_digest if read else file_digest
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
    elif (files := parts_of(path)) == [path]:
        return of_file(path)
    listed = "".join(f"{of_file(each)}  {each.name}\n" for each in files)
    return hashlib.sha256(listed.encode()).hexdigest()


def check_digest(path: Path, sha256: str, *, read: bool = False, manifest: bool = True) -> None:
    """Check that a checkpoint has a digest.

    Args:
        read: read every byte, whatever is remembered.
        manifest: whether the digest may be that of the checkpoint's manifest: then somebody has to `verify` it.

    Raises:
        CheckpointError: the checkpoint has another digest; the message gives both.
        OSError: it cannot be read.
    """
    listing = manifest_path(path)
    if manifest and listing.is_file() and read_digest(listing) == sha256:
        return
    if (found := checkpoint_digest(path, read=read)) != sha256:
        raise CheckpointError(f"{path} has the sha256 {found}, not {sha256}: it was damaged or exchanged")


def _identity(found: os.stat_result) -> tuple[int, int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _entry(found: os.stat_result) -> Path:
    return memory() / f"{found.st_dev}-{found.st_ino}.json"
