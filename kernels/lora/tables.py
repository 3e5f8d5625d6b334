"""Plans for the built bodies: tables of where the adapters of a step lie, and segments of rows for each adapter.

A layout becomes numbers once, the set of adapters of a step when it changes, and the rows once per step.
`kernels/csrc/lora_tables.h` describes the numbers of adapters; how rows are listed, `kernels/csrc/cpu/lora.h` and
`kernels/csrc/include/roundhouse/lora.h`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from kernels import library
from kernels.lora.layout import EMBEDDING, LoraAdapter, LoraLayout, LoraSite

Ints = npt.NDArray[np.int64]

SPLIT = 1024
"""Inputs that a CUDA block sums up: kLoraSplit in kernels/csrc/include/roundhouse/lora.h."""
_TILE_ROWS = (16, 64)
"""Rows in a small tile and in a large one."""
_TILE_HEADER = 4
_ROW_NUMBERS = 5
"""Numbers that the CPU's segments need for a row that is the only one of its adapter."""

_numbers: dict[str, int] = {}
"""Numbers of the sites of all layouts, by name."""
_described: WeakKeyDictionary[LoraLayout, tuple[Ints, int, int]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False, slots=True)
class LoraTables:
    """A set of adapters as the numbers that built bodies read."""

    adapters: dict[LoraAdapter, int]
    """The number by which segments name each adapter."""
    table: torch.Tensor
    ranks: int
    """Largest rank of a site, summed over its parts, among these adapters."""
    sums: int
    """Largest product of a site's rank and the splits of its inputs, among these adapters."""

    @classmethod
    def of(cls, adapters: Iterable[LoraAdapter], dtype: torch.dtype, device: torch.device) -> LoraTables:
        """Describe adapters in an arena of this type on this device."""
        numbers = {adapter: number for number, adapter in enumerate(adapters)}
        heads = np.empty((len(numbers), 2), np.int64)
        pieces, end, ranks, sums = [heads], heads.size, 0, 0
        begins: dict[LoraLayout, int] = {}
        for adapter, number in numbers.items():
            if adapter.layout not in begins:
                layout, *most = _describe(adapter.layout, dtype)
                begins[adapter.layout], ranks, sums = end, max(ranks, most[0]), max(sums, most[1])
                pieces.append(layout)
                end += len(layout)
            heads[number, 0] = begins[adapter.layout]
        for adapter, number in numbers.items():
            heads[number, 1] = end
            end += len(adapter.sectors)
        known = torch.from_numpy(np.concatenate([piece.reshape(-1) for piece in pieces]))
        # The pages are where the arena is.
        table = torch.cat([known.to(device, non_blocking=True), *(adapter.sectors for adapter in numbers)])
        return cls(numbers, table, ranks, sums)


@dataclass(frozen=True, eq=False, slots=True)
class TablePlan:
    """A batch as built bodies read it."""

    arena: torch.Tensor
    tables: LoraTables
    segments: torch.Tensor
    """On the CPU the number of segments, (adapter, first row, rows, 0) for each, and the rows of all. On CUDA tiles of
    up to 16 or 64 rows: [tiles, (adapter, rows, 0, 0) and the rows] int32."""
    scratch: torch.Tensor
    """Memory for the rows between the two products, in fp32; on CUDA a line for each row of the batch."""
    _splits: dict[int, list[TablePlan | None]] = field(default_factory=dict, init=False, repr=False)

    def split_rows(self, rows: int, count: int) -> Sequence[TablePlan | None]:
        """On the CPU: a plan for each `rows` of the batch's `count` rows, None where none of these has an adapter.

        The plans share scratch memory, so they must be used one after the other.
        """
        if rows not in self._splits:
            numbers = self.segments.numpy()
            fields, listed = np.split(numbers[1:], [4 * numbers[0]])
            owners = fields[::4].repeat(fields[2::4])
            found = self._splits[rows] = []
            for begin in range(0, count, rows):
                (here,) = ((begin <= listed) & (listed < begin + rows)).nonzero()
                segments = torch.from_numpy(_segments(owners[here], listed[here] - begin))
                found.append(dataclasses.replace(self, segments=segments) if len(here) else None)
        return self._splits[rows]

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The tensors that every built body takes: arena, table of adapters, segments, scratch memory."""
        return self.arena, self.tables.table, self.segments, self.scratch

    def reaches(self, site: str) -> bool:
        """Whether an adapter of the batch changes the layer `site`."""
        return any(site in adapter.layout.sites for adapter in self.tables.adapters)


class LoraPlanBuffers:
    """Tensors that recorded and captured steps read: each step's plan is written into them."""

    def __init__(self, first: TablePlan, rows: int) -> None:
        """Make room for plans of up to `rows` rows whose adapters take up to twice as much as the first one's."""
        tables = first.tables
        self._tiled = first.segments.ndim == 2
        size = (rows, _TILE_HEADER + _TILE_ROWS[0]) if self._tiled else (1 + _ROW_NUMBERS * rows,)
        room = (rows, 2 * tables.sums) if self._tiled else (2 * rows * tables.ranks,)
        self._plan = TablePlan(
            first.arena,
            LoraTables({}, tables.table.new_zeros(2 * len(tables.table)), tables.ranks, tables.sums),
            first.segments.new_zeros(size),
            first.scratch.new_empty(room),
        )
        self._written: TablePlan | None = None

    def plan(self, rows: int) -> TablePlan:
        """A plan of `rows` rows over these tensors, whatever is written into them."""
        plan = self._plan
        if self._tiled:
            return dataclasses.replace(plan, segments=plan.segments[:rows], scratch=plan.scratch[:rows])
        return dataclasses.replace(plan, segments=plan.segments[: 1 + _ROW_NUMBERS * rows])

    def write(self, plan: TablePlan) -> bool:
        """Write a plan, whose CUDA tiles must be small; False if there is no room for its adapters."""
        if plan is self._written:
            return True
        table, segments = self._plan.tables.table, self._plan.segments
        found = plan.tables.table
        if len(found) > len(table) or plan.scratch.shape[-1] > self._plan.scratch.shape[-1]:
            return False
        if self._written is None or plan.tables is not self._written.tables:
            table[: len(found)] = found
        # What is behind the rows, or their tiles, is read, too.
        segments[len(plan.segments) :] = 0
        segments[: len(plan.segments)] = plan.segments
        self._written = plan
        return True


def plan_rows(
    arena: torch.Tensor,
    tables: LoraTables,
    adapters: Sequence[LoraAdapter | None],
    counts: Ints,
    *,
    small_tiles: bool = False,
) -> TablePlan | None:
    """Plan a batch whose row i has `counts[i]` tokens for `adapters[i]`, all of which the tables have; None: only base.

    Neither the order of `tables` nor `small_tiles`, which cuts all CUDA tiles small, changes a result.
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
    body = library.of(arena)
    if body is not None and body.is_cuda:
        tile_rows = _TILE_ROWS[0 if small_tiles or sizes.max() <= _TILE_ROWS[0] else 1]
        tiles = torch.from_numpy(_tiles(sizes, order, tile_rows)).to(arena.device, non_blocking=True)
        return TablePlan(arena, tables, tiles, torch.empty(len(owners), tables.sums, device=arena.device))
    segments = torch.from_numpy(_segments(owners[order[:rows]], order[:rows]))
    return TablePlan(arena, tables, segments, torch.empty(rows * tables.ranks))


def _segments(owners: Ints, rows: Ints) -> Ints:
    """The CPU's segments for `rows`, which are sorted by the number of their adapter, `owners`."""
    sizes = np.bincount(owners)
    (present,) = sizes.nonzero()
    segments = np.zeros(1 + 4 * len(present) + len(rows), np.int64)
    segments[0] = len(present)
    fields = segments[1 : 1 + 4 * len(present)].reshape(-1, 4)
    fields[:, 0], fields[:, 2] = present, sizes[present]
    fields[1:, 1] = fields[:-1, 2].cumsum()
    segments[1 + 4 * len(present) :] = rows
    return segments


def _tiles(sizes: Ints, order: Ints, rows: int) -> npt.NDArray[np.int32]:
    """CUDA tiles of up to `rows` rows: `order` lists the rows by adapter, `sizes` how many each adapter has."""
    counts = -(-sizes // rows)
    owners = np.arange(len(sizes)).repeat(counts)
    done = (np.arange(len(owners)) - (counts.cumsum() - counts)[owners]) * rows
    first = (sizes.cumsum() - sizes)[owners] + done
    tiles = np.zeros((len(owners), _TILE_HEADER + rows), np.int32)
    tiles[:, 0], tiles[:, 1] = owners, np.minimum(sizes[owners] - done, rows)
    tiles[:, _TILE_HEADER:] = order.take(first[:, None] + np.arange(rows), mode="clip")
    return tiles


def site_number(site: str) -> int:
    """The number by which tables name a site."""
    return _numbers.setdefault(site, len(_numbers))


def _describe(layout: LoraLayout, dtype: torch.dtype) -> tuple[Ints, int, int]:
    """A layout as numbers, with the largest rank of a site, and the largest product of a rank and splits."""
    found = _described.get(layout)
    if found is None:
        found = _described[layout] = _encode(layout, torch.float32.itemsize // dtype.itemsize)
    return found


def _encode(layout: LoraLayout, width: int) -> tuple[Ints, int, int]:
    """`_describe` without its cache; a number of a vector takes `width` elements of the arena."""
    sites = [(site_number(name), site, -1) for name, site in layout.sites.items()]
    if layout.embedding is not None:
        sites.append((site_number(EMBEDDING), layout.embedding.site, layout.embedding.rows))
    numbers: list[int] = [0] * (2 + max((number for number, _, _ in sites), default=-1))
    numbers[0] = len(numbers) - 1
    most = sums = 0
    for number, site, rows in sites:
        numbers[1 + number] = len(numbers)
        spans = list(_spans(site))
        ranks = sum(rank for _, _, rank, _, _ in spans)
        scale, offset = (
            -1 if vector is None else layout.factors + width * vector for vector in (site.scale, site.offset)
        )
        numbers += (site.width, site.columns, site.experts, scale, offset, rows, ranks, len(spans))
        numbers += (number for span in spans for number in span)
        most, sums = max(most, ranks), max(sums, ranks * max(1, -(-site.width // SPLIT)))
    return np.array(numbers, np.int64), most, sums


def _spans(site: LoraSite) -> Iterable[tuple[int, int, int, int, int]]:
    """A site's parts; if the whole output is scaled or moved, also the columns between them, with rank 0."""
    end = 0
    affine = site.scale is not None or site.offset is not None
    for part in site.parts:
        if affine and part.begin > end:
            yield end, part.begin, 0, 0, 0
        yield part.begin, part.end, part.rank, part.down, part.up
        end = part.end
    if affine and end < site.columns:
        yield end, site.columns, 0, 0, 0
