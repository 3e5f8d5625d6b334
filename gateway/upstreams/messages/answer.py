"""The answer to a conversation as its consumer sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import ceil

from engine.client.answer_stream import AnswerStream, Delta
from engine.client.conversation import AnswerPart, TextLogprob, TextPart, estimated_tokens
from engine.wire import FinishReason, Usage
from gateway.upstreams.messages.dialect import ServerUsage


class MessageAnswer(AnswerStream):
    """Deltas of one answer in parts. Stop strings are found here, because few servers say which one has ended it."""

    def __init__(self, id: str, prompt_tokens: int, cancel: Callable[[str], None], *, stop: Sequence[str]) -> None:
        """Args: prompt_tokens: estimated number, until the server has counted."""
        super().__init__(id, prompt_tokens, cancel, stop)
        self._tokens = 0
        self._parts: list[AnswerPart] = []
        self._scores: deque[TextLogprob] = deque()
        """Log-probabilities of tokens whose text is held back."""

    @property
    def _count(self) -> int:
        return self._tokens

    @property
    def _released(self) -> int:
        return max(0, self._tokens - ceil(estimated_tokens(self._stops.held)))

    @property
    def _pending(self) -> bool:
        return bool(self._parts)

    def accept(self) -> None:
        """Note that the server has taken the request up."""
        self._hear(tokens=False)
        self._changed.set()

    def feed(self, parts: Sequence[AnswerPart], tokens: int) -> None:
        """Take what the server says next. Args: tokens: estimated number of those of the answer so far."""
        if self._ended:
            return
        self._hear(tokens=tokens > self._tokens)
        self._tokens = max(self._tokens, tokens)
        for part in parts:
            self._push(part)
            if self._stops.matched is not None:
                self._finish("stop")
                return
        self._changed.set()

    def count(self, usage: ServerUsage) -> None:
        """Take over what the server has counted; what it does not tell stays an estimate."""
        prompt = self._usage.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens
        self._usage = Usage(prompt, min(prompt, usage.cached_tokens or 0), output_tokens=0, queue_seconds=0.0)
        if usage.output_tokens is not None:
            self._tokens = usage.output_tokens

    def end(self, finish: FinishReason, *, filtered: bool = False) -> None:
        """End the answer, whose last part has come."""
        if not self._ended:
            self._flush()
            self._finish(finish, filtered=filtered)

    def _push(self, part: AnswerPart) -> None:
        if isinstance(part, TextPart) and self._stops.strings:
            self._scores.extend(part.logprobs)
            self._show(self._stops.push(part.text))
        else:
            self._flush()
            self._parts.append(part)

    def _flush(self) -> None:
        """Release what was held back: no stop string can come of it."""
        self._show(self._stops.flush())
        if self._scores:
            self._parts.append(TextPart("", [*self._scores]))
            self._scores.clear()

    def _show(self, text: str) -> None:
        if text:
            self._parts.append(TextPart(text, self._taken(len(text.encode("utf-8", "surrogatepass")))))

    def _taken(self, length: int) -> list[TextLogprob]:
        """Take the log-probabilities of the tokens that a text of so many bytes is made of."""
        taken = []
        while length > 0 and self._scores:
            taken.append(self._scores.popleft())
            length -= len(taken[-1].bytes)
        return taken

    def _take(self) -> Delta:
        parts = self._parts
        self._drop()
        text = "".join(part.text for part in parts if isinstance(part, TextPart))
        return Delta(text, [], parts=parts)

    def _drop(self) -> None:
        self._parts = []
