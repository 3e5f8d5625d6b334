"""Errors in Anthropic's shape."""

from __future__ import annotations

from typing import Any

from gateway.errors import ApiError, ContextLengthExceeded

OVERLOADED = 529
"""Anthropic's status where others have 503."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}


def anthropic_status(error: ApiError) -> int:
    """Return the HTTP status of an error."""
    return OVERLOADED if error.status == 503 else error.status


def anthropic_error(error: ApiError, request_id: str | None) -> dict[str, Any]:
    """Return the body of an error response, or the data of a stream's `error` event."""
    status = anthropic_status(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    # Clients shorten a conversation when they read these words.
    words = "prompt is too long: " if isinstance(error, ContextLengthExceeded) else ""
    return {"type": "error", "error": {"type": kind, "message": words + error.message}, "request_id": request_id}
