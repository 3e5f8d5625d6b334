"""The LoRA ops: the built bodies, and those over slots; `kernels.lora.reference` says what they compute."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels.lora import bodies
from kernels.lora.layout import CHUNK, EMBEDDING
from kernels.lora.plan import Batched, LoraPlan, Rows, Single
from kernels.lora.slots import LoraSlots, Span, Views
from kernels.lora.tables import TablePlan, site_number


def adapt_linear(x: torch.Tensor, out: torch.Tensor, plan: LoraPlan, site: str) -> None:
    """Turn the output `out` [T, columns] of the linear layer `site`, for x [T, width], into that of each row's adapter.

    In place; rows without an adapter are not touched. With R ranks in all parts, r_p and c_p ranks and columns of part
    p: moves (R width + sum r_p c_p) e bytes per adapter and (width + 2 sum c_p) e per row; twice as many FLOPs per row
    as an adapter has elements.
    """
    if isinstance(plan, TablePlan):
        number = site_number(site)
        bodies.adapt_linear(out, x, plan.arena, plan.tables.table, plan.segments, plan.scratch, number)
        return
    for slots, runs in plan.groups:
        for run in runs:
            if isinstance(run, Single):
                views = slots.single(site, run.slot)
                if views is not None:
                    shrunk = None if views.down is None else _take(x, run.rows) @ views.down
                    _expand_single(shrunk, out, views, run)
                continue
            views = slots.batch(site, run.first, run.lanes)
            if views is not None:
                shrunk = None
                if views.down is not None:
                    lanes = x.index_select(0, run.gather).to(slots.batched_dtype).view(run.lanes, run.depth, -1)
                    shrunk = torch.bmm(lanes, views.down)
                _expand_batched(shrunk, out, views, run)


def adapt_embedding(tokens: torch.Tensor, out: torch.Tensor, plan: LoraPlan) -> None:
    """The same for the embedding `out` [T, width] of tokens [T]: row t of A^T is gathered.

    With rank r: moves r width e bytes per adapter and (r + 2 width) e per row; 2 r width FLOPs per row.
    """
    if isinstance(plan, TablePlan):
        number = site_number(EMBEDDING)
        bodies.adapt_embedding(out, tokens, plan.arena, plan.tables.table, plan.segments, plan.scratch, number)
        return
    for slots, runs in plan.groups:
        if slots.layout.embedding is None:
            continue
        for run in runs:
            if isinstance(run, Single):
                rows = _embedding_rows(slots, _take(tokens, run.rows)[None], slice(run.slot, run.slot + 1))
                views = slots.single(EMBEDDING, run.slot)
                assert views is not None
                _expand_single(rows[0], out, views, run)
            else:
                lanes = tokens.index_select(0, run.gather).view(run.lanes, run.depth)
                rows = _embedding_rows(slots, lanes, slice(run.first, run.first + run.lanes))
                views = slots.batch(EMBEDDING, run.first, run.lanes)
                assert views is not None
                _expand_batched(rows.to(slots.batched_dtype), out, views, run)


def adapt_experts(
    x: torch.Tensor, out: torch.Tensor, plan: LoraPlan, site: str, experts: torch.Tensor, places: torch.Tensor
) -> None:
    """The same for a layer with experts: x and out have one row for each of the experts [T, k] of a token.

    The k rows of token t are at `places[t]` ([T, k]). Moves what `adapt_linear` does, of the experts that are hit only.
    """
    if isinstance(plan, TablePlan):
        _adapt_experts(x, out, plan, site, experts, places)
        return
    for slots, runs in plan.groups:
        for run in runs:
            if not isinstance(run, Single):
                continue  # layouts with experts are planned as single runs only
            views = slots.single(site, run.slot)
            if views is None:
                continue
            chosen, order = _take(experts, run.rows).flatten().sort(stable=True)
            rows = _take(places, run.rows).flatten()[order]
            inputs = x.index_select(0, rows)
            for span in views.spans:
                for piece in span.pieces:
                    assert piece.down is not None
                    numbers = torch.arange(len(piece.down), device=x.device)
                    ends = torch.searchsorted(chosen, numbers, right=True, out_int32=True)
                    delta = F.grouped_mm(F.grouped_mm(inputs, piece.down, offs=ends), piece.up, offs=ends)
                    out[:, piece.begin : piece.end].index_add_(0, rows, delta)


def _adapt_experts(
    x: torch.Tensor, out: torch.Tensor, plan: TablePlan, site: str, experts: torch.Tensor, places: torch.Tensor
) -> None:
    layouts = {adapter.layout for adapter in plan.tables.adapters}
    count = max(layout.sites[site].experts for layout in layouts if site in layout.sites)
    scratch, split = bodies.expert_tensors(plan.segments, plan.scratch, experts, count)
    number = site_number(site)
    bodies.adapt_experts(
        out, x, plan.arena, plan.tables.table, plan.segments, scratch, number, experts, places, split, count
    )


@dataclass(frozen=True, slots=True)
class LoraExperts:
    """A plan for the three layers of a mixture of experts, whose rows are sorted by expert.

    `order` [T * k] says of each row which of the T * k pairs (token, choice) it is.
    """

    plan: LoraPlan
    router: str
    gate_up: str
    down: str

    def adapt_router(self, x: torch.Tensor, logits: torch.Tensor) -> None:
        adapt_linear(x, logits, self.plan, self.router)

    def adapt_gate_up(self, x: torch.Tensor, out: torch.Tensor, experts: torch.Tensor, order: torch.Tensor) -> None:
        self._adapt(x, out, self.gate_up, experts, order)

    def adapt_down(self, x: torch.Tensor, out: torch.Tensor, experts: torch.Tensor, order: torch.Tensor) -> None:
        self._adapt(x, out, self.down, experts, order)

    def _adapt(self, x: torch.Tensor, out: torch.Tensor, site: str, experts: torch.Tensor, order: torch.Tensor) -> None:
        if self.plan.reaches(site):
            adapt_experts(x, out, self.plan, site, experts, order.argsort().view(experts.shape))


def _expand_single(shrunk: torch.Tensor | None, out: torch.Tensor, views: Views, run: Single) -> None:
    """Multiply by B and add; shrunk is [rows, ranks of all parts]."""
    affine = views.scale is not None or views.offset is not None or (shrunk is not None and shrunk.dtype != out.dtype)
    total = _take(out, run.rows).float() if affine else None
    for span in views.spans:
        for piece in span.pieces:
            assert shrunk is not None
            some = shrunk[:, piece.low : piece.high]
            if total is not None:
                total[:, piece.begin : piece.end] += some @ piece.up
            elif isinstance(run.rows, slice):
                out[run.rows, piece.begin : piece.end].addmm_(some, piece.up)
            else:
                _add_rows(out[:, piece.begin : piece.end], run.rows, some @ piece.up)
    if total is not None:
        if views.scale is not None:
            total *= views.scale[run.slot]
        if views.offset is not None:
            total += views.offset[run.slot]
        out[run.rows] = total.to(out.dtype)


def _expand_batched(shrunk: torch.Tensor | None, out: torch.Tensor, views: Views, run: Batched) -> None:
    """The same for lanes; shrunk is [lanes, depth, ranks of all parts]."""
    if views.scale is None and views.offset is None:
        for span in views.spans:
            assert shrunk is not None
            whole = span.end - span.begin == views.columns
            target = out if whole else out[:, span.begin : span.end]
            _add_rows(target, run.rows, _delta(shrunk, span, run))
        return
    total = out.index_select(0, run.rows).float()
    for span in views.spans:
        assert shrunk is not None
        total[:, span.begin : span.end] += _delta(shrunk, span, run)
    if views.scale is not None:
        total *= views.scale.index_select(0, run.slots)
    if views.offset is not None:
        total += views.offset.index_select(0, run.slots)
    out.index_copy_(0, run.rows, total.to(out.dtype))


def _add_rows(out: torch.Tensor, rows: torch.Tensor, delta: torch.Tensor) -> None:
    """Add to rows that all differ. On the CPU index_add_ takes several times as long in bf16."""
    out.index_copy_(0, rows, out.index_select(0, rows) + delta.to(out.dtype))


def _delta(shrunk: torch.Tensor, span: Span, run: Batched) -> torch.Tensor:
    """What a span's columns gain, [rows, columns of the span]."""
    pieces = [torch.bmm(shrunk[..., piece.low : piece.high], piece.up) for piece in span.pieces]
    delta = (pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)).flatten(0, 1)
    return delta if run.valid is None else delta.index_select(0, run.valid)


def _take(x: torch.Tensor, rows: Rows) -> torch.Tensor:
    return x[rows] if isinstance(rows, slice) else x.index_select(0, rows)


def _embedding_rows(slots: LoraSlots, tokens: torch.Tensor, lanes: slice) -> torch.Tensor:
    """Rows of A^T from the arena: tokens [lanes, depth] of the adapters in slots `lanes` -> [lanes, depth, rank]."""
    embedding = slots.layout.embedding
    assert embedding is not None
    units = embedding.site.parts[0].rank // CHUNK
    per_sector = slots.arena.shape[1] // CHUNK
    begins = tokens[..., None] * units + embedding.rows // CHUNK
    wanted = (begins + torch.arange(units, device=tokens.device)).flatten(1)
    sectors = slots.pages[lanes].gather(1, wanted // per_sector)
    found = slots.arena.view(-1, CHUNK).index_select(0, (sectors * per_sector + wanted % per_sector).flatten())
    return found.view(*tokens.shape, -1)
