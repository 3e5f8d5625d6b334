"""Writes the request to a server in its dialect, and reads which model that is for. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

from engine.cache.prefix_keys import BLOCK_SIZE
from engine.client.generation import RequestInvalid
from engine.request import RequestError
from engine.text.processor import TextProcessor
from engine.validation import validate
from engine.wire import Generate, ModelInfo, SamplingParams
from gateway.upstreams.dialect import ServerDescription, TokenDialect

_READ_HERE = frozenset({"logprobs", "prompt_logprobs", "stop_token_ids", "max_tokens", "min_tokens"})
"""Parameters that are written in another way than the others, or are ours to enforce."""
_DEFAULTS = SamplingParams()


def model_info(found: ServerDescription, dialect: TokenDialect, text: TextProcessor) -> ModelInfo:
    """Return the model that a server describes. Args: text: its tokenizer."""
    identity = f"{dialect.name}\n{found.identity}\n{text.digest}"
    return ModelInfo(
        name=found.model,
        revision=hashlib.blake2b(identity.encode(), digest_size=16).hexdigest(),
        context=found.context if dialect.context is None else dialect.context,
        vocabulary=text.vocabulary,
        eos_token_ids=text.eos_token_ids,
        block_size=BLOCK_SIZE,
        device=dialect.name,
        dtype="",
    )


def seed_of(sampling: SamplingParams, dialect: TokenDialect) -> int:
    """Return the seed as the server has it; 0 if it has none."""
    seed = dialect.sampling.get("seed")
    return 0 if seed is None else int(seed.encode(sampling.seed))


def request_body(request: Generate, dialect: TokenDialect, model: ModelInfo) -> dict[str, Any]:
    """Return the body of the request for an answer, or for the rest of one, without its adapter.

    Raises:
        RequestInvalid: the server can never serve it; the message names the field and the remedy.
    """
    try:
        validate(request, model, adapters=True)
    except RequestError as error:
        raise RequestInvalid(str(error), started=False, field=error.field) from None
    sampling = request.sampling
    inner = _sampling(sampling, dialect)
    inner[dialect.sampling["max_tokens"].name] = sampling.max_tokens - request.resumed
    if sampling.min_tokens > request.resumed:
        inner[_named("min_tokens", dialect)] = sampling.min_tokens - request.resumed
    if sampling.prompt_logprobs is not None:
        raise _lacking("prompt_logprobs", dialect)
    if request.grammar is not None:
        write = dialect.grammars.get(request.grammar.kind)
        if write is None:
            raise RequestInvalid(
                f"grammar: servers of the dialect {dialect.name} cannot follow one of the kind {request.grammar.kind}",
                started=False,
                field="grammar",
            )
        inner |= write(request.grammar.source)
    body: dict[str, Any] = {**dialect.constants, dialect.prompt: request.prompt}
    if dialect.model is not None:
        body[dialect.model] = model.name
    if dialect.salt is not None and request.salt:
        body[dialect.salt] = request.salt.hex()
    if sampling.logprobs is not None:
        if dialect.most_logprobs is not None and sampling.logprobs > dialect.most_logprobs:
            raise _too_many_logprobs(dialect.name, dialect.most_logprobs)
        body |= dialect.logprobs(sampling.logprobs)
    return body | (inner if dialect.within is None else {dialect.within: inner})


def _sampling(sampling: SamplingParams, dialect: TokenDialect) -> dict[str, Any]:
    """Return the parameters that have one counterpart each; empty logit biases are left out."""
    found: dict[str, Any] = {}
    for name in SamplingParams.__struct_fields__:
        value = getattr(sampling, name)
        if name in _READ_HERE or name in dialect.ignored or value == {}:
            continue
        if name in dialect.sampling:
            parameter = dialect.sampling[name]
            found[parameter.name] = parameter.encode(value)
        elif value != getattr(_DEFAULTS, name):
            raise _lacking(name, dialect)
    return found


def _named(name: str, dialect: TokenDialect) -> str:
    if name not in dialect.sampling:
        raise _lacking(name, dialect)
    return dialect.sampling[name].name


def _too_many_logprobs(dialect: str, most: int) -> RequestInvalid:
    message = f"logprobs: servers of the dialect {dialect} tell those of {most} tokens beside the chosen one at most"
    return RequestInvalid(message, started=False, field="logprobs")


def _lacking(name: str, dialect: TokenDialect) -> RequestInvalid:
    message = f"{name}: servers of the dialect {dialect.name} have no such parameter; leave it out"
    return RequestInvalid(message, started=False, field=name)
