"""Plans for the bodies that read adapters where they lie: tables that say so, and which rows have which adapter.

A layout becomes numbers once, the set of adapters of a step when it changes, and the rows once per step.
`kernels/csrc/cpu/lora.h` describes the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from kernels.lora.layout import EMBEDDING, LoraAdapter, LoraLayout, LoraSite

Ints = npt.NDArray[np.int64]

_numbers: dict[str, int] = {}
"""Of the sites of all layouts, by name."""
_described: WeakKeyDictionary[LoraLayout, tuple[Ints, int]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False, slots=True)
class LoraTables:
    """A set of adapters as numbers."""

    adapters: dict[LoraAdapter, int]
    """What the segments call them."""
    table: torch.Tensor
    ranks: int
    """Most that any of them has at one site, in all parts."""

    @classmethod
    def of(cls, adapters: Iterable[LoraAdapter], dtype: torch.dtype) -> LoraTables:
        """`dtype` is the arena's."""
        numbers = {adapter: number for number, adapter in enumerate(adapters)}
        pieces: list[Ints] = [np.empty((len(numbers), 2), np.int64)]
        heads, end, ranks = pieces[0], 2 * len(numbers), 0
        begins: dict[LoraLayout, int] = {}
        for adapter, number in numbers.items():
            if adapter.layout not in begins:
                layout, most = _describe(adapter.layout, dtype)
                begins[adapter.layout], ranks = end, max(ranks, most)
                pieces.append(layout)
                end += len(layout)
            heads[number] = begins[adapter.layout], end
            pieces.append(adapter.sectors.numpy())
            end += len(adapter.sectors)
        return cls(numbers, torch.from_numpy(np.concatenate([piece.reshape(-1) for piece in pieces])), ranks)


@dataclass(frozen=True, eq=False, slots=True)
class TablePlan:
    """What those bodies need to know of a batch."""

    arena: torch.Tensor
    tables: LoraTables
    segments: torch.Tensor
    """Their number, (adapter, first row, rows, 0) for each, and the rows of all."""
    scratch: torch.Tensor
    """What the rows are between the two products, in fp32."""

    def reaches(self, site: str) -> bool:
        """Whether any adapter has something for a layer."""
        return any(site in adapter.layout.sites for adapter in self.tables.adapters)


def plan_rows(
    arena: torch.Tensor, tables: LoraTables, adapters: Sequence[LoraAdapter | None], counts: Ints
) -> TablePlan | None:
    """Plan a batch whose row i has `counts[i]` tokens for `adapters[i]`, all of which the tables have; None: only base.

    Rows of an adapter keep their order. They come in the order of `tables`, which the results do not depend on.
    """
    base = len(tables.adapters)
    owners = np.array([base if adapter is None else tables.adapters[adapter] for adapter in adapters], np.int64)
    if len(owners) != counts.sum():
        owners = owners.repeat(counts)
    order = owners.argsort(kind="stable")
    sizes = np.bincount(owners, minlength=base + 1)[:base]
    rows = int(sizes.sum())
    if rows == 0:
        return None
    (present,) = sizes.nonzero()
    segments = np.zeros(1 + 4 * len(present) + rows, np.int64)
    segments[0] = len(present)
    fields = segments[1 : 1 + 4 * len(present)].reshape(-1, 4)
    fields[:, 0], fields[:, 2] = present, sizes[present]
    fields[1:, 1] = fields[:-1, 2].cumsum()
    segments[1 + 4 * len(present) :] = order[:rows]
    return TablePlan(arena, tables, torch.from_numpy(segments), torch.empty(rows * tables.ranks))


def site_number(site: str) -> int:
    """What the tables call a site."""
    return _numbers.setdefault(site, len(_numbers))


def _describe(layout: LoraLayout, dtype: torch.dtype) -> tuple[Ints, int]:
    """A layout as numbers, and the most ranks of a site."""
    found = _described.get(layout)
    if found is None:
        found = _described[layout] = _encode(layout, torch.float32.itemsize // dtype.itemsize)
    return found


def _encode(layout: LoraLayout, width: int) -> tuple[Ints, int]:
    """`width`: elements of the arena in a number of a vector."""
    sites = [(site_number(name), site, -1) for name, site in layout.sites.items()]
    if layout.embedding is not None:
        sites.append((site_number(EMBEDDING), layout.embedding.site, layout.embedding.rows))
    numbers: list[int] = [0] * (2 + max((number for number, _, _ in sites), default=-1))
    numbers[0] = len(numbers) - 1
    most = 0
    for number, site, rows in sites:
        numbers[1 + number] = len(numbers)
        spans = list(_spans(site))
        ranks = sum(rank for _, _, rank, _, _ in spans)
        scale, offset = (
            -1 if vector is None else layout.factors + width * vector for vector in (site.scale, site.offset)
        )
        numbers += (site.width, site.columns, site.experts, scale, offset, rows, ranks, len(spans))
        numbers += (number for span in spans for number in span)
        most = max(most, ranks)
    return np.array(numbers, np.int64), most


def _spans(site: LoraSite) -> Iterable[tuple[int, int, int, int, int]]:
    """Its parts; where the whole output is scaled or moved, also the columns between them, without a rank."""
    end = 0
    affine = site.scale is not None or site.offset is not None
    for part in site.parts:
        if affine and part.begin > end:
            yield end, part.begin, 0, 0, 0
        yield part.begin, part.end, part.rank, part.down, part.up
        end = part.end
    if affine and end < site.columns:
        yield end, site.columns, 0, 0, 0
