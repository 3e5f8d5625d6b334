"""The body of `POST /v1/embeddings`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.errors import InvalidRequest
from gateway.protocol.requests import converted

MAX_INPUTS = 2048
"""Most texts of one request; OpenAI's limit."""


class EmbeddingRequest(Struct, frozen=True):
    """Texts to embed."""

    texts: list[str]
    model: str
    dimensions: int | None = None
    base64: bool = False
    """Whether vectors are sent as base64."""
    field: str = "input"
    """Name of the body's field that holds the texts."""


class EmbeddingCreate(Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's parameters."""

    input: Any
    model: Annotated[str, Meta(min_length=1, max_length=256)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=65_536)] | None = None
    user: str | None = None
    """Accepted, without effect."""


def parse_embedding_create(body: Mapping[str, Any]) -> EmbeddingRequest:
    """Return what a body asks for.

    Raises:
        InvalidRequest: a parameter is missing, unknown, of the wrong type, out of range or not served; `param` names
            it.
    """
    create = converted(body, EmbeddingCreate)
    base64 = create.encoding_format == "base64"
    return EmbeddingRequest(checked_texts(create.input), create.model, create.dimensions, base64)


def checked_texts(input: Any) -> list[str]:
    """Return the texts of an `input`: one, or a list of them.

    Raises:
        InvalidRequest: it holds something else, nothing, or too many.
    """
    texts: list[Any] = input if isinstance(input, list) else [input]
    if not texts:
        raise _invalid("expected a text or a list of texts that is not empty")
    if len(texts) > MAX_INPUTS:
        raise _invalid(f"{len(texts)} texts; at most {MAX_INPUTS} in one request")
    for index, text in enumerate(texts):
        if isinstance(text, int | list):
            raise _invalid(
                "token ids are not served, because they mean different texts to different models: send texts "
                "(langchain's OpenAIEmbeddings does with check_embedding_ctx_length=False)",
                code="unsupported_value",
            )
        if not isinstance(text, str):
            raise _invalid("expected a text or a list of texts")
        if not text:
            raise _invalid(f"text {index} is empty; leave it out")
    return texts


def _invalid(reason: str, code: str = "invalid_value") -> InvalidRequest:
    return InvalidRequest(f"input: {reason}", param="input", code=code)
