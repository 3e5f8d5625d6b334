"""The store of model files on this machine.

    blobs/sha256-<digest>          a file, by its contents; beside it the digests of its chunks
    models/<name>/<file>           the same file by hard link: what `model` of a pool names
    models/<name>/model.json       what is known about it; beside it the file's manifest
    partial/<key>                  a file that is being fetched, or was until something ended that

Files appear under `blobs` and `models` by renaming or linking, so that they are whole or not there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from engine.checkpoint.digests import remember
from engine.checkpoint.manifest import CheckpointManifest, describe, write_manifest
from gateway.models.catalogue import CatalogueModel, FileName, Sha256
from gateway.models.chunks import ChunkedFile, sidecar


class ModelStoreError(Exception):
    """A model cannot be fetched, kept or used; the message says why and what to do."""


class StoredModel(msgspec.Struct, frozen=True):
    """A model in the store."""

    name: FileName
    file: FileName
    bytes: int
    sha256: Sha256
    source: str
    """Where the file came from, as `pull` takes it."""
    licence: str = ""


def default_folder() -> Path:
    """Return the folder of the store where no setting names one."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "roundhouse" / "models"


class ModelStore:
    """Finds, adds and removes models in one folder. Several processes may use it at the same time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def models(self) -> list[StoredModel]:
        """Return all models, by name."""
        records = sorted((self.folder / "models").glob("*/model.json"))
        return [model for record in records if (model := _read(record)) is not None]

    def model(self, name: str) -> StoredModel | None:
        """Return the model that has a name."""
        return _read(self._record(name))

    def path(self, model: StoredModel | CatalogueModel) -> Path:
        """Return the path by which a model is used, once it is here."""
        return self._record(model.name).with_name(model.file)

    def holding(self, path: Path) -> StoredModel | None:
        """Return the model that is used by a path."""
        folder = path.absolute().parent
        if folder.parent != (self.folder / "models").absolute():
            return None
        found = self.model(folder.name)
        return found if found is not None and found.file == path.name else None

    def blob(self, sha256: str) -> Path:
        """Return the path of the file that has a digest."""
        return self.folder / "blobs" / f"sha256-{sha256}"

    def partial(self, identity: str) -> Path:
        """Return the path of the unfinished file of a source, known by its digest or anything else that is its own."""
        key = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
        return self.folder / "partial" / key

    @contextlib.contextmanager
    def claimed(self, identity: str, waiting: Callable[[], None]) -> Iterator[Path]:
        """Give the path of an unfinished file to one process at a time; call `waiting` if that is another one.

        Raises:
            ModelStoreError: the store cannot be written.
        """
        partial = self.partial(identity)
        with self._locked(partial.with_name(partial.name + ".lock"), waiting):
            yield partial

    def keep(self, partial: Path, sha256: str) -> None:
        """Make a finished file, whose digest has been compared, a blob."""
        with self._locked():
            blob = self.blob(sha256)
            blob.parent.mkdir(exist_ok=True)
            partial.chmod(0o444)
            sidecar(partial).replace(sidecar(blob))
            partial.replace(blob)
            _synchronise(blob.parent)

    def adopt(self, path: Path, sha256: str) -> None:
        """Make a file that lies elsewhere a blob, without a copy: by a link."""
        with self._locked():
            blob = self.blob(sha256)
            blob.parent.mkdir(exist_ok=True)
            _link(path, blob)

    def add(self, model: StoredModel) -> Path:
        """Name a blob, and return the path by which it is used. A manifest is written beside it.

        Raises:
            ModelStoreError: another model has the name.
        """
        with self._locked():
            old = self.model(model.name)
            if old is not None and old.sha256 != model.sha256:
                raise ModelStoreError(
                    f"the name {model.name} stands for another file (sha256 {old.sha256}, from {old.source}); "
                    f"remove it (roundhouse models rm {model.name}) or choose another name with --name"
                )
            record, path = self._record(model.name), self.path(model)
            record.parent.mkdir(parents=True, exist_ok=True)
            _link(self.blob(model.sha256), path)
            write_manifest(path, self._manifest(model))
            unfinished = record.with_suffix(".new")
            unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(model)))
            unfinished.replace(record)
            _synchronise(record.parent)
        remember(path, model.sha256)
        return path

    def remove(self, name: str) -> int:
        """Remove a model, and its file unless another model has the same; return the bytes that this freed.

        Raises:
            ModelStoreError: there is none.
        """
        with self._locked():
            model = self.model(name)
            if model is None:
                raise ModelStoreError(f"the store has no model {name}; see: roundhouse models list")
            shutil.rmtree(self._record(name).parent)
            if any(other.sha256 == model.sha256 for other in self.models()):
                return 0
            blob = self.blob(model.sha256)
            linked = blob.is_symlink() or (blob.exists() and blob.stat().st_nlink > 1)
            blob.unlink(missing_ok=True)
            sidecar(blob).unlink(missing_ok=True)
            return 0 if linked else model.bytes

    def reopen(self, sha256: str, partial: Path) -> None:
        """Take a damaged blob back to where it was fetched, so that what is damaged can be fetched again.

        Models that have it lose their file until then.
        """
        with self._locked():
            blob = self.blob(sha256)
            for model in self.models():
                if model.sha256 == sha256:
                    self.path(model).unlink(missing_ok=True)
            if blob.is_symlink() or not sidecar(blob).exists():  # somebody else's file, or nothing known of its parts
                blob.unlink(missing_ok=True)
            elif blob.exists():
                blob.chmod(0o644)
                sidecar(blob).replace(sidecar(partial))
                blob.replace(partial)

    def discard(self, partial: Path) -> None:
        """Remove an unfinished file."""
        partial.unlink(missing_ok=True)
        sidecar(partial).unlink(missing_ok=True)

    def free(self) -> int:
        """Return the bytes that are free where the store is or will be."""
        there = next(each for each in (self.folder, *self.folder.absolute().parents) if each.exists())
        return shutil.disk_usage(there).free

    def _manifest(self, model: StoredModel) -> CheckpointManifest:
        """Return the manifest of a model's file: of digests that it was fetched with, or else of what is read."""
        blob = self.blob(model.sha256)
        if sidecar(blob).exists():
            with ChunkedFile(blob, model.bytes, read_only=True) as file:
                return file.manifest(model.file)
        manifest = describe(blob)
        return msgspec.structs.replace(manifest, files={model.file: manifest.files[blob.name]})

    def _record(self, name: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", name):
            raise ModelStoreError(f"{name!r} is no name of a model; names have letters, digits and . _ + -")
        return self.folder / "models" / name / "model.json"

    @contextlib.contextmanager
    def _locked(self, path: Path | None = None, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        path = path or self.folder / "lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("w")
        except OSError as error:
            raise ModelStoreError(
                f"the store {self.folder} cannot be written ({error.strerror}); name another folder: models.store, "
                "or ROUNDHOUSE_MODELS_STORE"
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _read(record: Path) -> StoredModel | None:
    try:
        return msgspec.json.decode(record.read_bytes(), type=StoredModel)
    except (OSError, msgspec.DecodeError):
        return None


def _link(file: Path, path: Path) -> None:
    """Put `path` in place of what is there, as a hard link to `file`, or a symbolic one to another file system."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    try:
        os.link(file.resolve(), temporary)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
            raise
        temporary.symlink_to(file.resolve())
    temporary.replace(path)
    temporary.unlink(missing_ok=True)  # a rename onto another name of the same file does nothing


def _synchronise(folder: Path) -> None:
    """Have the names in a folder survive a loss of power."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
