"""What `bench.real` measures on each file, and what our engine should reach there."""

from __future__ import annotations

from typing import Literal

import msgspec

from bench.measure import prompts
from bench.subjects.interface import RequestBatch

Quantity = Literal["decode", "prompt", "turn", "start"]
"""decode: tokens per second of all requests, once all have their first. prompt: tokens of a prompt per second until the
first token of the answer. turn: seconds to the first token behind a cached prefix. start: seconds from the start of the
process to the first token."""
_WARM_UP_TOKENS = (16, 4)
"""Tokens of prompts and answers that run before, with as many requests."""


class RealCell(msgspec.Struct, frozen=True):
    """A load: `requests` at once, each with `cached_tokens` that were run before and `prompt_tokens` of its own."""

    name: str
    quantity: Quantity
    requests: int = 1
    prompt_tokens: int = 128
    new_tokens: int = 64
    cached_tokens: int = 0
    adapters: int = 0
    """Number of distinct LoRA adapters among the requests."""

    @property
    def tokens(self) -> int:
        """Most tokens of one request, prompt and answer together."""
        return self.cached_tokens + self.prompt_tokens + self.new_tokens

    def batch(self, vocabulary: int, seed: int) -> RequestBatch:
        """Make random prompts; equal for equal seeds."""
        cached = prompts(self.requests, self.cached_tokens, vocabulary, seed)
        own = prompts(self.requests, self.prompt_tokens, vocabulary, seed + 1)
        joined = [first + second for first, second in zip(cached, own, strict=True)]
        return RequestBatch(joined, self.new_tokens, adapters=self.adapters)

    def warm_up(self, vocabulary: int, seed: int) -> RequestBatch | None:
        """Make what runs before: nothing for the start of a process, else the cached tokens or other, short prompts."""
        length, new_tokens = _WARM_UP_TOKENS
        if self.quantity == "start":
            return None
        # `batch` has taken the seed and the next one.
        seed = seed if self.cached_tokens else seed + 2
        cached = prompts(self.requests, self.cached_tokens or length, vocabulary, seed)
        return RequestBatch(cached, new_tokens, adapters=self.adapters)


class CellGroup(msgspec.Struct, frozen=True):
    """Cells that one process runs one after the other, so that no cell's KV cache is larger than it needs."""

    name: str
    cells: tuple[RealCell, ...]
    ours_only: bool = False
    """Whether only our engine can run them: of the peers none batches requests with different adapters."""

    @property
    def requests(self) -> int:
        return max(cell.requests for cell in self.cells)

    @property
    def tokens(self) -> int:
        return max(cell.tokens for cell in self.cells)

    @property
    def adapters(self) -> int:
        return max(cell.adapters for cell in self.cells)


def groups(prompt_tokens: int, new_tokens: int, long: tuple[int, ...], cached: int) -> tuple[CellGroup, ...]:
    """Return all cells. `long`: lengths of long prompts; `cached`: tokens of the prefix that a turn finds."""
    sizes = {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    first = RealCell("first token", "start", prompt_tokens=prompt_tokens, new_tokens=1)
    decodes = [RealCell(str(count), "decode", count, **sizes) for count in (1, 8, 32)]
    whole = [RealCell(f"prompt of {length}", "prompt", prompt_tokens=length, new_tokens=1) for length in long]
    turn = RealCell("turn", "turn", prompt_tokens=prompt_tokens // 2, new_tokens=1, cached_tokens=cached)
    mixed = [
        RealCell("16", "decode", 16, **sizes),
        RealCell("16, adapters", "decode", 16, adapters=16, **sizes),
    ]
    return (
        CellGroup("many", (first, *decodes)),
        CellGroup("long", (*whole, turn)),
        CellGroup("adapters", tuple(mixed), ours_only=True),
    )


GROUPS = groups(128, 64, (512, 2048), 1024)
QUICK_GROUPS = groups(20, 6, (64, 96), 64)
"""The same cells, small enough for a smoke run."""


class RealAim(msgspec.Struct, frozen=True):
    """What our engine should reach in a cell."""

    ratio: float | None = None
    """To llama.cpp, above 1 where ours is better."""
    limit: float | None = None
    """Share of the machine's limit."""


AIMS = {
    "1": RealAim(1.2, 0.85),
    "8": RealAim(2.0),
    "32": RealAim(2.0),
    "prompt of 512": RealAim(1.8),
    "prompt of 2048": RealAim(1.8),
}
ADAPTERS_AIM = 0.85
"""Decoding with adapters, over decoding without."""
LOAD_AIM_SECONDS = 1.5
"""From the start of the process until our engine is ready with the large file in the page cache."""
MEMORY_AIM_BYTES = 300 << 20
"""Most resident memory of our process beyond the file's size and the KV cache."""
