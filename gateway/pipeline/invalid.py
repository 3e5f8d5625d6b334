"""What a client is told of a request that an engine can never serve."""

from __future__ import annotations

from engine.client.generation import RequestFailed
from gateway.errors import InvalidRequest
from gateway.tools.answer import Constraint

MAX_REASON = 500
"""Most characters passed on of an engine's complaint about a grammar."""


def invalid(failure: RequestFailed, held: Constraint | None) -> InvalidRequest:
    """Return the error. Args: held: what the answer is held to, if anything."""
    if failure.field == "grammar" and held is not None:
        # llguidance may repeat the whole grammar.
        return InvalidRequest(f"{held.param}: {failure.reason[:MAX_REASON]}", param=held.param, code="invalid_value")
    return InvalidRequest(str(failure), param=failure.field)
