"""The weights of adapters on host and device: prepared once as images, copied into sectors of the KV cache's memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

import torch

from engine.adapters.config import AdapterError
from engine.adapters.image import BaseWeight, build_image
from engine.adapters.layout import SiteShape, lay_out, shape
from engine.adapters.manifest import Manifest
from engine.adapters.stand_ins import stand_ins
from engine.adapters.storage import RegistryError
from engine.checkpoint.config import ModelConfig
from kernels import LoraAdapter, LoraLayout

logger = logging.getLogger(__name__)


class AdapterSource(Protocol):
    """Source of adapter versions: `engine.adapters.registry.AdapterRegistry`."""

    def manifest(self, version: str) -> Manifest: ...
    def path(self, version: str) -> Path: ...


@dataclass(frozen=True, slots=True)
class _Image:
    layout: LoraLayout
    sectors: torch.Tensor
    """[n, elements of a sector] image on the host."""


class AdapterBank:
    """Adapters of one model in an arena [sectors, elements]. Implements `engine.adapters.loads.Bank`.

    `prepare` and `install` may run beside steps and each other: they write only memory that is not read yet.
    """

    def __init__(
        self, config: ModelConfig, revision: str, arena: torch.Tensor, base: BaseWeight, source: AdapterSource
    ) -> None:
        """`revision` names the base model's checkpoint and `base` gives its weights."""
        self.sector_bytes = arena.shape[1] * arena.element_size()
        self._config = config
        self._arena = arena
        self._base = base
        self._revision = revision
        self._source = source
        self._lock = threading.Lock()
        self._layouts: WeakValueDictionary[tuple[SiteShape, ...], LoraLayout] = WeakValueDictionary()
        self._images: dict[str, _Image] = {}
        self._adapters: dict[str, LoraAdapter] = {}
        self._written: dict[str, torch.Tensor] = {}
        """Sectors [n] that hold bytes of each version, of a whole copy or of one that has failed."""
        cuda = arena.device.type == "cuda"
        self._stream = torch.cuda.Stream(arena.device) if cuda else None  # type: ignore[no-untyped-call]

    def prepare(self, version: str) -> int:
        """Read, check and pack an adapter on the host; return the sectors that it needs.

        Raises:
            AdapterError: it cannot be served; the message is for the client.
        """
        try:
            manifest, folder = self._source.manifest(version), self._source.path(version)
        except RegistryError as error:
            logger.warning("adapter %s cannot be fetched: %s", version, error)
            raise AdapterError("cannot be fetched from the registry; see the engine's log") from error
        if self._revision not in manifest.bases:
            raise AdapterError("is not for this base model; add it to the registry with this model as its base")
        layout = self._layout(shape(self._config, manifest.targets, manifest.base_biases))
        size = self._arena.shape[1]
        count = -(-layout.elements // size)
        sectors = torch.zeros(count, size, dtype=self._arena.dtype, pin_memory=self._stream is not None)
        build_image(sectors.view(-1), folder, manifest, layout, self._config, self._base)
        with self._lock:
            self._images[version] = _Image(layout, sectors)
        return count

    def install(self, version: str, sectors: Sequence[int]) -> None:
        """Copy a prepared adapter to these sectors; when it returns, steps may use it. If it fails, `remove` it."""
        with self._lock:
            image = self._images[version]
        if len(sectors) != len(image.sectors):
            raise ValueError(f"adapter {version} has {len(image.sectors)} sectors, not {len(sectors)}")
        where = torch.tensor(sectors, device=self._arena.device)
        with self._lock:
            self._written[version] = where  # recorded before the first byte is written
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.default_stream(self._arena.device))  # which zeroed these sectors
        with torch.cuda.stream(self._stream):
            for sector, content in zip(sectors, image.sectors, strict=True):
                self._arena[sector].copy_(content, non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()
        with self._lock:
            self._adapters[version] = LoraAdapter(image.layout, where)

    def remove(self, version: str) -> None:
        """Remove the copy on the device, whole or partly written by a copy that failed.

        It leaves zeros, because KV blocks must be finite and adapters' bytes, read as KV, may not be.
        """
        with self._lock:
            self._adapters.pop(version, None)
            where = self._written.pop(version, None)
        if where is not None:
            if self._stream is not None:  # a copy that has failed may still be writing parts of it
                torch.cuda.default_stream(self._arena.device).wait_stream(self._stream)
            self._arena.index_fill_(0, where, 0)

    def forget(self, version: str) -> None:
        """Drop the copy on the host."""
        with self._lock:
            self._images.pop(version, None)

    def adapter(self, version: str) -> LoraAdapter:
        """Return an adapter that is installed.

        Raises:
            RuntimeError: it is not installed.
        """
        with self._lock:
            found = self._adapters.get(version)
        if found is None:
            raise RuntimeError(f"adapter {version} is not on the device")
        return found

    @contextmanager
    def standing_in(self, sectors: range, most: int) -> Iterator[list[str]]:
        """Install at most `most` stand-ins for adapters in these sectors, which are zeros; yield their names."""
        adapters = {f"stand-in {n}": each for n, each in enumerate(stand_ins(self._config, self._arena, sectors, most))}
        with self._lock:
            self._adapters |= adapters
        try:
            yield list(adapters)
        finally:
            with self._lock:
                for name in adapters:
                    del self._adapters[name]

    def _layout(self, shapes: tuple[SiteShape, ...]) -> LoraLayout:
        """Return the one layout of all adapters of a shape."""
        with self._lock:
            layout = self._layouts.get(shapes)
            if layout is None:
                layout = self._layouts[shapes] = lay_out(shapes, self._arena.dtype)
        return layout
