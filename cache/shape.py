"""The shape of an answer's stream: where its deltas ended and which tokens came with each, so that a replay looks the
same. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

MAX_DELTAS = 256
"""Most deltas of one answer; neighbours of longer ones are merged."""


class DeltaShape(Struct, array_like=True, frozen=True):
    """The deltas of one answer."""

    lengths: tuple[int, ...]
    """Number of characters of each delta."""
    token_counts: tuple[int, ...]
    """Number of tokens of each delta."""
    token_ids: tuple[int, ...]


def shape_of(lengths: Sequence[int], token_counts: Sequence[int], token_ids: Sequence[int]) -> DeltaShape:
    """The shape of an answer, in `MAX_DELTAS` deltas at most."""
    counts = token_counts or (0,) * len(lengths)
    step = -(-len(lengths) // MAX_DELTAS) or 1
    return DeltaShape(_merged(lengths, step), _merged(counts, step), tuple(token_ids))


def check(shape: DeltaShape, text: str) -> None:
    """Check that a shape is that of a text.

    Raises:
        ValueError: it is another text's, or none.
    """
    if (
        len(shape.lengths) != len(shape.token_counts)
        or len(shape.lengths) > MAX_DELTAS
        or min(shape.lengths, default=0) < 0
        or min(shape.token_counts, default=0) < 0
        or sum(shape.lengths) != len(text)
        or sum(shape.token_counts) != len(shape.token_ids)
    ):
        raise ValueError("the deltas do not add up to their text or tokens")


def _merged(sizes: Sequence[int], step: int) -> tuple[int, ...]:
    return tuple(sum(sizes[start : start + step]) for start in range(0, len(sizes), step))
