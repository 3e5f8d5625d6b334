"""What clients are told of a request: its gains in a step, its usage, its last words. Pure."""

from __future__ import annotations

from engine.plan import Sampled
from engine.request import Request, RequestError
from engine.wire import Output, TokenIdLogprob, Usage


def gained(request: Request, result: Sampled, start: int) -> Output | None:
    """What a row gained; None for a chunk of a prompt that has nothing to tell."""
    prompt_logprobs = _prompt_logprobs(request, result, start)
    if not result.tokens and prompt_logprobs is None:
        return None
    first = 0 < len(request.output) - request.resumed <= len(result.tokens)
    return Output(
        request.id,
        tokens=list(result.tokens),
        logprobs=None if result.logprobs is None else list(result.logprobs),
        prompt_logprobs=prompt_logprobs,
        finish=request.finish,
        grammar_complete=request.finish == "stop" and request.matcher is not None and request.matcher.complete,
        usage=usage_of(request) if first or request.finish is not None else None,
    )


def _prompt_logprobs(request: Request, result: Sampled, start: int) -> list[TokenIdLogprob | None] | None:
    """The prompt positions of this row that the client does not have yet."""
    if request.sampling.prompt_logprobs is None:
        return None
    # Running position p gives the log-probability of position p + 1; position 0 has none.
    entries: list[TokenIdLogprob | None] = [*(result.prompt_logprobs or [])]
    position = start + 1
    if start == 0:
        entries, position = [None, *entries], 0
    new = entries[max(request.prompt_logprobs_sent - position, 0) :]
    request.prompt_logprobs_sent += len(new)
    return new or None


def usage_of(request: Request) -> Usage:
    waited = 0.0 if request.first_scheduled is None else request.first_scheduled - request.arrival
    return Usage(
        prompt_tokens=len(request.prompt),
        cached_tokens=request.cached,
        output_tokens=len(request.output),
        queue_seconds=waited,
        preemptions=request.preemptions,
    )


def failed(id: str, error: RequestError, usage: Usage | None = None) -> Output:
    """The last words of a request that ends with an error."""
    return Output(
        id,
        finish="error",
        usage=usage,
        error=str(error),
        error_kind=error.kind,
        error_field=error.field,
        retry_after=error.retry_after,
    )
