"""From a turn to token ids for each model that may answer it, and from an engine's log-probabilities back to text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engine.text import ChatTemplateError, TextProcessor
from engine.wire import TokenLogprob as EngineLogprob
from gateway.engines import Pool
from gateway.errors import InvalidRequest
from gateway.protocol.stream import PromptScored, TokenLogprob
from gateway.turns import Turn

LONG_TEXT = 20_000
"""Characters from which a prompt is tokenised in a thread, so that the event loop goes on."""


async def tokenise(turn: Turn, pools: Sequence[Pool]) -> dict[str, list[int]]:
    """The prompt's token ids by pool name. Pools with the same tokenizer and template share one list.

    Raises:
        InvalidRequest: a chat template refuses the conversation, or nothing is left of the prompt.
    """
    raw = len(turn.request.prompt) if turn.request.prompt is not None else 0
    if raw + sum(len(message.content) for message in turn.conversation) < LONG_TEXT:
        return _tokenise(turn, pools)
    return await asyncio.to_thread(_tokenise, turn, pools)


def _tokenise(turn: Turn, pools: Sequence[Pool]) -> dict[str, list[int]]:
    by_vocabulary: dict[str, list[int]] = {}
    prompts = {}
    for pool in pools:
        if pool.vocabulary not in by_vocabulary:
            by_vocabulary[pool.vocabulary] = _encode(turn, pool.text)
        prompts[pool.name] = by_vocabulary[pool.vocabulary]
    return prompts


def _encode(turn: Turn, text: TextProcessor) -> list[int]:
    request = turn.request
    if isinstance(request.prompt, str):
        ids = text.encode(request.prompt)
    elif request.prompt is not None:
        ids = list(request.prompt)
    else:
        system = [{"role": "system", "content": request.instructions}] if request.instructions else []
        said = [{"role": message.role, "content": message.content} for message in turn.conversation]
        try:
            ids = text.encode_chat(system + said)
        except ChatTemplateError as error:
            raise InvalidRequest(f"the model's chat template refuses this conversation: {error}") from None
    if not ids:
        raise InvalidRequest("prompt: empty; send at least one token", param="prompt")
    return ids


def scored(prompt: Sequence[int], logprobs: Sequence[EngineLogprob | None], text: TextProcessor) -> PromptScored:
    """The prompt's log-probabilities in text."""
    return PromptScored(tuple(prompt), tuple(None if entry is None else logprob(entry, text) for entry in logprobs))


def logprob(entry: EngineLogprob, text: TextProcessor) -> TokenLogprob:
    """One position's log-probabilities in text."""
    top = tuple(_one(token, value, text) for token, value in entry.top)
    return _one(entry.token, entry.logprob, text, top)


def _one(token: int, value: float, text: TextProcessor, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    spelled = text.token_bytes(token)
    return TokenLogprob(spelled.decode("utf-8", errors="replace"), tuple(spelled), value, top)
