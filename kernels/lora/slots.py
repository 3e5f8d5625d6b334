"""Copies of the adapters of a step, side by side, so that one product can serve several of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from kernels.lora.layout import EMBEDDING, LoraAdapter, LoraLayout, LoraPart, LoraSite, read_image

_MAX_VIEWS = 4096


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of a site."""

    begin: int
    end: int
    low: int
    high: int
    """Its ranks among those of the site's parts together."""
    down: torch.Tensor | None
    """A^T [experts, width, rank], for experts only."""
    up: torch.Tensor
    """B [rank, end - begin], with a dimension for lanes or experts in front."""


@dataclass(frozen=True, slots=True)
class Span:
    """Pieces whose columns are neighbours, [begin, end) in all."""

    begin: int
    end: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Views:
    """One site's weights in neighbouring slots (lanes), or in a single one."""

    down: torch.Tensor | None
    """A^T [width, ranks of all parts], with a dimension for lanes in front; None for experts and the embedding."""
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
        self.slot: dict[LoraAdapter, int] = {}
        self._storage: tuple[torch.Tensor, ...] = ()
        self._cached: dict[tuple[str, int, int], Views] = {}
        self._sites = dict(layout.sites)
        if layout.embedding is not None:
            self._sites[EMBEDDING] = layout.embedding.site
        # Products of few rows, as batched ones are, are faster in fp32 on the CPU.
        self.batched_dtype = torch.float32 if arena.device.type == "cpu" else arena.dtype
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
                target = next(free)
                for tensor in self._storage:
                    tensor[target] = tensor[slot]
                self.slot[adapter] = target
        for adapter in adapters:
            if adapter not in self.slot:
                target = next(free)
                self._load(adapter, target)
                self.slot[adapter] = target

    def batch(self, site: str, first: int, lanes: int) -> Views | None:
        """A site in slots [first, first + lanes), for batched products; None if the layout does not have it."""
        return self._view(site, first, lanes)

    def single(self, site: str, slot: int) -> Views | None:
        """A site in one slot, in the arena's type."""
        return self._view(site, slot, 0)

    def _resize(self, capacity: int) -> None:
        """Make room for `capacity` adapters; those that are here move to the first slots."""
        layout, arena = self.layout, self.arena
        pages = -(-layout.elements // arena.shape[1]) if layout.embedding else 0
        shapes = [(layout.factors, arena.dtype), (layout.vectors, torch.float32), (pages, torch.int64)]
        if arena.dtype != self.batched_dtype:
            shapes.append((layout.factors, self.batched_dtype))
        storage = tuple(torch.empty(capacity, size, dtype=dtype, device=arena.device) for size, dtype in shapes)
        for target, (adapter, slot) in enumerate(self.slot.items()):
            for new, old in zip(storage, self._storage, strict=True):
                new[target] = old[slot]
            self.slot[adapter] = target
        self._storage = storage
        self._factors, self._vectors, self.pages, *_ = storage
        self._batched = storage[-1] if arena.dtype != self.batched_dtype else self._factors
        self._cached.clear()

    def _load(self, adapter: LoraAdapter, slot: int) -> None:
        factors, vectors = self.layout.factors, self.layout.vectors
        width = torch.float32.itemsize // self.arena.element_size()
        image = read_image(self.arena, adapter, 0, factors + width * vectors)
        self._factors[slot] = image[:factors]
        self._vectors[slot] = image[factors:].view(torch.float32)
        if self._batched is not self._factors:
            self._batched[slot] = self._factors[slot]
        if self.layout.embedding:
            self.pages[slot] = adapter.sectors

    def _view(self, name: str, first: int, lanes: int) -> Views | None:
        site = self._sites.get(name)
        if site is None:
            return None
        found = self._cached.get((name, first, lanes))
        if found is None:
            if len(self._cached) >= _MAX_VIEWS:
                self._cached.clear()
            found = self._cached[name, first, lanes] = self._build(site, first, lanes)
        return found

    def _build(self, site: LoraSite, first: int, lanes: int) -> Views:
        memory = self._batched[first : first + lanes] if lanes else self._factors[first]

        def matrix(begin: int, *shape: int) -> torch.Tensor:
            size = torch.Size(shape)
            return memory[..., begin : begin + size.numel()].view(*memory.shape[:-1], *size)

        def pieces() -> Iterator[Piece]:
            low = 0
            for part in site.parts:
                yield Piece(part.begin, part.end, low, low + part.rank, *factors(part))
                low += part.rank

        def factors(part: LoraPart) -> tuple[torch.Tensor | None, torch.Tensor]:
            columns = part.end - part.begin
            if site.experts == 1:
                return None, matrix(part.up, part.rank, columns)
            down = matrix(part.down, site.experts, part.rank, site.width)
            return down.mT, matrix(part.up, site.experts, part.rank, columns)

        down = None
        if site.parts and site.experts == 1 and site.width:
            down = matrix(site.parts[0].down, sum(part.rank for part in site.parts), site.width).mT
        scale, offset = (
            None if begin is None else self._vectors[:, begin : begin + site.columns]
            for begin in (site.scale, site.offset)
        )
        return Views(down, tuple(_spans(pieces())), scale, offset, site.columns)


def _spans(pieces: Iterator[Piece]) -> Iterator[Span]:
    run: list[Piece] = []
    for piece in pieces:
        if run and run[-1].end != piece.begin:
            yield Span(run[0].begin, run[-1].end, tuple(run))
            run = []
        run.append(piece)
    if run:
        yield Span(run[0].begin, run[-1].end, tuple(run))
