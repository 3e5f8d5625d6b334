"""The bodies of the LoRA ops over slots; `kernels.lora.reference` says what they compute."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels.lora.layout import CHUNK
from kernels.lora.plan import LoraPlan, Run
from kernels.lora.slots import LoraSlots, SlotSite, Span


def adapt_linear(x: torch.Tensor, out: torch.Tensor, plan: LoraPlan, site: str) -> None:
    """Turn the output `out` [T, columns] of the linear layer `site`, for x [T, width], into that of each row's adapter.

    In place; rows without an adapter are not touched. With R ranks in all parts, r_p and c_p ranks and columns of part
    p: moves (R width + sum r_p c_p) e bytes per adapter and (width + 2 sum c_p) e per row; twice as many FLOPs per row
    as an adapter has elements.
    """
    for slots, runs in plan.groups:
        found = slots.sites.get(site)
        if found is None:
            continue
        for run in runs:
            shrunk = None
            if found.down is not None:
                lanes = _rows(x, run.gather).to(slots.dtype).view(run.lanes, run.depth, -1)
                shrunk = torch.bmm(lanes, _lanes(found.down, run).mT)
            _expand(shrunk, out, found, run)


def adapt_embedding(tokens: torch.Tensor, out: torch.Tensor, plan: LoraPlan) -> None:
    """The same for the embedding `out` [T, width] of tokens [T]: row t of A^T is gathered.

    With rank r: moves r width e bytes per adapter and (r + 2 width) e per row; 2 r width FLOPs per row.
    """
    for slots, runs in plan.groups:
        embedding, found = slots.layout.embedding, slots.embedding
        if embedding is None or found is None:
            continue
        units = embedding.site.parts[0].rank // CHUNK
        for run in runs:
            begin = _rows(tokens, run.gather).view(run.lanes, run.depth, 1) * units + embedding.rows // CHUNK
            rows = _units(slots, run, begin + torch.arange(units, device=out.device))
            _expand(rows.to(slots.dtype), out, found, run)


def adapt_experts(
    x: torch.Tensor, out: torch.Tensor, plan: LoraPlan, site: str, experts: torch.Tensor, places: torch.Tensor
) -> None:
    """The same for a layer with experts: x and out have one row for each of the experts [T, k] of a token.

    The k rows of token t are at `places[t]` ([T, k]). Moves what `adapt_linear` does, of the experts that are hit only.
    """
    for slots, runs in plan.groups:
        found = slots.sites.get(site)
        if found is None:
            continue
        for run in runs:
            chosen, order = _rows(experts, run.rows).flatten().sort(stable=True)
            rows = _rows(places, run.rows).flatten()[order]
            inputs = x.index_select(0, rows).to(slots.dtype)
            for span in found.spans:
                for piece in span.pieces:
                    assert piece.down is not None
                    down, up = piece.down[run.first], piece.up[run.first]
                    numbers = torch.arange(len(down), device=x.device)
                    ends = torch.searchsorted(chosen, numbers, right=True, out_int32=True)
                    delta = F.grouped_mm(F.grouped_mm(inputs, down.transpose(1, 2), offs=ends), up, offs=ends)
                    out[:, piece.begin : piece.end].index_add_(0, rows, delta.to(out.dtype))


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


def _expand(shrunk: torch.Tensor | None, out: torch.Tensor, site: SlotSite, run: Run) -> None:
    """Multiply by B and add; shrunk is [lanes, depth, ranks of all parts]."""
    if site.scale is None and site.offset is None:
        for span in site.spans:
            assert shrunk is not None
            whole = span.end - span.begin == site.columns
            _add(out if whole else out[:, span.begin : span.end], _delta(shrunk, span, run), run.rows)
        return
    total = _rows(out, run.rows).float()
    for span in site.spans:
        assert shrunk is not None
        total[:, span.begin : span.end] += _delta(shrunk, span, run)
    if site.scale is not None:
        total *= site.scale.index_select(0, run.slots)
    if site.offset is not None:
        total += site.offset.index_select(0, run.slots)
    if isinstance(run.rows, slice):
        out[run.rows] = total.to(out.dtype)
    else:
        out.index_copy_(0, run.rows, total.to(out.dtype))


def _delta(shrunk: torch.Tensor, span: Span, run: Run) -> torch.Tensor:
    """What a span's columns gain, [rows, columns of the span]."""
    pieces = [torch.bmm(shrunk[..., piece.low : piece.high], _lanes(piece.up, run)) for piece in span.pieces]
    delta = (pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)).flatten(0, 1)
    return delta if run.valid is None else delta.index_select(0, run.valid)


def _add(out: torch.Tensor, delta: torch.Tensor, rows: torch.Tensor | slice) -> None:
    if isinstance(rows, slice):
        out[rows] += delta
    else:
        out.index_add_(0, rows, delta.to(out.dtype))


def _rows(x: torch.Tensor, rows: torch.Tensor | slice) -> torch.Tensor:
    return x[rows] if isinstance(rows, slice) else x.index_select(0, rows)


def _lanes(weights: torch.Tensor, run: Run) -> torch.Tensor:
    return weights[run.first : run.first + run.lanes]


def _units(slots: LoraSlots, run: Run, units: torch.Tensor) -> torch.Tensor:
    """Read units [lanes, depth, n] of CHUNK elements of the lanes' images in the arena -> [lanes, depth, n * CHUNK]."""
    per_sector = slots.arena.shape[1] // CHUNK
    pages = _lanes(slots.pages, run).gather(1, (units // per_sector).flatten(1)).view(units.shape)
    places = (pages * per_sector + units % per_sector).flatten()
    return slots.arena.view(-1, CHUNK).index_select(0, places).view(*units.shape[:2], -1)
