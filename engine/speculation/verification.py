"""Decides which part of a draft is right. Pure.

Speculative decoding accepts a drafted token x with probability min(1, p(x) / q(x)), where p is the model's
distribution and q the drafter's, and otherwise draws from what is left of p (Leviathan et al., 2023; Chen et al.,
2023). A drafter here names one token, q(x) = 1: it is accepted with probability p(x), and what is left of p is p
without x. Drawing the model's own token t from p and accepting x if t equals it does just that: it happens with
probability p(x), and a t that differs from x is distributed like p without x.

So every position is drawn as it would be without a draft, from the same uniform (`engine.execution.sampling`), and a
draft is right as far as it equals what was drawn. Not only the distribution but the tokens themselves are those of
decoding without drafts, whatever the drafts were and however many.
"""

from __future__ import annotations

from collections.abc import Sequence


def confirmed(draft: Sequence[int], drawn: Sequence[int]) -> int:
    """Count the tokens of a draft that are right, given the model's own token at each of its positions.

    `drawn[i]` is what the model says after the known tokens and `draft[:i]`; it counts only if those were right. So the
    row gains `drawn[: confirmed + 1]`.
    """
    count = 0
    for guess, token in zip(draft, drawn, strict=False):
        if guess != token:
            break
        count += 1
    return count
