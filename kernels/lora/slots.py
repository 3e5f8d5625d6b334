"""Copies of the adapters of a step, side by side, so that batched products can run over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from kernels.lora.layout import LoraAdapter, LoraLayout, LoraPart, LoraSite, read_image


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of a site in all slots; ranks [low, high) of those of the whole site are its own."""

    begin: int
    end: int
    low: int
    high: int
    up: torch.Tensor
    """[slots, rank, end - begin], or [slots, experts, rank, end - begin]."""
    down: torch.Tensor | None
    """[slots, experts, rank, width], for experts only."""


@dataclass(frozen=True, slots=True)
class Span:
    """Pieces whose columns are neighbours, [begin, end) in all."""

    begin: int
    end: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class SlotSite:
    """The weights of one site in all slots."""

    down: torch.Tensor | None
    """[slots, ranks of all parts, width]; None for experts and the embedding, and where there are no parts."""
    spans: tuple[Span, ...]
    scale: torch.Tensor | None
    """[slots, columns] in fp32, as `offset`."""
    offset: torch.Tensor | None
    columns: int


class LoraSlots:
    """The adapters of one layout that the step needs, in slots from 0 on, without gaps."""

    def __init__(self, layout: LoraLayout, arena: torch.Tensor) -> None:
        self.layout = layout
        self.arena = arena
        self.dtype = torch.float32 if arena.device.type == "cpu" else arena.dtype
        """Of the copies."""
        self.slot: dict[LoraAdapter, int] = {}
        self._storage: tuple[torch.Tensor, ...] = ()
        self._resize(1)

    def hold(self, adapters: Mapping[LoraAdapter, None]) -> None:
        """Have exactly these adapters, one at least. Copies what is new and fills the gaps that others left."""
        if adapters.keys() == self.slot.keys():
            return
        count, capacity = len(adapters), len(self._factors)
        self.slot = {adapter: slot for adapter, slot in self.slot.items() if adapter in adapters}
        if count > capacity or count <= capacity // 4:
            self._resize(1 << (count - 1).bit_length())
        taken = set(self.slot.values())
        free = iter([slot for slot in range(count) if slot not in taken])
        for adapter, slot in self.slot.items():
            if slot >= count:
                self.slot[adapter] = target = next(free)
                for tensor in self._storage:
                    tensor[target] = tensor[slot]
        for adapter in adapters:
            if adapter not in self.slot:
                self.slot[adapter] = target = next(free)
                self._load(adapter, target)

    def _resize(self, capacity: int) -> None:
        """Make room for `capacity` adapters; those that are here move to the first slots."""
        layout, device = self.layout, self.arena.device
        pages = -(-layout.elements // self.arena.shape[1]) if layout.embedding else 0
        storage = (
            torch.empty(capacity, layout.factors, dtype=self.dtype, device=device),
            torch.empty(capacity, layout.vectors, dtype=torch.float32, device=device),
            torch.empty(capacity, pages, dtype=torch.int64, device=device),
        )
        for target, (adapter, slot) in enumerate(self.slot.items()):
            for new, old in zip(storage, self._storage, strict=True):
                new[target] = old[slot]
            self.slot[adapter] = target
        self._storage = storage
        self._factors, self._vectors, self.pages = storage
        self.sites = {name: self._site(site) for name, site in layout.sites.items()}
        self.embedding = None if layout.embedding is None else self._site(layout.embedding.site)

    def _load(self, adapter: LoraAdapter, slot: int) -> None:
        factors, vectors = self.layout.factors, self.layout.vectors
        width = torch.float32.itemsize // self.arena.element_size()
        image = read_image(self.arena, adapter, 0, factors + width * vectors)
        self._factors[slot] = image[:factors]
        self._vectors[slot] = image[factors:].view(torch.float32)
        if self.layout.embedding:
            self.pages[slot] = adapter.sectors

    def _site(self, site: LoraSite) -> SlotSite:
        down = None
        if site.parts and site.experts == 1 and site.width:
            down = self._view(site.parts[0].down, sum(part.rank for part in site.parts), site.width)
        scale, offset = (self._vector(begin, site.columns) for begin in (site.scale, site.offset))
        return SlotSite(down, tuple(_spans(self._pieces(site))), scale, offset, site.columns)

    def _pieces(self, site: LoraSite) -> Iterable[Piece]:
        low = 0
        for part in site.parts:
            yield Piece(part.begin, part.end, low, low + part.rank, *self._factors_of(site, part))
            low += part.rank

    def _factors_of(self, site: LoraSite, part: LoraPart) -> tuple[torch.Tensor, torch.Tensor | None]:
        columns = part.end - part.begin
        if site.experts == 1:
            return self._view(part.up, part.rank, columns), None
        up = self._view(part.up, site.experts, part.rank, columns)
        return up, self._view(part.down, site.experts, part.rank, site.width)

    def _view(self, begin: int, *shape: int) -> torch.Tensor:
        size = torch.Size(shape)
        return self._factors[:, begin : begin + size.numel()].view(-1, *size)

    def _vector(self, begin: int | None, columns: int) -> torch.Tensor | None:
        return None if begin is None else self._vectors[:, begin : begin + columns]


def _spans(pieces: Iterable[Piece]) -> Iterable[Span]:
    run: list[Piece] = []
    for piece in pieces:
        if run and run[-1].end != piece.begin:
            yield Span(run[0].begin, run[-1].end, tuple(run))
            run = []
        run.append(piece)
    if run:
        yield Span(run[0].begin, run[-1].end, tuple(run))
