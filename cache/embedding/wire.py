"""Frames between a gateway and the embedder: four bytes of length (big endian), then MessagePack.

The embedder sends `EmbedderInfo` first, then one `EmbedReply` per `EmbedRequest`, with the request's number and in any
order. Vectors are 32-bit floats, little endian, one after the other, each of length 1.
"""

from __future__ import annotations

import asyncio
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

MAX_FRAME = 8 * 1024 * 1024
"""Longest frame in bytes. A longer one ends the connection."""
MAX_TEXTS = 64
"""Most texts of one `EmbedRequest`."""
MAX_CHARACTERS = 65_536
"""Longest text in characters. A longer one is refused before it is tokenised."""

Refusal = Literal["busy", "late", "too_long", "failed"]
"""Why there are no vectors: the queue is full, the deadline has passed, a text is longer than the model reads, or the
model failed on it."""


class EmbedderInfo(Struct, frozen=True, array_like=True):
    """Description of the embedder and its model."""

    model: str
    """Public name of the model."""
    revision: str
    """Digest of weights, tokenizer and pooling. Vectors of different revisions cannot be compared."""
    dimensions: int
    max_tokens: int
    """Most tokens of one text, special tokens included."""


class EmbedRequest(Struct, frozen=True, array_like=True):
    """Asks for the embeddings of texts."""

    id: int
    texts: list[str]
    urgent: bool
    """Whether a turn waits for the answer: it goes before everything that is not urgent."""
    seconds: float
    """Seconds after which nobody waits for the answer."""
    count: bool = False
    """Whether only the numbers of tokens are asked for."""


class EmbedReply(Struct, frozen=True, array_like=True):
    """Vectors and token counts in the order of the texts, or a refusal."""

    id: int
    vectors: bytes = b""
    tokens: list[int] = []
    refusal: Refusal | None = None
    index: int = 0
    """Index of the text that is too long."""


T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode


def frame(message: EmbedderInfo | EmbedRequest | EmbedReply) -> bytes:
    """Encode one message as a frame."""
    body = _encode(message)
    return len(body).to_bytes(4, "big") + body


async def read(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """Read the next message.

    Raises:
        asyncio.IncompleteReadError: the other side has gone.
        ValueError: a frame is too long, nested too deeply, or not what is expected here.
    """
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > MAX_FRAME:
        raise ValueError(f"a frame of {size} bytes; at most {MAX_FRAME}")
    body = await reader.readexactly(size)
    try:
        return decoder.decode(body)  # msgspec's errors are ValueErrors
    except RecursionError:
        raise ValueError("a frame that is nested too deeply") from None
