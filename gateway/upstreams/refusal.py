"""Turns a server's refusal of a request, and its errors amidst an answer, into failures of an engine. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time

import msgspec
from msgspec import Struct

from engine.client.generation import EngineOverloaded, RequestFailed, RequestInvalid
from gateway.upstreams.dialect import UpstreamError

OVERLOADED = frozenset({429, 503, 529})
"""Statuses of a server that is too busy."""
_INVALID = frozenset({400, 413, 422})
_MOST_TEXT = 300
"""Most characters passed on of what a server says."""


class _Body(Struct):
    """Forms of an error's body: OpenAI's, and a message alone, as SGLang names it too."""

    error: UpstreamError | str | None = None
    message: str | None = None
    error_message: str | None = None


def refusal(status: int, headers: Mapping[str, str], body: bytes, address: str) -> RequestFailed:
    """Return the failure that an answer with this status stands for.

    Args:
        address: see `server_failure`.
    """
    retry_after = _seconds(headers.get("retry-after"))
    return server_failure(UpstreamError(said(body), status), address, started=False, retry_after=retry_after)


def server_failure(
    error: UpstreamError, address: str, *, started: bool, retry_after: float | None = None
) -> RequestFailed:
    """Return the failure that a server's error stands for.

    Args:
        address: of the server; only for messages to operators, which is all but those of `RequestInvalid`.
    """
    message = " ".join(error.message.split())[:_MOST_TEXT] or UpstreamError().message
    if error.status in _INVALID:
        return RequestInvalid(f"the model's server refuses the request: {message}", started=started)
    if error.status in OVERLOADED:
        return EngineOverloaded("the model's server is too busy", started=started, retry_after=retry_after)
    # Not what it says, which goes to the log here and may repeat what clients or models have written.
    fails = f"fails ({error.status or 'in its answer'}); its own log says why"
    what = "refuses our key" if error.status in (401, 403) else fails
    return RequestFailed(f"server {address} {what}", started=started)


def said(body: bytes) -> str:
    """Return the message of an error's body; empty if there is none."""
    try:
        found = msgspec.json.decode(body, type=_Body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ""
    error = found.error.message if isinstance(found.error, UpstreamError) else found.error
    return error or found.message or found.error_message or ""


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
