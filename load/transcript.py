"""What one turn has received, and whether its text is whole: pure state that is told each event and its time.

The text of a Responses answer comes twice: piece by piece, and whole in the last event. They must be equal, also if the
connection was cut and the turn resumed, and the events' numbers must have no gap and no repetition. A chat completion
has its pieces only; that it ends with a `finish_reason` shows that nothing of the end is missing.
"""

from __future__ import annotations

import abc
import hashlib
from array import array
from typing import Any

import msgspec

from load.records import TurnEnd


class Transcript(abc.ABC):
    """One turn's events so far."""

    def __init__(self) -> None:
        self.times = array("d")
        """When each piece of text came."""
        self.end: TurnEnd | None = None
        """How the server says that the turn ended; None: it has not."""
        self.error: str | None = None
        self.fault: str | None = None
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.messages = 0
        """Events received."""
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def digest(self) -> str:
        return hashlib.blake2b(self.text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def take(self, data: bytes, now: float) -> bool:
        """Take one event; return whether the turn has ended."""
        self.messages += 1
        try:
            self._take(data, now)
        except msgspec.DecodeError as error:
            self._finish(TurnEnd.FAILED, f"an event that cannot be read: {error}")
        return self.end is not None

    @abc.abstractmethod
    def _take(self, data: bytes, now: float) -> None: ...

    def _add(self, text: str, now: float) -> None:
        self.times.append(now)
        self._pieces.append(text)

    def _finish(self, end: TurnEnd, error: str | None = None) -> None:
        if self.end is None:
            self.end, self.error = end, error

    def _blame(self, fault: str) -> None:
        self.fault = self.fault or fault


class ServerError(msgspec.Struct):
    """An error as OpenAI's API has it."""

    message: str | None = None
    code: Any = None
    type: Any = None

    def __str__(self) -> str:
        return f"{self.code or self.type or 'error'}: {self.message or 'no reason given'}"


class _Part(msgspec.Struct):
    type: str = ""
    text: Any = None


class _Item(msgspec.Struct):
    content: list[_Part] | None = None


class _ResponseUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Response(msgspec.Struct):
    id: str
    status: str | None = None
    error: ServerError | None = None
    usage: _ResponseUsage | None = None
    output: list[_Item] = []

    @property
    def text(self) -> str:
        parts = (part for item in self.output for part in item.content or ())
        return "".join(part.text for part in parts if part.type == "output_text" and isinstance(part.text, str))


class _ResponseEvent(msgspec.Struct):
    type: str
    sequence_number: int | None = None
    delta: Any = None
    response: _Response | None = None
    error: ServerError | None = None
    code: Any = None
    message: str | None = None


class ResponsesTranscript(Transcript):
    """A turn of the Responses API, over a WebSocket or as server-sent events."""

    _decode = msgspec.json.Decoder(_ResponseEvent).decode

    def __init__(self) -> None:
        super().__init__()
        self.response_id: str | None = None
        self.last_number = -1
        """`sequence_number` of the last event."""

    def _take(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":  # some servers end every stream with it
            return
        event = self._decode(data)
        self._count(event.sequence_number)
        match event.type:
            case "response.output_text.delta" if isinstance(event.delta, str):
                self._add(event.delta, now)
            case "response.created" if event.response is not None:
                self.response_id = event.response.id
            case "response.completed" | "response.incomplete" if event.response is not None:
                cancelled = event.response.status == "cancelled"
                self._whole(event.response)
                self._finish(TurnEnd.CANCELLED if cancelled else TurnEnd.COMPLETED)
            case "response.failed":
                self._finish(TurnEnd.FAILED, str(event.response and event.response.error))
            case "error":
                end = TurnEnd.REFUSED if self.response_id is None else TurnEnd.FAILED
                self._finish(end, str(event.error or ServerError(event.message, event.code)))

    def _count(self, number: int | None) -> None:
        if number is None:
            return
        if number != self.last_number + 1:
            self._blame(f"event {number} came after event {self.last_number}")
        self.last_number = number

    def _whole(self, response: _Response) -> None:
        if response.usage is not None:
            self.input_tokens, self.output_tokens = response.usage.input_tokens, response.usage.output_tokens
        received, whole = self.text, response.text
        if received != whole:
            same = next((at for at, pair in enumerate(zip(received, whole, strict=False)) if pair[0] != pair[1]), None)
            at = min(len(received), len(whole)) if same is None else same
            self._blame(
                f"{len(received)} characters came in pieces, {len(whole)} in the last event; they differ at {at}"
            )


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _ChatUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _ChatUsage | None = None
    error: ServerError | None = None


class ChatTranscript(Transcript):
    """A chat completion as server-sent events."""

    _decode = msgspec.json.Decoder(_Chunk).decode

    def __init__(self) -> None:
        super().__init__()
        self._finished = False

    def _take(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            if not self._finished:
                self._blame("the stream ended without a finish_reason")
            self._finish(TurnEnd.COMPLETED)
            return
        chunk = self._decode(data)
        if chunk.error is not None:
            self._finish(TurnEnd.FAILED, str(chunk.error))
        if chunk.usage is not None:
            self.input_tokens, self.output_tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
        for choice in chunk.choices:
            if choice.delta is not None and choice.delta.content:
                self._add(choice.delta.content, now)
            self._finished = self._finished or choice.finish_reason is not None
