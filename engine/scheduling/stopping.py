"""Appends sampled tokens to an answer and decides when it has ended. Pure."""

from __future__ import annotations

from collections.abc import Container

from engine.plan import Sampled
from engine.request import Request
from engine.wire import FinishReason


def accept(
    request: Request, result: Sampled, eos_token_ids: Container[int], context: int
) -> tuple[Sampled, FinishReason | None]:
    """Append sampled tokens to an answer, up to its end; return those that count, and the reason if it ends there."""
    for said, token in enumerate(result.tokens, 1):
        request.output.append(token)
        if request.matcher is not None:
            request.matcher.consume(token)
        reason = stop_reason(request, eos_token_ids, context)
        if reason is not None:
            return result.first(said), reason
    return result, None


def stop_reason(request: Request, eos_token_ids: Container[int], context: int) -> FinishReason | None:
    """Return why the last output token ends the answer, None if it does not. `context`: most tokens of a request."""
    sampling, token = request.sampling, request.output[-1]
    if request.matcher is not None:
        ends = request.matcher.finished  # this takes account of stop tokens
    else:
        ends = token in sampling.stop_token_ids or (not sampling.ignore_eos and token in eos_token_ids)
        ends = ends and len(request.output) > sampling.min_tokens
    if ends:
        return "stop"
    if len(request.output) >= sampling.max_tokens or request.length >= context:
        return "length"
    return None
