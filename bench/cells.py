"""The cells, which are loads of requests that arrive together, and the aims for our engine in them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from bench.measure import prompts
from bench.subjects.interface import RequestBatch


class Cell(msgspec.Struct, frozen=True):
    """A load: `requests` at once, each with `shared_tokens` that all have and `prompt_tokens` of its own."""

    name: str
    requests: int
    prompt_tokens: int = 128
    new_tokens: int = 64
    shared_tokens: int = 0
    adapters: int = 0
    """Number of distinct LoRA adapters among the requests."""

    @property
    def tokens(self) -> int:
        """Most tokens of one request, prompt and answer together."""
        return self.shared_tokens + self.prompt_tokens + self.new_tokens

    def batch(self, vocabulary: int, seed: int) -> RequestBatch:
        """Make random prompts; equal for equal seeds."""
        shared = prompts(1, self.shared_tokens, vocabulary, seed)[0]
        own = prompts(self.requests, self.prompt_tokens, vocabulary, seed + 1)
        return RequestBatch([shared + each for each in own], self.new_tokens, self.shared_tokens, self.adapters)


PREFIX, ADAPTERS = "prefix", "adapters"
CELLS = {
    cell.name: cell
    for cell in (
        Cell("1", 1),
        Cell("8", 8),
        Cell("32", 32),
        Cell(PREFIX, 32, prompt_tokens=32, new_tokens=32, shared_tokens=512),
        Cell(ADAPTERS, 32, adapters=16),
    )
}
QUICK_CELLS = {
    cell.name: cell
    for cell in (
        Cell("1", 1, prompt_tokens=20, new_tokens=8),
        Cell("8", 3, prompt_tokens=20, new_tokens=8),
        Cell("32", 5, prompt_tokens=20, new_tokens=8),
        Cell(PREFIX, 3, prompt_tokens=8, new_tokens=8, shared_tokens=40),
        Cell(ADAPTERS, 5, prompt_tokens=20, new_tokens=8, adapters=2),
    )
}
"""The same cells, small enough for a smoke run."""


@dataclass(frozen=True, slots=True)
class Aim:
    """A figure that our engine should reach in a cell, beside the best peer of the same run or the machine's limit."""

    model: str
    precision: str | None
    """Precision to compare in; None: each side's best precision."""
    cell: str
    quantity: str
    """What is compared. tokens/s: ours over the best peer's; TTFT: ours over the best peer's, at most; roofline: share
    of the time that the machine needs for a decode step; adapters: ours with adapters over ours without."""
    bound: float


AIMS = [
    *(Aim("S", None, cell, "tokens/s", 1.3) for cell in ("1", "8", "32")),
    Aim("L", "bf16", "1", "roofline", 0.9),
    *(Aim("L", "bf16", cell, "tokens/s", 1.2) for cell in ("8", "32")),
    Aim("L", "int8", "1", "roofline", 0.8),
    *(Aim("L", "int8", cell, "tokens/s", 2.0) for cell in ("8", "32")),
    *(Aim("L", "int4", cell, "tokens/s", 1.5) for cell in ("1", "8", "32")),
    *(Aim(model, "bf16", PREFIX, "tokens/s", 1.5) for model in ("S", "L")),
    Aim("L", "bf16", "32", "TTFT", 0.6),
    *(Aim(model, "bf16", ADAPTERS, "adapters", 0.85) for model in ("S", "L")),
]
