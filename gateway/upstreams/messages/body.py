"""Writes the request for the answer to a conversation in a server's dialect. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.client.conversation import ChatPrompt
from engine.client.generation import RequestInvalid
from engine.wire import Generate, Grammar, SamplingParams
from gateway.upstreams.messages.dialect import MessageDialect

_WRITTEN_APART: Final = frozenset({"max_tokens", "logprobs"})
_DEFAULTS: Final = SamplingParams()
_ALWAYS: Final = frozenset({"temperature", "top_p", "seed"})
"""Parameters that are sent whatever their value, because servers have defaults of their own."""


def request_body(conversation: ChatPrompt, request: Generate, dialect: MessageDialect, model: str) -> dict[str, Any]:
    """Return the body of the request.

    Args:
        request: everything but the prompt.
        model: the model's name at the server.

    Raises:
        RequestInvalid: the server can never serve it; the message names the field and the remedy.
    """
    if request.adapter is not None:
        raise _refused("adapter", f"servers of the dialect {dialect.name} have none here; ask for the model itself")
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        dialect.max_tokens: sampling.max_tokens,
        **dialect.constants,
        **dialect.messages(conversation.messages),
        **_sampling(sampling, dialect),
        **_logprobs(sampling.logprobs, dialect),
        **_tools(conversation, dialect),
    }
    if request.grammar is not None:
        body |= _format(request.grammar, conversation, dialect)
    return body


def _sampling(sampling: SamplingParams, dialect: MessageDialect) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in SamplingParams.__struct_fields__:
        value = getattr(sampling, name)
        plain = value == getattr(_DEFAULTS, name)
        if name in _WRITTEN_APART or name in dialect.ignored or (plain and name not in _ALWAYS):
            continue
        if name in dialect.neutral and value == dialect.neutral[name]:
            continue
        if name in dialect.sampling:
            parameter = dialect.sampling[name]
            found[parameter.name] = parameter.encode(value)
        elif not plain:
            raise _refused(name, f"servers of the dialect {dialect.name} have no such parameter; leave it out")
    return found


def _logprobs(wanted: int | None, dialect: MessageDialect) -> Mapping[str, Any]:
    if wanted is None:
        return {}
    if dialect.logprobs is None:
        raise _refused("logprobs", f"servers of the dialect {dialect.name} tell none; leave it out")
    if wanted > dialect.most_logprobs:
        raise _refused("logprobs", f"servers of the dialect {dialect.name} tell {dialect.most_logprobs} at most")
    return dialect.logprobs(wanted)


def _tools(conversation: ChatPrompt, dialect: MessageDialect) -> Mapping[str, Any]:
    tools, spoken = conversation.tools, dialect.tools
    if not tools:
        return {}
    if not spoken.strict and any(tool.strict for tool in tools):
        raise _refused(
            "tools", f"servers of the dialect {dialect.name} hold no arguments to a schema; leave out strict"
        )
    if conversation.must_call and not spoken.must_call:
        raise _refused(
            "tool_choice", f"servers of the dialect {dialect.name} cannot be made to call; use tool_choice 'auto'"
        )
    if not (conversation.parallel or spoken.one_call):
        raise _refused(
            "parallel_tool_calls", f"servers of the dialect {dialect.name} have no such parameter; leave it out"
        )
    choice = spoken.choice(tools, must_call=conversation.must_call, parallel=conversation.parallel)
    return {**spoken.tools(tools), **choice}


def _format(grammar: Grammar, conversation: ChatPrompt, dialect: MessageDialect) -> Mapping[str, Any]:
    write = dialect.formats.get(grammar.kind)
    if write is None:
        raise _refused(
            "grammar",
            f"servers of the dialect {dialect.name} cannot follow one of the kind {grammar.kind}; "
            f"ask for {' or '.join(dialect.formats) or 'text'}",
        )
    if conversation.tools and not dialect.tools.with_format:
        raise _refused("tools", f"servers of the dialect {dialect.name} have tools or a format; leave out one of them")
    return write(grammar)


def _refused(field: str, reason: str) -> RequestInvalid:
    return RequestInvalid(f"{field}: {reason}", started=False, field=field)
