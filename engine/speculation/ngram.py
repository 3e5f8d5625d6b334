"""Drafts tokens from the text itself: after the same few tokens, the same may follow as before. Pure.

Prompt lookup decoding (Saxena, 2023; transformers' `prompt_lookup_num_tokens`): the last tokens of a request are looked
up in its own prompt and output, the longest match first, and what followed it there is the draft.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 4
SHORTEST = 2
"""Fewest tokens of a match. One token alone says little about what follows."""
_OCCURRENCES = 16
"""Most earlier occurrences that are compared, latest first, to take the longest match among them."""


class NgramIndex:
    """Index of the places where each pair of tokens occurs in one text. It grows with the text, in O(1) per token."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._latest: dict[tuple[int, int], int] = {}
        """Position after the latest occurrence of each pair, those at the very end of the text left out."""
        self._earlier: list[int] = []
        """For each position, the position after the previous occurrence of the pair before it; 0 for none."""

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, new: Sequence[int]) -> None:
        """Append tokens to the text."""
        tokens, latest, earlier = self._tokens, self._latest, self._earlier
        position = len(tokens)
        tokens += new
        while position < len(tokens):
            if position < SHORTEST:
                earlier.append(0)
            else:
                pair = (tokens[position - 2], tokens[position - 1])
                earlier.append(latest.get(pair, 0))
                latest[pair] = position
            position += 1

    def propose(self, count: int) -> tuple[int, tuple[int, ...]]:
        """Return the length of the longest match, and the `count` tokens that followed it; (0, ()) without a match.

        A match whose continuation reaches the end of the text is taken for a repetition that goes on.
        """
        tokens = self._tokens
        position = self._latest.get((tokens[-2], tokens[-1]), 0) if len(tokens) > SHORTEST else 0
        if position == 0:
            return 0, ()
        best, length = position, 0
        for _ in range(_OCCURRENCES):
            match = self._match(position)
            if match > length:
                best, length = position, match
            position = self._earlier[position]
            if length == LONGEST or position == 0:
                break
        period = tokens[best : best + count]
        if len(period) < count:
            period = period * -(-count // len(period))
        return length, tuple(period[:count])

    def _match(self, position: int) -> int:
        """Count tokens before a position that equal those at the end, up to `LONGEST`; the pair does."""
        tokens = self._tokens
        length = SHORTEST
        while length < min(LONGEST, position) and tokens[position - 1 - length] == tokens[-1 - length]:
            length += 1
        return length
