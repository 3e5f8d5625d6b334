"""The registry of adapters: immutable versions, and public names that point to them.

    objects/<version>/adapter_config.json, adapter_model.safetensors, manifest.json
    names.json

A version is named by its content, is checked before it gets in, and never changes. A name is a pointer that can be
swapped at any time; requests that resolved it before keep the version they got. Names belong to the gateway, versions
are all that an engine sees. See docs/adapters.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from engine.adapters.config import read_config
from engine.adapters.format import CONFIG, MAX_WEIGHTS_BYTES, WEIGHTS, AdapterError, check_adapter, chunks_of, digests
from engine.adapters.gguf import as_folder
from engine.adapters.manifest import Manifest, decode_manifest, encode_manifest
from engine.adapters.storage import Progress, RegistryError, copy_file, open_storage
from engine.adapters.tensors import read_header

__all__ = ["AdapterError", "AdapterRegistry", "EarlierVersion", "Manifest", "NameTaken", "Pointer", "RegistryError"]

MANIFEST = "manifest.json"
NAMES = "names.json"
NAME_PATTERN = r"^[A-Za-z0-9_.:-]{1,128}\Z"
RESERVED = frozenset({"auto", "small", "medium", "large"})
MAX_NAMES = 100_000
MAX_EARLIER = 5
"""Most versions that a name remembers to have led to."""
_MAX_NAMES_BYTES = 128 * 1024 * 1024
_MAX_MANIFEST_BYTES = 64 * 1024 * 1024
_VERSION = re.compile(r"[0-9a-f]{64}")
_ABANDONED_SECONDS = 3600.0
"""Age in seconds from which a staged folder counts as left by a process that has died."""


class NameTaken(RegistryError):
    """The name points to a version already."""


class EarlierVersion(msgspec.Struct, frozen=True):
    """A version that a name led to before."""

    version: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    until: float
    """Time when the name was pointed elsewhere, in seconds since the epoch."""


class Pointer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Target of a public name."""

    version: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    model: str
    """Public name of the base model."""
    tenants: tuple[str, ...] | None = None
    """Tenants that may use the adapter; None is everybody."""
    pinned: bool = False
    """Whether engines keep the adapter loaded."""
    drained: bool = False
    """Whether the adapter takes no new requests; running ones finish."""
    description: str = ""
    updated: float = 0.0
    """Time when the name was pointed here, in seconds since the epoch."""
    earlier: tuple[EarlierVersion, ...] = ()
    """What the name led to before, newest first, since the tenants that may use it last changed."""

    def allows(self, tenant: str) -> bool:
        return self.tenants is None or tenant in self.tenants


class _Names(msgspec.Struct, frozen=True):
    names: dict[Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)], Pointer]
    format: Literal[1] = 1


class AdapterRegistry:
    """A registry at `url`: a folder's path or an address that fsspec knows. Everything here blocks.

    Args:
        cache: folder for files fetched from an object store; `~/.cache/roundhouse/adapters` unless given. It can
            be deleted while nothing runs.
    """

    def __init__(self, url: str, *, cache: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self.url = url
        self._storage = open_storage(url, cache or _default_cache())
        self._clock = clock

    # Versions.

    def add(self, source: Path, base: Path, *, progress: Progress | None = None) -> Manifest:
        """Check an adapter, peft's folder or a GGUF file, against the base model `base`, and store it. Idempotent.

        If it is stored already and was damaged since, it is replaced.

        Raises:
            AdapterError, CheckpointError: it cannot be served, and why; nothing was stored.
            RegistryError: the registry cannot be used.
        """
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(as_folder(source, base))
            read_config(folder / CONFIG)
            read_header(folder / WEIGHTS, max_bytes=MAX_WEIGHTS_BYTES)
            staged = stack.enter_context(self._storage.staging())
            # The copy is checked: nobody can change it in between.
            for name in (CONFIG, WEIGHTS):
                copy_file(folder / name, staged / name, progress)
            manifest = check_adapter(staged, base, progress=progress)
            with self._storage.lock():
                if (known := self._intact(manifest.version)) is not None:
                    return self._add_base(known, manifest)
                (staged / MANIFEST).write_bytes(encode_manifest(manifest))
                self._storage.publish(staged, _object(manifest.version), (CONFIG, WEIGHTS, MANIFEST))
        return manifest

    def manifest(self, version: str) -> Manifest:
        """Return the manifest of a version.

        Raises:
            RegistryError: there is no such version.
        """
        manifest = self._manifest(version) if _VERSION.fullmatch(version) else None
        if manifest is None:
            raise RegistryError(f"no adapter version {version[:64]!r} in {self.url}; see `roundhouse adapter list`")
        return manifest

    def path(self, version: str) -> Path:
        """Return a local folder with the version's files, fetched if need be and verified against the version.

        Raises:
            AdapterError: the files are damaged.
            RegistryError: there is no such version.
        """
        manifest = self.manifest(version)
        return self._storage.local(
            _object(version), (CONFIG, WEIGHTS, MANIFEST), lambda folder: _check_files(folder, manifest)
        )

    def versions(self) -> dict[str, float]:
        """Return all versions, and when each was added, in seconds since the epoch."""
        return {name: made for name, made in self._storage.folders("objects").items() if _VERSION.fullmatch(name)}

    def find(self, beginning: str) -> str:
        """Return the version that begins like this.

        Raises:
            RegistryError: none does, or several do.
        """
        found = [version for version in self.versions() if version.startswith(beginning)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise RegistryError(f"no adapter version begins with {beginning!r}; see `roundhouse adapter list`")
        raise RegistryError(f"{len(found)} adapter versions begin with {beginning!r}; give more of it")

    def prune(self, *, older_than: float) -> list[str]:
        """Delete versions that no name points to and that were added more than `older_than` seconds ago.

        An engine that has one of them loaded keeps serving it; one that has not can no longer load it.
        """
        now = self._clock()
        with self._storage.lock():
            used = {pointer.version for pointer in self.names().values()}
            doomed = [v for v, made in self.versions().items() if v not in used and now - made > older_than]
            for version in doomed:
                self._storage.delete(_object(version))
            for name, made in self._storage.folders("staging").items():
                if now - made > _ABANDONED_SECONDS:
                    self._storage.delete(f"staging/{name}")
        return doomed

    # Names.

    def names(self) -> dict[str, Pointer]:
        """Return all public names with their pointers.

        Raises:
            RegistryError: `names.json` is damaged.
        """
        content = self._storage.read(NAMES, most=_MAX_NAMES_BYTES)
        if content is None:
            return {}
        try:
            return msgspec.json.decode(content, type=_Names).names
        except msgspec.DecodeError as error:
            raise RegistryError(f"{self.url}: {NAMES}: {error}; restore it from a copy") from error

    def stamp(self) -> str | None:
        """Return a value that changes whenever a name does; cheap."""
        return self._storage.stamp(NAMES)

    def resolve(self, name: str) -> Pointer:
        """Return the pointer of a name.

        Raises:
            RegistryError: there is no such name.
        """
        return _existing(self.names(), name)

    def point(
        self,
        name: str,
        version: str,
        *,
        model: str,
        tenants: tuple[str, ...] | None = None,
        pinned: bool = False,
        description: str = "",
        new: bool = False,
    ) -> None:
        """Point a name to a version, atomically for all readers.

        Args:
            new: the name must not exist yet.

        Raises:
            NameTaken: it exists.
            RegistryError: the name cannot be used, or there is no such version.
        """
        if not re.match(NAME_PATTERN, name):
            raise RegistryError(f"{name!r} cannot be a name: use 1 to 128 of A-Z a-z 0-9 _ . : -")
        if name in RESERVED or name == model:
            raise RegistryError(f"{name!r} is the name of a model or tier; choose another one")
        pointer = Pointer(version, model, tenants, pinned, description=description, updated=self._clock())
        with self._changing() as names:
            if new and name in names:
                raise NameTaken(f"an adapter is named {name!r} already")
            self.manifest(version)
            names[name] = _after(names.get(name), pointer)

    def swap(self, name: str, version: str) -> Pointer:
        """Point an existing name to another version; return its old pointer.

        Raises:
            RegistryError: there is no such name or version.
        """
        with self._changing() as names:
            self.manifest(version)
            before = _existing(names, name)
            names[name] = _after(before, msgspec.structs.replace(before, version=version, updated=self._clock()))
        return before

    def pin(self, name: str, pinned: bool = True) -> None:
        """Keep the adapter loaded in engines, or no longer.

        Raises:
            RegistryError: there is no such name.
        """
        with self._changing() as names:
            names[name] = msgspec.structs.replace(_existing(names, name), pinned=pinned)

    def remove(self, name: str) -> None:
        """Forget a name; its version stays until it is pruned.

        Raises:
            RegistryError: there is no such name.
        """
        self.edit(name, lambda pointer: None)

    def edit(self, name: str, change: Callable[[Pointer], Pointer | None]) -> Pointer | None:
        """Replace a pointer by the result of `change`, or forget the name if that is None, under the registry's lock.

        Raises:
            RegistryError: there is no such name or version; and whatever `change` raises, which then changes nothing.
        """
        with self._changing() as names:
            before = _existing(names, name)
            after = change(before)
            if after is None:
                del names[name]
                return None
            if after.version != before.version:
                self.manifest(after.version)
            names[name] = _after(before, msgspec.structs.replace(after, updated=self._clock()))
            return names[name]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Pointer]]:
        """Yield all names for the body to change; they are written at its end unless it raises."""
        with self._storage.lock():
            names = self.names()
            yield names
            if len(names) > MAX_NAMES:
                raise RegistryError(f"{self.url} has {MAX_NAMES:,} names, which is the most; remove some")
            content = msgspec.json.encode(_Names(names), order="sorted")
            self._storage.write(NAMES, msgspec.json.format(content, indent=1))

    def _manifest(self, version: str) -> Manifest | None:
        content = self._storage.read(f"{_object(version)}/{MANIFEST}", most=_MAX_MANIFEST_BYTES)
        if content is None:
            return None
        try:
            manifest = decode_manifest(content)
            if manifest.version != version:
                raise ValueError(f"it is that of {manifest.version}")
            return manifest
        except ValueError as error:
            raise RegistryError(f"{self.url}: {_object(version)}/{MANIFEST}: {error}; add the adapter again") from error

    def _intact(self, version: str) -> Manifest | None:
        """Return the manifest of a version that is stored; one that is damaged is deleted."""
        try:
            manifest = self._manifest(version)
            if manifest is not None:
                self.path(version)
            return manifest
        except (AdapterError, RegistryError):
            self._storage.delete(_object(version))
            return None

    def _add_base(self, known: Manifest, checked: Manifest) -> Manifest:
        """Record that a stored version fits one more base."""
        bases = tuple(dict.fromkeys((*known.bases, *checked.bases)))
        if bases == known.bases:
            return known
        extended = msgspec.structs.replace(known, bases=bases)
        self._storage.write(f"{_object(known.version)}/{MANIFEST}", encode_manifest(extended))
        return extended


def _after(before: Pointer | None, after: Pointer) -> Pointer:
    """Return a name's new pointer with what it led to before; whoever else may use it now is not shown that."""
    if before is None or before.tenants != after.tenants:
        return msgspec.structs.replace(after, earlier=())
    if before.version == after.version:
        return msgspec.structs.replace(after, earlier=before.earlier)
    others = (each for each in before.earlier if each.version != after.version)
    earlier = (EarlierVersion(before.version, after.updated), *others)
    return msgspec.structs.replace(after, earlier=earlier[:MAX_EARLIER])


def _existing(names: Mapping[str, Pointer], name: str) -> Pointer:
    if name not in names:
        raise RegistryError(f"no adapter is named {name!r}; see `roundhouse adapter list`")
    return names[name]


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "roundhouse" / "adapters"


def _object(version: str) -> str:
    return f"objects/{version}"


def _check_files(folder: Path, manifest: Manifest) -> None:
    """Raises: AdapterError: files are missing or others. Clients read it, so it names no folder."""
    try:
        if hashlib.sha256((folder / CONFIG).read_bytes()).hexdigest() != manifest.config_sha256:
            raise AdapterError(f"{CONFIG} is damaged")
        _, canonical = read_config(folder / CONFIG)
        if digests(canonical, folder / WEIGHTS) != (manifest.version, manifest.weights_sha256):
            raise AdapterError(_damage(folder / WEIGHTS, manifest))
    except FileNotFoundError as error:  # not, or only in part, copied here
        raise _refused(f"{Path(error.filename).name} is missing", manifest) from error
    except (AdapterError, OSError) as error:
        raise _refused(getattr(error, "strerror", None) or str(error), manifest) from error


def _damage(weights: Path, manifest: Manifest) -> str:
    """Say which bytes are not those of a manifest."""
    for chunk, digest in zip_longest(chunks_of(weights), manifest.weights_chunks):
        if chunk is None:
            return f"{WEIGHTS} was cut off"
        if chunk.digest() != digest:
            return f"{WEIGHTS} is damaged: bytes {chunk.begin:,} to {chunk.end - 1:,}"
    return f"{MANIFEST} is wrong"


def _refused(problem: str, manifest: Manifest) -> AdapterError:
    return AdapterError(f"{problem} in version {manifest.version}; add the adapter again")
