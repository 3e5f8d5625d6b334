"""Turns a server's refusal of a request into the failure of an engine. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time

import msgspec
from msgspec import Struct

from engine.client.generation import EngineOverloaded, RequestFailed, RequestInvalid
from gateway.upstreams.dialect import UpstreamError

_OVERLOADED = frozenset({429, 503, 529})
_INVALID = frozenset({400, 413, 422})
_MOST_TEXT = 300
"""Most characters passed on of what a server says."""


class _Body(Struct):
    """Forms of an error's body: OpenAI's, and a message alone."""

    error: UpstreamError | str | None = None
    message: str | None = None


def refusal(
    status: int, headers: Mapping[str, str], body: bytes, address: str, *, started: bool = False
) -> RequestFailed:
    """Return the failure that an answer with this status stands for, or an error amidst a stream.

    Args:
        address: of the server; only for messages to operators, which is all but those of `RequestInvalid`.
    """
    if status in _INVALID:
        return RequestInvalid(f"the model's server refuses the request: {_message(body)}", started=started)
    if status in _OVERLOADED:
        return EngineOverloaded(
            "the model's server is too busy", started=started, retry_after=_seconds(headers.get("retry-after"))
        )
    said = "refuses our key" if status in (401, 403) else f"fails ({status or 'in its answer'}): {_message(body)}"
    return RequestFailed(f"server {address} {said}", started=started)


def _message(body: bytes) -> str:
    try:
        found = msgspec.json.decode(body, type=_Body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return "it does not say why"
    error = found.error.message if isinstance(found.error, UpstreamError) else found.error
    return " ".join((error or found.message or "it does not say why").split())[:_MOST_TEXT]


def _seconds(value: str | None) -> float | None:
    """Read a `Retry-After` header, which holds seconds or a date; None if it is missing or makes no sense."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds < float("inf") else None
