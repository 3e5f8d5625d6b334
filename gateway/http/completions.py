"""`POST /v1/completions`, OpenAI's text completion endpoint: raw prompts, echo and scores for evaluation tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from engine.text.processor import TextProcessor
from gateway.http.choices import OPENAI, Choices, respond
from gateway.protocol.caching import Caching
from gateway.protocol.choices import ChoicesRequest
from gateway.protocol.completion_create import CompletionCreate, parse_completion_create
from gateway.protocol.stream import Finished, PromptScored, TextDelta, TokenLogprob

Scores = dict[str, list[Any]]
"""Parallel lists, one item per token: `tokens`, `token_logprobs`, `top_logprobs`, `text_offset`."""


class Completions:
    """The format of text completions, see `gateway.http.choices.Format`."""

    body: type[Struct] = CompletionCreate
    framing = OPENAI
    prompt_field = "prompt"

    def parse(self, body: Mapping[str, Any], caching: Caching) -> ChoicesRequest:
        return parse_completion_create(body, caching)

    async def whole(self, choices: Choices) -> dict[str, Any]:
        await choices.ended()
        shown = [_choice(index, "", _no_scores() if _scored(choices) else None) for index in range(len(choices.logs))]
        async for piece in _pieces(choices):
            choice = shown[piece.index]
            choice["text"] += piece.text
            choice["finish_reason"] = piece.finish_reason
            for name, values in (piece.scores or {}).items():
                choice["logprobs"][name] += values
        return {**choices.envelope("cmpl-", "text_completion"), "choices": shown, "usage": choices.usage()}

    async def chunks(self, choices: Choices) -> AsyncIterator[dict[str, Any]]:
        async for piece in _pieces(choices):
            choice = _choice(piece.index, piece.text, piece.scores, piece.finish_reason)
            yield {**_envelope(choices), "choices": [choice], **choices.running_usage()}
        if choices.request.include_usage:
            yield {**_envelope(choices), "choices": [], "usage": choices.usage()}


async def create(request: Request) -> Response:
    """`POST /v1/completions`."""
    return await respond(request, Completions())


routes: list[BaseRoute] = [Route("/v1/completions", create, methods=["POST"])]


class _Piece(Struct, frozen=True):
    """An addition to one answer."""

    index: int
    text: str = ""
    scores: Scores | None = None
    finish_reason: str | None = None


async def _pieces(choices: Choices) -> AsyncIterator[_Piece]:
    """Yield all answers piece by piece: the prompt if it is to be echoed, the text, the end."""
    scorers: dict[int, _Scorer] = {}
    async for index, entry in choices.entries():
        event = entry.event
        if not isinstance(event, PromptScored | TextDelta | Finished):
            continue
        text = choices.text(index)
        if index not in scorers:
            scorer = partial(_Scorer, text, choices.request.turns[index].skip_special_tokens)
            echo = _prompt_text(choices, index, text) if choices.request.echo else ""
            scorers[index] = scorer(len(echo))
            if choices.request.echo:
                scores = scorer()(event.token_ids, event.logprobs) if isinstance(event, PromptScored) else None
                yield _Piece(index, echo, scores)
        if isinstance(event, TextDelta) and (event.text or event.logprobs):
            scores = scorers[index](event.token_ids, event.logprobs) if _scored(choices) else None
            yield _Piece(index, event.text, scores)
        if isinstance(event, Finished):
            yield _Piece(index, finish_reason=event.reason)


class _Scorer:
    """Makes the scores of a growing text. Tokens that complete one character together have its offset."""

    def __init__(self, text: TextProcessor, skip_special: bool, offset: int = 0) -> None:
        self._text = text
        self._detokenizer = text.detokenizer(skip_special)
        self._offset = offset
        """Number of characters of the whole text before the next token."""

    def __call__(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob | None]) -> Scores:
        scores = _no_scores()
        for token, entry in zip(token_ids, logprobs, strict=True):
            spelling, piece = _spelling(self._text.token_bytes(token)), self._detokenizer.push(token)
            # The text of a broken character before it comes with it.
            held_back = len(piece) - len(spelling) if piece.endswith(spelling) else 0
            scores["tokens"].append(spelling)
            scores["token_logprobs"].append(entry and entry.logprob)
            scores["top_logprobs"].append(entry and _alternatives(entry))
            scores["text_offset"].append(self._offset + held_back)
            self._offset += len(piece)
        return scores


def _alternatives(entry: TokenLogprob) -> dict[str, float]:
    """Log-probabilities by token: the most likely ones, and always the one that stands there."""
    return {_spelling(bytes(token.bytes)): token.logprob for token in (*entry.top, entry)}


def _spelling(token: bytes) -> str:
    """Spell a token; a part of a character as OpenAI does, because U+FFFD would make different ones equal."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _prompt_text(choices: Choices, index: int, text: TextProcessor) -> str:
    asked = choices.request.turns[index]
    assert asked.prompt is not None
    return asked.prompt if isinstance(asked.prompt, str) else text.decode(asked.prompt, asked.skip_special_tokens)


def _choice(index: int, text: str, scores: Scores | None, finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": scores, "finish_reason": finish_reason}


def _scored(choices: Choices) -> bool:
    sampling = choices.request.turns[0].sampling
    return sampling.logprobs is not None


def _no_scores() -> Scores:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _envelope(choices: Choices) -> dict[str, Any]:
    return choices.envelope("cmpl-", "text_completion")
