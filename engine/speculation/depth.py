"""Decides how many tokens each request drafts: as many as bring the most tokens per second. Pure.

A drafted token's worth is the probability that it and all before it are right; its cost is the longer step.
Both are measured while the engine runs (`engine.speculation.acceptance`, `engine.speculation.costs`), so that drafts
go where they pay, become fewer as the load grows, and stop where they do not pay at all. (The goal is that of Liu et
al., 2024, "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput".)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

_MARGIN = 1.02
"""Least gain in tokens per second, as a factor, that drafts must promise, or noise would switch them on and off."""
_LEAST_WORTH = 0.05
"""Least probability of a drafted token: less probable ones bring next to nothing, however cheap a step is."""
_HORIZON = 64
"""Most tokens still to come of an answer that are expected to profit from what a draft model reads now.

An answer is mostly far shorter than its limit, which is all that is known beforehand.
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that may draft.

    `rate`: probability that a drafted token is right if those before it were; `limit`: most tokens; `modelled`: a draft
    model makes them; `lag`: tokens that this model has to run before, the last one excluded; `left`: most tokens that
    the answer may still have.
    """

    id: str
    rate: float
    limit: int
    modelled: bool = False
    lag: int = 0
    left: int = _HORIZON


def choose_depths(
    candidates: Sequence[Candidate],
    *,
    tokens: int,
    requests: int,
    target: Callable[[int], float],
    draft: Callable[[int], float],
) -> dict[str, int]:
    """Choose the number of draft tokens per request; requests without any are left out.

    Args:
        tokens: that the step runs anyway.
        requests: that gain a token in it anyway.
        target: seconds of a step of the model that runs so many tokens.
        draft: the same of the draft model.
    """
    depths, speedup = _best(candidates, tokens, requests, target, draft)
    # A draft model's catching up is paid once and must pay off over the rest of the answer.
    saved = target(tokens) * (1 - 1 / speedup) / requests
    ready = [one for one in candidates if not one.lag or draft(one.lag) < saved * min(one.left, _HORIZON)]
    if len(ready) < len(candidates):
        depths, _ = _best(ready, tokens, requests, target, draft)
    return depths


def _best(
    candidates: Sequence[Candidate],
    tokens: int,
    requests: int,
    target: Callable[[int], float],
    draft: Callable[[int], float],
) -> tuple[dict[str, int], float]:
    """Return the depths with the most tokens per second, and their gain as a factor over no drafts.

    The best drafts of a given total are the most probable tokens, and a token is less probable than the one before it.
    So there is one order in which to add them, and all that is left to find is where to stop.
    """
    items: list[tuple[float, int, int]] = []
    for index, one in enumerate(candidates):
        worth = one.rate
        for level in range(1, one.limit + 1):
            if worth < _LEAST_WORTH:
                break
            items.append((worth, -level, index))
            worth *= one.rate
    items.sort(reverse=True)
    plain = requests / max(target(tokens), 1e-9)
    best, best_count = plain * _MARGIN, 0
    gained, seconds = float(requests), 0.0
    rows: dict[int, int] = {}
    for count, (worth, level, index) in enumerate(items, 1):
        gained += worth
        if candidates[index].modelled:
            # The draft model runs once per level, over all requests that draft so deep.
            before = rows.get(level, 0)
            rows[level] = before + 1
            seconds += draft(before + 1) - (draft(before) if before else 0.0)
        rate = gained / max(target(tokens + count) + seconds, 1e-9)
        if rate > best:
            best, best_count = rate, count
    depths: dict[str, int] = {}
    for _, _, index in items[:best_count]:
        id = candidates[index].id
        depths[id] = depths.get(id, 0) + 1
    return depths, best / plain if best_count else 1.0
