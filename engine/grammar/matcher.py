"""Follows one request through its grammar: computes the legal next tokens, and tells when the answer is complete."""

from __future__ import annotations

import time
from collections.abc import Sequence

from llguidance import LLMatcher

from engine.grammar.tokens import Bits, GrammarTokens
from engine.wire import SamplingParams

_TOKEN_SECONDS = 0.001
_CREDIT_SECONDS = 0.25
"""CPU time that following a grammar may take for each token, and what one request may take beyond that in all."""


class Matcher:
    """One request's position in its grammar, after the tokens that it has gained.

    The grammar decides about every token:

    * Where the answer is complete, end-of-sequence and stop tokens are legal and end it. Elsewhere they are tokens like
      any other: they end nothing, and are legal if the grammar says so.
    * Where the answer is complete, `min_tokens` keeps tokens from ending it and `ignore_eos` end-of-sequence tokens
      from being sampled, unless nothing else is legal.
    * When nothing may follow, the answer ends by itself.

    Only one thread may use it at a time.
    """

    __slots__ = (
        "_credit",
        "_early",
        "_ended",
        "_endings",
        "_eos",
        "_length",
        "_ll",
        "_min_tokens",
        "_stops",
        "_tokens",
    )

    def __init__(self, start: LLMatcher, tokens: GrammarTokens, sampling: SamplingParams) -> None:
        """Take over `start`, a matcher in its first state that nothing else uses."""
        self._ll = start
        self._tokens = tokens
        self._ended = False
        self._credit = _CREDIT_SECONDS
        self._length = 0
        self._min_tokens = sampling.min_tokens
        self._endings = tokens.eos | frozenset(sampling.stop_token_ids)
        self._early = tokens.bits(self._endings) if sampling.min_tokens else None
        self._stops = tokens.bits(self._endings - tokens.eos)
        self._eos = tokens.bits(tokens.eos) if sampling.ignore_eos else None
        """Bits of end-of-sequence tokens, if they are to be avoided."""

    @property
    def llguidance(self) -> LLMatcher:
        """llguidance's matcher, for computing masks of many requests at a time."""
        return self._ll

    @property
    def finished(self) -> bool:
        """Whether the answer is complete and nothing may follow it."""
        return self._ended or (self._ll.is_stopped() and self.error is None)

    @property
    def complete(self) -> bool:
        """Whether the answer is `finished` without a token that is not part of it."""
        return self.finished and not self._ended

    @property
    def error(self) -> str | None:
        """Reason why the grammar can be followed no further, because it costs more than it may; None if it can."""
        if self._credit < 0:
            return "takes too long to follow"
        return self._ll.get_error().split("\n")[0] if self._ll.is_error() else None

    def consume(self, token: int) -> None:
        """Advance by one token; a token that is not legal leads into `error`."""
        if token in self._endings and self._ll.is_accepting():
            self._ended = True
        else:
            begun = time.thread_time()
            self._ll.consume_token(token)
            self.charge(time.thread_time() - begun)
        self._length += 1

    def charge(self, seconds: float) -> None:
        """Count CPU time of following the grammar by one token: ambiguous ones can take more with every token.

        llguidance's own limits on one step let a request slow down all others by half a second per token.
        """
        self._credit -= max(seconds - _TOKEN_SECONDS, 0.0)

    def truncate_draft(self, draft: Sequence[int]) -> list[int]:
        """Return the longest legal prefix of `draft` that goes no further than the answer might."""
        if self._length == 0 and draft and self._is_not_first(draft[0]):
            return []
        legal = list(draft[: self._ll.validate_tokens(list(draft))])
        ends = (index for index, token in enumerate(legal) if token in self._endings)
        return legal[: next(ends, len(legal))]

    @property
    def is_plain(self) -> bool:
        """Whether llguidance's own masks need no change, from here on."""
        return (
            self._stops is None
            and self._eos is None
            and self._length >= self._min_tokens
            and (self._length > 0 or self._tokens.not_first is None)
        )

    def fill(self, bits: Bits, draft: Sequence[int] = ()) -> None:
        """Write the legal tokens of the next position, and of those after each token of `draft`.

        `draft` must be legal, as `truncate_draft` returns it; bits is [1 + len(draft), words].
        """
        for index, row in enumerate(bits):
            self._ll.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            self._adjust(row, self._length + index)
            if index < len(draft):
                self._ll.consume_token(draft[index])
        if draft:
            self._ll.rollback(len(draft))

    def _adjust(self, row: Bits, position: int) -> None:
        if position == 0 and self._tokens.not_first is not None:
            row &= ~self._tokens.not_first
        if not self._ll.is_accepting():
            return
        avoided = self._early if position < self._min_tokens else self._eos
        if self._stops is not None:
            row |= self._stops
        if avoided is not None and (row & ~avoided).any():
            row &= ~avoided

    def _is_not_first(self, token: int) -> bool:
        bits = self._tokens.not_first
        return bits is not None and bool(bits[token >> 5] >> (token & 31) & 1)
