"""The errors for requests that no engine can answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.errors import ApiError, ContextLengthExceeded, ModelNotFound, Unavailable, retry_after_header
from router.route import NoRoute, Refusal

NAMED_ADAPTERS = 20
"""Most adapters that a refusal lists."""


def refused(refusal: NoRoute, adapters: Sequence[str], retry_after: Callable[[], float]) -> ApiError:
    """Return the error for the client.

    Args:
        adapters: those that it could have named.
        retry_after: seconds until a pool that is full has room.
    """
    match refusal.refusal:
        case Refusal.UNKNOWN_MODEL:
            more = ", ..." if len(adapters) > NAMED_ADAPTERS else ""
            named = ", ".join(["", *adapters[:NAMED_ADAPTERS]])
            return ModelNotFound(f"{refusal}{named}{more}", param="model")
        case Refusal.CONTEXT:
            return ContextLengthExceeded(str(refusal), param="input")
        case Refusal.FULL:
            return Unavailable(str(refusal), code="overloaded", headers=retry_after_header(retry_after()))
        case Refusal.UNAVAILABLE:
            return Unavailable(str(refusal), headers={"retry-after": "2"})
