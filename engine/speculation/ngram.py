"""Guesses from what a text has said before: after the same few tokens, the same may follow. Pure.

Prompt lookup decoding (Saxena, 2023; transformers' `prompt_lookup_num_tokens`): the last tokens of a request are looked
up in its own prompt and output, the longest match first, and what followed it there is the draft.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 4
SHORTEST = 2
"""Tokens of a match. One token alone says little about what follows."""


class NgramIndex:
    """Where each n-gram of one text was last seen. It grows with the text, in O(1) per token."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._next: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in range(LONGEST, SHORTEST - 1, -1)}
        """Position that follows the last occurrence of an n-gram, by n; the end of the text is not one yet."""

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, new: Sequence[int]) -> None:
        """Append tokens to the text."""
        tokens, known = self._tokens, len(self._tokens)
        tokens += new
        for n, following in self._next.items():
            first = max(known, n)
            if first >= len(tokens):
                continue
            grams = zip(*(tokens[first - n + offset : len(tokens) - n + offset] for offset in range(n)), strict=True)
            following.update(zip(grams, range(first, len(tokens)), strict=True))

    def propose(self, count: int) -> tuple[int, tuple[int, ...]]:
        """Length of the longest match, and the `count` tokens that followed it; (0, ()) without a match.

        A match whose continuation reaches the end of the text is a repetition, which is taken to go on.
        """
        tokens = self._tokens
        for n, following in self._next.items():
            position = following.get(tuple(tokens[-n:]))
            if position is not None:
                period = tokens[position:]
                if len(period) < count:
                    period = period * -(-count // len(period))
                return n, tuple(period[:count])
        return 0, ()
