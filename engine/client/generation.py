"""The answer of a server that continues tokens, and the failures of servers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

import msgspec

from engine.client.answer_stream import AnswerStream, Delta
from engine.text.processor import TextProcessor
from engine.wire import Generate, Output, TokenIdLogprob, Usage

_LEAST_TIMEOUT = 0.001
"""Seconds for the rest of an answer whose time is over: its engine ends it as it ends any other."""


class EngineGone(Exception):
    """The engine cannot be reached or has died. `started` says whether the consumer already has a part of the answer.

    A request that has not started may be sent to another engine; one that has would repeat itself, but may go on there
    (`EngineClient.resume`).
    """

    def __init__(self, message: str, *, started: bool, leaving: bool = False) -> None:
        """Args: leaving: the engine has said that it goes away, and does what it should."""
        super().__init__(message)
        self.started = started
        self.leaving = leaving


class RequestFailed(Exception):
    """The engine ended this request with an error. The message names the field and the remedy."""

    def __init__(self, message: str, *, started: bool, field: str | None = None) -> None:
        """Args: field: of `engine.wire.Generate` or its `sampling`, if one is to blame; the message begins with it."""
        super().__init__(message)
        self.started = started
        self.field = field

    @property
    def reason(self) -> str:
        """The message without the field's name."""
        return str(self).removeprefix(f"{self.field}: ")


class RequestInvalid(RequestFailed):
    """No engine can ever serve the request as it is."""


class EngineOverloaded(RequestFailed):
    """The engine is too busy for the request, which may be sent again later."""

    def __init__(
        self, message: str, *, started: bool, field: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message, started=started, field=field)
        self.retry_after = retry_after
        """Seconds after which the engine expects to take the request, if it knows."""


class UnreadableOutput(RequestFailed):
    """The engine's output could not be turned into text here; the engine itself has done nothing wrong."""

    def __init__(self, *, started: bool) -> None:
        message = "the engine's answer could not be turned into text; try again, and tell the operator if it stays so"
        super().__init__(message, started=started)


class Generation(AnswerStream):
    """Deltas of one request, made by `Upstream.generate`: tokens, which become text here."""

    def __init__(
        self,
        request: Generate,
        cancel: Callable[[str], None],
        *,
        text: TextProcessor | None = None,
        stop: Sequence[str] = (),
        shown: Collection[int] = (),
    ) -> None:
        if stop and text is None:
            raise ValueError("stop: stop strings need `text`, the processor that turns tokens into text")
        super().__init__(request.id, len(request.prompt), cancel, stop)
        self.request = request
        """What the engine was asked first."""
        self.ended_in_engine = False
        """Whether the engine has sent its last output for this request."""
        self._detokenizer = text.detokenizer(shown=shown) if text else None
        self._received: list[int] = []
        # Positions count characters of the answer, shown or held back.
        self._decoded = self._shown = 0
        self._held: deque[tuple[int, int, int, TokenIdLogprob | None]] = deque()
        """Tokens whose text has not been shown: (start, end, token, logprob)."""
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenIdLogprob] = []
        self._moves = 0

    @property
    def _count(self) -> int:
        return len(self._received)

    @property
    def _released(self) -> int:
        return len(self._received) - len(self._held)

    @property
    def _pending(self) -> bool:
        return bool(self._text or self._tokens)

    def feed(self, output: Output) -> None:
        """Take one step's output; called by the client's reader."""
        if self._ended:
            return
        self.ended_in_engine = output.finish is not None
        self._hear(tokens=bool(output.tokens))
        if output.usage is not None:
            self._usage = self._counted(output.usage)
        self.prompt_logprobs += output.prompt_logprobs or []
        stopped_by_token = output.finish == "stop" and not output.grammar_complete
        for index, token in enumerate(output.tokens):
            self._received.append(token)
            if stopped_by_token and index == len(output.tokens) - 1:
                break
            self._push(token, output.logprobs[index] if output.logprobs else None)
            if self._stops.matched is not None:
                self._finish("stop")
                return
        if output.finish == "error":
            self.fail(_failure(output, started=self._delivered))
        elif output.finish == "moved":
            self.fail(EngineGone("the engine is going away", started=self._delivered, leaving=True))
        elif output.finish is not None:
            self._flush()
            self._finish("stop" if self._stops.matched is not None else output.finish)
        self._changed.set()

    def rest(self, id: str) -> Generate:
        """Return what asks another engine for the rest of an answer that `EngineGone` has interrupted.

        Args: id: of the request there.
        """
        request, timeout = self.request, self.request.timeout
        if timeout is not None:
            timeout = max(timeout - (time.monotonic() - self._begun), _LEAST_TIMEOUT)
        return msgspec.structs.replace(
            request,
            id=id,
            prompt=[*request.prompt, *self._received],
            resumed=len(self._received),
            # These are complete with the first delta.
            sampling=msgspec.structs.replace(request.sampling, prompt_logprobs=None),
            timeout=timeout,
        )

    def resume(self, id: str, cancel: Callable[[str], None]) -> None:
        """Go on with the outputs of the engine that was asked for the `rest`."""
        self.id, self._cancel = id, cancel
        self._error = None
        self._ended = self.ended_in_engine = False
        self._moves += 1

    def _counted(self, usage: Usage) -> Usage:
        """Return the usage that an engine reports, as of one request also where several have had it."""
        if not self._moves:
            return usage
        first = self._usage
        return msgspec.structs.replace(usage, cached_tokens=first.cached_tokens, queue_seconds=first.queue_seconds)

    def _push(self, token: int, logprob: TokenIdLogprob | None) -> None:
        piece = self._detokenizer.push(token) if self._detokenizer else ""
        if piece and not self._held and not self._stops.strings:
            # The usual case: nothing is held back, and nothing can be.
            self._decoded += len(piece)
            self._shown += len(piece)
            self._text.append(piece)
            self._tokens.append(token)
            if logprob is not None:
                self._logprobs.append(logprob)
            return
        self._held.append((self._decoded, self._decoded + len(piece), token, logprob))
        self._decoded += len(piece)
        # What has to be generated anyway (min_tokens) takes no part in a stop string.
        shown = piece if len(self._received) <= self.request.sampling.min_tokens else self._stops.push(piece)
        if shown or self._detokenizer is None or self._stops.matched is not None:
            self._show(shown)

    def _flush(self) -> None:
        """Release the text that was held back: the engine is done."""
        shown = self._stops.push(self._detokenizer.flush()) if self._detokenizer else ""
        self._show(shown + self._stops.flush())

    def _show(self, text: str) -> None:
        self._shown += len(text)
        if text:
            self._text.append(text)
        stopped = self._stops.matched is not None
        while self._held:
            start, end, token, logprob = self._held[0]
            # Tokens that begin before the stop string belong to the answer.
            if start >= self._shown if stopped else end > self._shown:
                break
            self._held.popleft()
            self._tokens.append(token)
            if logprob is not None:
                self._logprobs.append(logprob)

    def _take(self) -> Delta:
        delta = Delta("".join(self._text), self._tokens, self._logprobs or None)
        self._drop()
        return delta

    def _drop(self) -> None:
        self._text, self._tokens, self._logprobs = [], [], []


def _failure(output: Output, *, started: bool) -> RequestFailed:
    """Return the error that the last output of a failed request stands for."""
    message, field = output.error or "the engine failed without saying why", output.error_field
    match output.error_kind:
        case "invalid":
            return RequestInvalid(message, started=started, field=field)
        case "overloaded":
            return EngineOverloaded(message, started=started, field=field, retry_after=output.retry_after)
        case _:
            return RequestFailed(message, started=started, field=field)
