"""Writes a turn for servers that take messages: they apply the chat template and count the tokens. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

import msgspec

from engine.client.conversation import (
    MESSAGE_TOKENS,
    ChatCall,
    ChatPrompt,
    ChatPromptMessage,
    ChatTool,
    estimated_tokens,
)
from engine.client.generation import RequestInvalid
from engine.text.processor import SamplingDefaults
from engine.wire import Generate
from gateway.errors import InvalidRequest
from gateway.pipeline.invalid import invalid
from gateway.protocol.requests import CONTINUED, Message, TurnRequest
from gateway.tools.answer import Constraint
from gateway.upstreams.messages.body import request_body
from gateway.upstreams.messages.dialect import MessageDialect


def asked_format(request: TurnRequest) -> Constraint | None:
    """Return the format of the answer, if the request asks for one."""
    wanted = request.format
    return Constraint(wanted.grammar, wanted.param) if wanted and request.generate else None


def refused_by(
    dialect: MessageDialect, request: TurnRequest, conversation: ChatPrompt, defaults: SamplingDefaults
) -> InvalidRequest | None:
    """Return why servers of a dialect cannot be asked this; None if they can. Args: defaults: of their model."""
    held = asked_format(request)
    sampling = request.sampling.resolve(defaults, max_tokens=1, seed=0)
    try:
        request_body(conversation, Generate("", [], sampling, grammar=held.grammar if held else None), dialect, "")
    except RequestInvalid as failure:
        return invalid(failure, held)
    return None


def refused(request: TurnRequest) -> InvalidRequest | None:
    """Return why no server that takes messages can be asked this; None if some can."""
    sampling = request.sampling
    if request.prompt is not None:
        reason, param = "takes messages only; send them to /v1/chat/completions, or ask for another model", "prompt"
    elif request.template == CONTINUED:
        reason, param = "cannot go on with a message; let the last one be the user's", "messages"
    elif request.template:
        reason, param = "has a chat template of its own, without variables; leave them out", "chat_template_kwargs"
    elif not request.skip_special_tokens:
        reason, param = "tells no control tokens; leave it out", "skip_special_tokens"
    elif sampling.prompt_logprobs is not None:
        reason, param = "tells none of the prompt; leave it out", "prompt_logprobs"
    elif sampling.stop_token_ids:
        reason, param = "tells no tokens; send stop strings", "stop_token_ids"
    else:
        return None
    return InvalidRequest(f"{param}: the model's server {reason}", param=param, code="unsupported_parameter")


def conversed(request: TurnRequest, said: Sequence[Message]) -> ChatPrompt:
    """Return the conversation that a request asks to go on with."""
    instructions = [ChatPromptMessage("system", request.instructions)] if request.instructions else []
    messages = [*instructions, *map(_message, said)]
    use = request.tools if request.tools is not None and request.tools.active else None
    tools = [ChatTool(tool.name, tool.description, tool.schema, tool.strict) for tool in use.callable] if use else []
    texts = [*_texts(messages), *(msgspec.json.encode(tool).decode() for tool in tools)]
    return ChatPrompt(
        messages=messages,
        tools=tools,
        must_call=use is not None and use.mode == "required",
        parallel=use is None or use.parallel,
        tokens=MESSAGE_TOKENS * len(messages) + ceil(sum(map(estimated_tokens, texts))),
    )


def _message(message: Message) -> ChatPromptMessage:
    calls = tuple(ChatCall(call.id, call.name, call.arguments) for call in message.calls)
    return ChatPromptMessage(message.role, message.content, calls, message.answers)


def _texts(messages: Sequence[ChatPromptMessage]) -> Iterator[str]:
    for message in messages:
        yield message.content
        for call in message.calls:
            yield call.name + call.arguments
