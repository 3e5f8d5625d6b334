"""Writes a turn's prompt for each model that may answer it, and turns an engine's log-probabilities back into text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from engine.client.conversation import ChatPrompt, Prompt
from engine.client.encoder import LONG_TEXT
from engine.text.processor import ChatTemplateError, TextProcessor
from engine.wire import TokenIdLogprob as EngineLogprob
from gateway.engines.pool import Pool
from gateway.errors import InvalidRequest
from gateway.pipeline.conversing import conversed, refused, refused_by
from gateway.protocol.requests import Message
from gateway.protocol.stream import PromptScored, TokenLogprob
from gateway.tools.prompt import template_messages, template_tools
from gateway.turns import Turn
from gateway.upstreams.dialects import MESSAGE_DIALECTS

TokenIds = Sequence[int]


class WrittenPrompts(Struct, frozen=True):
    """A turn's prompt for each pool."""

    prompts: dict[str, Prompt]
    """Prompt by name of the pools that can be asked it."""
    unsuited: dict[str, str]
    """Field of the request that the servers of a pool lack, by name of those that cannot be asked it."""


async def write(turn: Turn, pools: Sequence[Pool]) -> WrittenPrompts:
    """Write the prompt for each pool: token ids, or a conversation for pools that take messages. Pools that are asked
    the same share one.

    Raises:
        InvalidRequest: no pool can be asked it, or a chat template refuses the conversation.
    """
    encoded: dict[tuple[str, str], Prompt] = {}
    written, refusals = dict[str, Prompt](), dict[str, InvalidRequest]()
    room = max((pool.context for pool in pools), default=0) - (turn.request.max_output_tokens or 1)
    for pool in pools:
        if pool.takes_messages and (refusal := refused(turn.request)) is not None:
            refusals[pool.name] = refusal
            continue
        key = (pool.vocabulary, pool.tools.name)
        if key not in encoded:
            ids = await _encode(turn, pool, turn.conversation)
            encoded[key] = await _truncated(turn, pool, room) if turn.request.truncate and len(ids) > room else ids
        prompt = encoded[key]
        if isinstance(prompt, ChatPrompt):
            dialect = MESSAGE_DIALECTS[pool.dialect]
            if (refusal := refused_by(dialect, turn.request, prompt, pool.defaults)) is not None:
                refusals[pool.name] = refusal
                continue
        written[pool.name] = prompt
    if refusals and not written:
        raise next(iter(refusals.values()))
    return WrittenPrompts(written, {name: refusal.param or "it" for name, refusal in refusals.items()})


def size_of(turn: Turn) -> int:
    """Return the characters that the model will read, or the tokens of a prompt of ids."""
    request = turn.request
    size = len(request.prompt) if request.prompt is not None else sum(message.size for message in turn.conversation)
    return size + (request.tools.size if request.tools else 0)


async def _truncated(turn: Turn, pool: Pool, room: int) -> Prompt:
    """Return the prompt without as many of the oldest messages as it takes to fit into `room`.

    System messages stay, and so does the newest message, with the call that it answers. If that is too long by itself,
    the router says so.
    """
    said = turn.conversation
    starts = [index for index, message in enumerate(said) if message.role not in ("system", "tool")] or [0]

    async def encoded(start: int) -> Prompt:
        kept = [message for index, message in enumerate(said) if index >= start or message.role == "system"]
        return await _encode(turn, pool, kept)

    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        if len(await encoded(starts[middle])) <= room:
            high = middle
        else:
            low = middle + 1
    return await encoded(starts[low])


async def _encode(turn: Turn, pool: Pool, conversation: Sequence[Message]) -> Prompt:
    if pool.takes_messages:
        return conversed(turn.request, conversation)
    request, text, encoder = turn.request, pool.text, pool.encoder
    assert encoder is not None
    if isinstance(request.prompt, str):
        encode = partial(text.encode, request.prompt, special=request.add_special_tokens)
        return encode() if len(request.prompt) < LONG_TEXT else await asyncio.to_thread(encode)
    if request.prompt is not None:
        return list(request.prompt)
    tools = request.tools.tools if request.tools and request.tools.active else ()
    messages = template_messages(conversation, pool.tools, tools, request.instructions)
    variables: dict[str, Any] = {**request.template}
    try:
        return await encoder.encode(messages, tools=template_tools(tools) if pool.tools.native else None, **variables)
    except ChatTemplateError as error:
        raise InvalidRequest(f"the model's chat template refuses this conversation: {error}") from None


def scored(prompt: TokenIds, logprobs: Sequence[EngineLogprob | None], text: TextProcessor) -> PromptScored:
    """Return the prompt's log-probabilities in text."""
    return PromptScored(tuple(prompt), tuple(None if entry is None else logprob(entry, text) for entry in logprobs))


def logprob(entry: EngineLogprob, text: TextProcessor) -> TokenLogprob:
    """Return one position's log-probabilities in text."""
    top = tuple(_one(token, value, text) for token, value in entry.top)
    return _one(entry.token, entry.logprob, text, top)


def _one(token: int, value: float, text: TextProcessor, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    spelled = text.token_bytes(token)
    return TokenLogprob(spelled.decode("utf-8", errors="replace"), tuple(spelled), value, top)
