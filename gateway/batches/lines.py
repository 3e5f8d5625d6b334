"""Lines of a batch: read from the file of requests, written to the files of results, tried again or not. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.batches.state import Endpoint, LineError
from gateway.errors import InvalidRequest, invalid_value
from gateway.protocol.nesting import decode_json
from gateway.protocol.requests import converted
from gateway.protocol.stream import TokenUsage

MAX_ERRORS = 100
"""Most errors of lines that a batch tells; the rest of its file is not looked at."""
ATTEMPTS = 3
"""Most times that a line is tried for which a fault of ours or an engine's is to blame."""
LONGEST_PAUSE = 30.0
"""Most seconds between two tries of a line, where nothing says when the next one is worth it."""
_LATER = frozenset({"rate_limit_exceeded", "overloaded", "unavailable", "draining"})
"""Codes of errors that end by themselves."""
_FAULTS = frozenset({"internal_error", "engine_failed", "gateway_lost"})


class LineRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The request in one line of a file."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: Endpoint
    body: dict[str, Any]


class LineAnswer(Struct, frozen=True):
    """The response to a line's request."""

    status: int
    body: bytes
    """JSON."""
    request_id: str
    code: str | None = None
    """The error's code, if it is an error."""
    retry_after: float | None = None
    """Seconds after which it is worth trying again, where the error says so."""


class LineSplitter:
    """Cuts a file that comes in pieces into lines, without their ends."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def push(self, piece: bytes) -> list[bytes]:
        """Return the lines that end in this piece."""
        first, *others = piece.split(b"\n")
        self._rest += first
        if not others:
            return []
        lines = [bytes(self._rest), *others[:-1]]
        self._rest = bytearray(others[-1])
        return lines

    def end(self) -> list[bytes]:
        """Return the last line, if the file does not end with the end of a line."""
        return [bytes(self._rest)] if self._rest else []


def parse_line(text: bytes, endpoint: Endpoint) -> LineRequest:
    """Return the request in a line.

    Raises:
        InvalidRequest: it is no valid request to this endpoint.
    """
    value = decode_json(text, "the line", "invalid_json_line")
    if not isinstance(value, dict):
        raise InvalidRequest("the line must be a JSON object", code="invalid_json_line")
    request = converted(value, LineRequest)
    if request.url != endpoint:
        raise invalid_value("url", f"the batch's endpoint is {endpoint}")
    return request


class FileCheck:
    """Checks a file of requests line by line."""

    def __init__(self, endpoint: Endpoint, max_bytes: int) -> None:
        """Args: max_bytes: of one line."""
        self._endpoint = endpoint
        self._max_bytes = max_bytes
        self._ids: set[str] = set()
        self._errors: list[LineError] = []
        self.total = 0
        """Number of requests."""
        self.lines = 0
        """Number of lines, empty ones included."""

    @property
    def full(self) -> bool:
        """Whether no more errors would be told."""
        return len(self._errors) >= MAX_ERRORS

    @property
    def errors(self) -> tuple[LineError, ...]:
        """Why the file cannot be used; empty if it can."""
        if not self.total:
            return (LineError("empty_file", "the file has no requests; write one JSON object a line"),)
        return tuple(self._errors)

    def line(self, text: bytes) -> None:
        """Check the next line."""
        self.lines += 1
        if not text.strip():
            return
        self.total += 1
        try:
            if len(text) > self._max_bytes:
                raise InvalidRequest(f"the line has {len(text)} bytes; at most {self._max_bytes}")
            request = parse_line(text, self._endpoint)
            if request.custom_id in self._ids:
                message = "custom_id: an earlier line has the same; give each its own"
                raise InvalidRequest(message, param="custom_id", code="duplicate_custom_id")
            self._ids.add(request.custom_id)
        except InvalidRequest as error:
            self._errors.append(LineError(error.code, error.message, self.lines, error.param))


def pause(answer: LineAnswer, earlier: int) -> float | None:
    """Return the seconds after which a line is tried again; None: its answer stands.

    Args:
        earlier: number of its earlier answers with the same code.
    """
    again = answer.code in _LATER or (answer.code in _FAULTS and earlier + 1 < ATTEMPTS)
    if answer.code == "insufficient_quota":
        # Running turns hold what is left: a second. A budget that is spent comes back with the next day.
        again = answer.retry_after is not None and answer.retry_after <= 1
    if not again:
        return None
    return answer.retry_after or min(2.0 ** min(earlier, 10), LONGEST_PAUSE)


def answered_line(id: str, custom_id: str, answer: LineAnswer) -> bytes:
    """Return the result of a line that was answered, or refused."""
    response = {"status_code": answer.status, "request_id": answer.request_id, "body": Raw(answer.body)}
    return _line(id, custom_id, response, None)


def abandoned_line(id: str, custom_id: str, code: str, message: str) -> bytes:
    """Return the result of a line that was not answered."""
    return _line(id, custom_id, None, {"code": code, "message": message})


def _line(id: str, custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    return msgspec.json.encode({"id": id, "custom_id": custom_id, "response": response, "error": error}) + b"\n"


class _Details(Struct):
    cached_tokens: int = 0


class _Usage(Struct):
    """The `usage` of a body, in the words of any endpoint."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Details | None = None


class _Body(Struct):
    usage: _Usage | None = None


_decode_body = msgspec.json.Decoder(_Body).decode


def usage_of(answer: LineAnswer) -> TokenUsage:
    """Return the tokens that an answer took, as its body tells."""
    usage = _decode_body(answer.body).usage or _Usage()
    details = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
    return TokenUsage(
        usage.prompt_tokens + usage.input_tokens,
        details.cached_tokens,
        usage.completion_tokens + usage.output_tokens,
    )
