"""`POST /v1/embeddings`, OpenAI's: texts in, vectors out. The embedder's process computes them.

`respond` answers in the format of other APIs too, see `gateway.http.ollama`.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from cache.embedding.client import EmbedderClient, EmbedRefused
from cache.embedding.wire import MAX_CHARACTERS, MAX_TEXTS, EmbedderInfo
from gateway.access.identity import Principal
from gateway.billing.cost import cost, picodollars
from gateway.billing.entry import LedgerEntry, Outcome
from gateway.errors import ApiError, ContextLengthExceeded, ModelNotFound, Unavailable, invalid_value
from gateway.http.exchange import JsonResponse, read_parameters, while_connected
from gateway.limits.readings import headers as limit_headers
from gateway.limits.subjects import subjects_of
from gateway.protocol.embedding_create import EmbeddingCreate, EmbeddingRequest, parse_embedding_create
from gateway.records.quota import Amounts
from gateway.services import Gateway, gateway_of

_SECONDS = 60.0
"""Seconds that a batch of texts may take, including the wait for those of others before it."""
_OFF_LOOP = 16
"""Number of vectors from which a thread writes the body, so that the event loop goes on."""

T = TypeVar("T")
Vectors = NDArray[np.float32]


class EmbeddingFormat(Struct, frozen=True):
    """The format of one endpoint."""

    body: type[Struct]
    """The body's parameters."""
    parse: Callable[[Mapping[str, Any]], EmbeddingRequest]
    answer: Callable[[EmbeddingRequest, Vectors, int], dict[str, Any]]
    """Makes the body of a response of the request, its vectors, one a row, and the number of their texts' tokens."""


async def create(request: Request) -> Response:
    """`POST /v1/embeddings`."""
    return await respond(request, OPENAI)


async def respond(request: Request, format: EmbeddingFormat) -> Response:
    """Answer a request in the format of its endpoint. Computes no more once its client has gone."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    asked = format.parse(await read_parameters(request, principal, format.body))
    return await while_connected(request.receive, answer(gateway, principal, asked, format))


routes: list[BaseRoute] = [Route("/v1/embeddings", create, methods=["POST"])]


async def answer(gateway: Gateway, principal: Principal, asked: EmbeddingRequest, format: EmbeddingFormat) -> Response:
    """Compute the vectors that are asked for. Raises ApiError."""
    client, hello = _embedder(gateway, principal, asked.model)
    dimensions = _dimensions(gateway, hello, asked.dimensions)
    tenant = gateway.view.tenant(principal.tenant)
    price = gateway.view.price(hello.model)
    subjects = subjects_of(gateway.settings.limits, tenant, principal, hello.model, None)
    id = gateway.turns.ids.new(principal.tenant)
    reservation = await gateway.limiter.reserve(principal.tenant, id, Amounts(requests=1, turns=1), subjects)
    try:
        tokens = await _tokens(client, hello, asked)
        spend = 0 if price is None else cost(price, sum(tokens), 0, 0)
        wanted = Amounts(requests=1, turns=1, input_tokens=sum(tokens), spend=spend)
        await gateway.limiter.extend(reservation, wanted, subjects)
    except BaseException:
        await gateway.limiter.settle(reservation, Amounts())
        raise
    # What is computed is owed, also by a client that has gone meanwhile or an embedder that dies halfway.
    used = 0
    outcome: Outcome = "failed"

    def entry(outcome: Outcome) -> LedgerEntry:
        return LedgerEntry(
            turn=id,
            at=int(time.time() * 1000),
            tenant=principal.tenant,
            key=principal.key,
            user=principal.user,
            model=hello.model,
            outcome=outcome,
            cache="bypass",
            input=used,
            picodollars=None if price is None else picodollars(price, used, 0, 0),
        )

    def charged() -> Amounts:
        return Amounts(input_tokens=used, spend=0 if price is None else cost(price, used, 0, 0))

    gateway.ledger.open(id, lambda: entry("lost") if used else None, lambda: reservation.charges(charged()))
    vectors: list[Vectors] = []
    try:
        for start in range(0, len(asked.texts), MAX_TEXTS):
            batch = asked.texts[start : start + MAX_TEXTS]
            embedded = await _asked(client.embed(batch, seconds=_SECONDS, urgent=False), asked, start)
            vectors.append(embedded.vectors)
            used += sum(tokens[start : start + MAX_TEXTS])
        outcome = "completed"
    except asyncio.CancelledError:
        outcome = "cancelled"
        raise
    finally:
        gateway.ledger.close(id, entry(outcome) if used else None, reservation.charges(charged(), ended=True))
        limits = await gateway.limiter.settle(reservation, charged())
    headers = limit_headers(limits)
    if price is not None:
        headers["x-roundhouse-cost-microdollars"] = str(charged().spend)
    render = partial(_rendered, format, asked, vectors, dimensions, sum(tokens), headers)
    return await asyncio.to_thread(render) if len(tokens) >= _OFF_LOOP else render()


def _embedder(gateway: Gateway, principal: Principal, model: str) -> tuple[EmbedderClient, EmbedderInfo]:
    """
    Raises:
        ModelNotFound: there is no such model, or none at all, or the tenant may not use it.
        Unavailable: the embedder is still starting.
    """
    client = gateway.embedder
    if client is None:
        raise ModelNotFound("this server has no embedding model (embedder.enabled is off)", param="model")
    hello = client.hello
    if hello is None:
        raise Unavailable("the embedder is starting; try again in a few seconds", headers={"retry-after": "2"})
    tenant = gateway.view.tenant(principal.tenant)
    allowed = tenant is None or tenant.may_use(hello.model)
    if model != hello.model or not allowed:
        named = f"; available: {hello.model}" if allowed else ""
        raise ModelNotFound(f"the embedding model '{model[:256]}' does not exist{named}", param="model")
    return client, hello


def _dimensions(gateway: Gateway, hello: EmbedderInfo, asked: int | None) -> int:
    allowed = sorted(
        {hello.dimensions, *(each for each in gateway.settings.embedder.dimensions if each < hello.dimensions)}
    )
    if asked is not None and asked not in allowed:
        raise invalid_value(
            "dimensions",
            f"vectors of {hello.model} have {', '.join(map(str, allowed))} dimensions, not {asked}; leave it out",
        )
    return asked or hello.dimensions


async def _tokens(client: EmbedderClient, hello: EmbedderInfo, asked: EmbeddingRequest) -> list[int]:
    """Count the tokens of each text. Raises ContextLengthExceeded: a text is too long."""
    tokens: list[int] = []
    texts = asked.texts
    for start in range(0, len(texts), MAX_TEXTS):
        batch = texts[start : start + MAX_TEXTS]
        for index, text in enumerate(batch, start):
            if len(text) > MAX_CHARACTERS:
                raise _too_long(asked, index, f"has {len(text)} characters; at most {MAX_CHARACTERS}")
        tokens += await _asked(client.count(batch, seconds=_SECONDS), asked, start)
    for index, length in enumerate(tokens):
        if length > hello.max_tokens:
            raise _too_long(asked, index, f"has {length} tokens; {hello.model} reads {hello.max_tokens}")
    return tokens


def _too_long(asked: EmbeddingRequest, index: int, reason: str) -> ContextLengthExceeded:
    return ContextLengthExceeded(f"{asked.field}: text {index} {reason}. Split it", param=asked.field)


async def _asked(answer: Awaitable[T], asked: EmbeddingRequest, start: int) -> T:
    """Await an answer of the embedder; turn a refusal into an error for the client."""
    try:
        return await answer
    except EmbedRefused as refused:
        match refused.reason:
            case "too_long":
                raise _too_long(asked, start + refused.index, "is too long") from None
            case "failed":
                raise ApiError("the embedding model failed on this request") from None
            case _:
                state = "away" if refused.reason == "away" else "busy"
                raise Unavailable(
                    f"the embedder is {state}; try again in a few seconds", headers={"retry-after": "2"}
                ) from None


def _rendered(
    format: EmbeddingFormat,
    asked: EmbeddingRequest,
    batches: Sequence[Vectors],
    dimensions: int,
    tokens: int,
    headers: dict[str, str],
) -> Response:
    """Return a response with the beginning of each vector, which has length 1 again."""
    vectors = np.concatenate(batches)
    if dimensions < vectors.shape[1]:
        vectors = vectors[:, :dimensions]
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return JsonResponse(format.answer(asked, vectors.astype("<f4"), tokens), headers=headers)


def _embedding_list(asked: EmbeddingRequest, vectors: Vectors, tokens: int) -> dict[str, Any]:
    shown = [base64.b64encode(vector).decode() for vector in vectors] if asked.base64 else vectors.tolist()
    data = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(shown)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": asked.model, "usage": usage}


OPENAI = EmbeddingFormat(EmbeddingCreate, parse_embedding_create, _embedding_list)
