"""Ollama's API below `/api/`: chats, prompts, embeddings, the list of models and the version."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from time import monotonic_ns
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway import __version__
from gateway.errors import ApiError, ModelNotFound, missing_parameter
from gateway.http import embeddings
from gateway.http.choices import Choices, Framing, respond
from gateway.http.exchange import JsonLines, JsonResponse, api_error, read_object
from gateway.http.models import model_list
from gateway.protocol.caching import Caching
from gateway.protocol.choices import ChoicesRequest
from gateway.protocol.embedding_create import EmbeddingRequest
from gateway.protocol.log import LogEntry
from gateway.protocol.ollama.answers import OllamaObject, chat_object, generate_object, whole
from gateway.protocol.ollama.requests import (
    OllamaChat,
    OllamaEmbed,
    OllamaEmbeddings,
    OllamaGenerate,
    parse_ollama_chat,
    parse_ollama_embed,
    parse_ollama_embeddings,
    parse_ollama_generate,
)
from gateway.protocol.stream import Finished
from gateway.services import gateway_of

PATH = "/api/"


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


class Ollama:
    """The format of one of Ollama's endpoints, see `gateway.http.choices.Format`."""

    framing = Framing(_line, lambda error: _line({"error": error.message}), response=JsonLines)

    def __init__(
        self,
        body: type[Struct],
        prompt_field: str,
        parse: Callable[[Mapping[str, Any], Caching], ChoicesRequest],
        made: Callable[[LogEntry], OllamaObject | None],
    ) -> None:
        self.body = body
        self.prompt_field = prompt_field
        self.parse = parse
        self._made = made

    async def whole(self, choices: Choices) -> dict[str, Any]:
        return whole([each async for each in self.chunks(choices)])

    async def chunks(self, choices: Choices) -> AsyncIterator[dict[str, Any]]:
        began = monotonic_ns()
        first: int | None = None
        async for _, entry in choices.entries():
            made = self._made(entry)
            if made is None:
                continue
            now = monotonic_ns()
            first = first or now
            if isinstance(entry.event, Finished):
                made |= {"total_duration": now - began, "load_duration": 0}
                made |= {"prompt_eval_duration": first - began, "eval_duration": now - first}
            yield {"model": choices.routes[0].model, "created_at": _now()} | made


async def chat(request: Request) -> Response:
    """`POST /api/chat`."""
    return await respond(request, Ollama(OllamaChat, "messages", parse_ollama_chat, chat_object))


async def generate(request: Request) -> Response:
    """`POST /api/generate`."""
    return await respond(request, Ollama(OllamaGenerate, "prompt", parse_ollama_generate, generate_object))


async def embed(request: Request) -> Response:
    """`POST /api/embed`: vectors of one or more texts."""
    began = monotonic_ns()

    def answer(asked: EmbeddingRequest, vectors: embeddings.Vectors, tokens: int) -> dict[str, Any]:
        times = {"total_duration": monotonic_ns() - began, "load_duration": 0}
        return {"model": asked.model, "embeddings": vectors.tolist(), **times, "prompt_eval_count": tokens}

    return await embeddings.respond(request, embeddings.EmbeddingFormat(OllamaEmbed, parse_ollama_embed, answer))


async def embed_one(request: Request) -> Response:
    """`POST /api/embeddings`: the vector of one text."""

    def answer(asked: EmbeddingRequest, vectors: embeddings.Vectors, tokens: int) -> dict[str, Any]:
        return {"embedding": vectors[0].tolist()}

    format = embeddings.EmbeddingFormat(OllamaEmbeddings, parse_ollama_embeddings, answer)
    return await embeddings.respond(request, format)


async def tags(request: Request) -> Response:
    """`GET /api/tags`: the names that `/v1/models` lists."""
    gateway = gateway_of(request)
    models = model_list(gateway, await gateway.authenticate(request, "models"))
    return JsonResponse({"models": [{"name": model["id"], "model": model["id"], **_about(model)} for model in models]})


async def show(request: Request) -> Response:
    """`POST /api/show`: one of these names, with its context and what it can do."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "models")
    body = await read_object(request)
    name = body.get("model") or body.get("name")
    if not isinstance(name, str):
        raise missing_parameter("model")
    for model in model_list(gateway, principal):
        if model["id"] == name:
            info = {"general.architecture": "roundhouse", "roundhouse.context_length": model["context_length"]}
            capabilities = ["completion", "tools"] if model["type"] == "chat" else ["embedding"]
            return JsonResponse({**_about(model), "model_info": info, "capabilities": capabilities})
    raise ModelNotFound(f"model '{name[:256]}' not found", param="model")


async def version(request: Request) -> Response:
    """`GET /api/version`: of this server."""
    return JsonResponse({"version": __version__})


async def on_error(request: Request, error: Exception) -> Response:
    """Answer an error below `PATH` in Ollama's shape."""
    told: ApiError = api_error(request, error)
    return JsonResponse({"error": told.message}, status_code=told.status, headers=told.headers)


routes: list[BaseRoute] = [
    Route("/api/chat", chat, methods=["POST"]),
    Route("/api/generate", generate, methods=["POST"]),
    Route("/api/embed", embed, methods=["POST"]),
    Route("/api/embeddings", embed_one, methods=["POST"]),
    Route("/api/show", show, methods=["POST"]),
    Route("/api/tags", tags, methods=["GET"]),
    Route("/api/version", version, methods=["GET"]),
]


def _about(model: Mapping[str, Any]) -> dict[str, Any]:
    modified = datetime.fromtimestamp(model["created"], UTC).isoformat()
    return {"modified_at": modified, "details": {"parent_model": model.get("parent") or ""}}


def _now() -> str:
    return datetime.now(UTC).isoformat()
