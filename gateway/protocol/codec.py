"""The two spellings of the same events: JSON text and MessagePack binary messages, chosen by subprotocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from gateway.errors import InvalidRequest
from gateway.protocol.events import Event, wants_extensions
from gateway.protocol.nesting import check_depth, decode_json


class Codec(Protocol):
    """The encoding of events on one connection."""

    subprotocol: str
    extensions: bool
    """Whether the client takes the events of the `roundhouse.` namespace."""

    def __init__(self, *, extensions: bool = True) -> None: ...

    def encode(self, event: Event) -> str | bytes:
        """Encode one message."""
        ...

    def decode(self, message: str | bytes) -> dict[str, Any]:
        """Decode one message to an object.

        Raises:
            InvalidRequest: it is malformed or no object; the message says where.
        """
        ...


class JsonCodec:
    """UTF-8 JSON in text messages; binary messages that hold JSON are read too. The default."""

    subprotocol = "roundhouse.json"

    def __init__(self, *, extensions: bool = True) -> None:
        self.extensions = extensions

    def encode(self, event: Event) -> str:
        return msgspec.json.encode(event).decode()

    def decode(self, message: str | bytes) -> dict[str, Any]:
        return _object(decode_json(message, "the message", "invalid_json"))


class MsgpackCodec:
    """MessagePack in binary messages."""

    subprotocol = "roundhouse.msgpack"

    def __init__(self, *, extensions: bool = True) -> None:
        self.extensions = extensions

    def encode(self, event: Event) -> bytes:
        return msgspec.msgpack.encode(event)

    def decode(self, message: str | bytes) -> dict[str, Any]:
        if isinstance(message, str):
            raise InvalidRequest(
                "with the subprotocol roundhouse.msgpack, messages are binary; this one was text",
                code="invalid_msgpack",
            )
        try:
            value = msgspec.msgpack.decode(message)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InvalidRequest(f"the message is not valid MessagePack: {error}", code="invalid_msgpack") from None
        check_depth(value, "the message", "invalid_msgpack")
        return _object(value)


CODECS: tuple[type[Codec], ...] = (JsonCodec, MsgpackCodec)


def negotiate(offered: Sequence[str], headers: Mapping[str, str]) -> tuple[Codec, str | None]:
    """Choose the codec from the subprotocols that a client offers, and the one to echo: the first known one, never the
    ticket.

    Only a client that knows this server offers one, so that asks for our events too; others ask by a header.
    """
    for name in offered:
        for codec in CODECS:
            if name == codec.subprotocol:
                return codec(), name
    return JsonCodec(extensions=wants_extensions(headers)), None


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"a message is an object with a `type`; this one was {type(value).__name__}", code="invalid_message"
        )
    return value
