"""Turns the chunks of a server's stream into the outputs of an engine. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from engine.text.processor import TextProcessor
from engine.wire import FinishReason, Generate, Output, TokenIdLogprob, Usage
from gateway.upstreams.dialect import AnswerChunk

_T = TypeVar("_T")


class ChunkReader:
    """Reads one answer.

    The token that ends an answer is part of an engine's last output, but a server may send it before it says that the
    answer has ended: control tokens are held back until the next chunk.
    """

    def __init__(self, request: Generate, text: TextProcessor) -> None:
        self._request = request
        self._text = text
        self._ends = {*text.special_token_ids, *text.eos_token_ids}
        self._said = 0
        """Tokens of the answer that the server has counted."""
        self._held: list[int] = []
        self._held_logprobs: list[TokenIdLogprob] = []
        self._cached = 0
        self._finish: FinishReason | None = None

    @property
    def begun(self) -> bool:
        """Whether a token has come."""
        return self._said > 0

    @property
    def ended(self) -> bool:
        """Whether the server has said that the answer has ended."""
        return self._finish is not None

    def read(self, chunk: AnswerChunk) -> Output | None:
        """Return what a chunk adds to the answer; None if it adds nothing.

        Raises:
            ValueError: it makes no sense after those before it.
        """
        if chunk.cached is not None:
            self._cached = min(chunk.cached, self._prompt_tokens)
        if chunk.finish is not None:
            self._finish = chunk.finish
        tokens, logprobs = self._new(chunk)
        if not tokens:
            return None
        tokens, logprobs = [*self._held, *tokens], [*self._held_logprobs, *logprobs]
        self._held, self._held_logprobs = [], []
        if (end := self._own_end(tokens)) is not None:
            finish, count = end
            return self._output(tokens[:count], logprobs[:count], finish)
        if tokens[-1] in self._ends:
            self._held, self._held_logprobs = tokens[-1:], logprobs[-1:]
            tokens, logprobs = tokens[:-1], logprobs[:-1]
        return self._output(tokens, logprobs) if tokens else None

    def end(self) -> Output | None:
        """Return the last output, when the stream has ended; None if the server has not said why the answer ends."""
        return None if self._finish is None else self._output(self._held, self._held_logprobs, self._finish)

    @property
    def _prompt_tokens(self) -> int:
        return len(self._request.prompt) - self._request.resumed

    def _new(self, chunk: AnswerChunk) -> tuple[list[int], list[TokenIdLogprob]]:
        """Return the tokens that a chunk adds, and their log-probabilities."""
        tokens, logprobs = list(chunk.tokens), list(chunk.logprobs)
        count = self._said + len(tokens) if chunk.count is None else chunk.count
        added, self._said = count - self._said, count
        if added < 0:
            raise ValueError("it takes back tokens of its answer")
        if added > len(tokens) and chunk.text:
            tokens = self._text.encode_inside(chunk.text)
            # Only the last one's is known.
            logprobs = logprobs[-1:] * len(tokens)
        else:
            tokens, logprobs = _last(tokens, added), _last(logprobs, added)
        if logprobs and len(logprobs) != len(tokens):
            raise ValueError("it tells the log-probabilities of other tokens than those of its answer")
        return tokens, [self._wanted(each) for each in logprobs]

    def _wanted(self, found: TokenIdLogprob) -> TokenIdLogprob:
        """Return what was asked for of a token's log-probabilities, the likeliest first."""
        top = sorted(found.top, key=lambda each: -each[1])[: self._request.sampling.logprobs or 0]
        return msgspec.structs.replace(found, top=top)

    def _own_end(self, tokens: Sequence[int]) -> tuple[FinishReason, int] | None:
        """Return how and after how many of these tokens the answer ends, if the server has not noticed."""
        sampling = self._request.sampling
        before = self._request.resumed + self._said - len(tokens)
        for index, token in enumerate(tokens, 1):
            if token in sampling.stop_token_ids and before + index > sampling.min_tokens:
                return "stop", index
        if before + len(tokens) > sampling.max_tokens:
            return "length", max(0, sampling.max_tokens - before)
        return None

    def _output(self, tokens: list[int], logprobs: list[TokenIdLogprob], finish: FinishReason | None = None) -> Output:
        usage = Usage(
            self._prompt_tokens, self._cached, output_tokens=self._request.resumed + self._said, queue_seconds=0.0
        )
        error = "it has ended the answer for a reason of its own" if finish == "error" else None
        return Output(self._request.id, tokens, logprobs=logprobs or None, finish=finish, usage=usage, error=error)


def _last(items: list[_T], count: int) -> list[_T]:
    return items[max(0, len(items) - count) :]
