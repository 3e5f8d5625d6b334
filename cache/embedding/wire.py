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
"""Bytes. A longer frame ends the connection."""
MAX_TEXTS = 64
"""Texts of one `EmbedRequest`."""
MAX_CHARACTERS = 65_536
"""Of one text. A longer one is refused before it is tokenised."""

Refusal = Literal["busy", "late", "too_long", "failed"]
"""Why there are no vectors: the queue is full, the deadline has passed, a text is longer than the model reads, or the
model failed on it."""


class EmbedderInfo(Struct, frozen=True, array_like=True):
    """What answers here."""

    model: str
    """Public name."""
    revision: str
    """Digest of weights, tokenizer and pooling. Vectors of different revisions cannot be compared."""
    dimensions: int
    max_tokens: int
    """Of one text, special tokens included."""


class EmbedRequest(Struct, frozen=True, array_like=True):
    """Embed texts."""

    id: int
    texts: list[str]
    urgent: bool
    """A turn waits for it: goes before everything that is not urgent."""
    seconds: float
    """How long the answer is wanted."""
    count: bool = False
    """Only the numbers of tokens are asked for."""


class EmbedReply(Struct, frozen=True, array_like=True):
    """Vectors and token counts in the order of the texts, or a refusal."""

    id: int
    vectors: bytes = b""
    tokens: list[int] = []
    refusal: Refusal | None = None
    index: int = 0
    """Of the text that is too long."""


T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode


def frame(message: EmbedderInfo | EmbedRequest | EmbedReply) -> bytes:
    """The bytes of one message."""
    body = _encode(message)
    return len(body).to_bytes(4, "big") + body


async def read(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """The next message.

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
