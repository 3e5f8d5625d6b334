"""Messages between gateways about turns, and the record of a turn in Redis: plain data and its MessagePack form.

Pure. What travels or is kept is sealed before it leaves the process (`gateway.storage.seal`), as it holds text.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import Struct

from gateway.access.identity import Principal
from gateway.errors import ApiError, RateLimited
from gateway.protocol.requests import Message, TurnRequest
from gateway.protocol.slices import LogSlice


class TurnHeader(Struct, array_like=True, frozen=True):
    """A turn without its log."""

    principal: Principal
    request: TurnRequest
    history: tuple[Message, ...]
    """Messages before the request's own messages."""
    created_at: int


class TurnRecord(Struct, array_like=True, frozen=True):
    """A turn with all of its log so far."""

    header: TurnHeader
    gained: LogSlice
    completed_at: int | None


class FollowTurn(Struct, array_like=True, tag="follow", frozen=True):
    """Asks for the log of a turn after number `after`, as `TurnFrame`s, until it has ended or `UnfollowTurn` comes."""

    turn: str
    tenant: str
    """Tenant that asks; another tenant's turn does not exist for it."""
    reader: str
    """Id of the gateway that asks."""
    feed: int
    """Number of the feed, which its frames carry. It replaces a feed of the same turn that this reader asked for
    before."""
    after: int
    whole: bool
    """Whether the first frame must have the header too."""


class UnfollowTurn(Struct, array_like=True, tag="leave", frozen=True):
    """Says that the reader follows a turn no longer."""

    turn: str
    tenant: str
    reader: str
    feed: int
    """Number of the last feed that was asked for."""


class CancelRemoteTurn(Struct, array_like=True, tag="cancel", frozen=True):
    """Asks to cancel a turn."""

    turn: str
    tenant: str


class ForgetTurn(Struct, array_like=True, tag="forget", frozen=True):
    """Says that a turn that has ended was deleted."""

    turn: str
    tenant: str


class TurnFrame(Struct, array_like=True, tag="frame", frozen=True):
    """What the log of a followed turn has gained; also sent when it has gained nothing for a while."""

    turn: str
    tenant: str
    feed: int
    gained: LogSlice
    header: TurnHeader | None
    completed_at: int | None


class FollowRefused(Struct, array_like=True, tag="refused", frozen=True):
    """Says that there is no such turn of this tenant, or that it was refused before it began."""

    turn: str
    tenant: str
    feed: int
    error: ApiError | None


GatewayMessage = FollowTurn | UnfollowTurn | CancelRemoteTurn | ForgetTurn | TurnFrame | FollowRefused


def _encode_hook(value: Any) -> Any:
    if isinstance(value, ApiError):
        return [type(value).__name__, value.message, value.param, value.code, value.headers]
    raise NotImplementedError(f"{type(value).__name__} is not for other processes")


def _decode_hook(type_: type, value: Any) -> Any:
    if type_ is ApiError:
        name, message, param, code, headers = value
        kind = _ERRORS.get(name, ApiError)
        error = kind.__new__(kind)
        ApiError.__init__(error, message, param=param, code=code, headers=headers)
        if isinstance(error, RateLimited):
            error.retry_after = float(headers.get("retry-after", 1))
        return error
    raise NotImplementedError(f"{type_.__name__} does not come from other processes")


def _tree(kind: type[ApiError]) -> dict[str, type[ApiError]]:
    below = [_tree(child) for child in kind.__subclasses__()]
    return {kind.__name__: kind, **{name: found for part in below for name, found in part.items()}}


_ERRORS = _tree(ApiError)
_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
_message_decoder = msgspec.msgpack.Decoder(GatewayMessage, dec_hook=_decode_hook)
_record_decoder = msgspec.msgpack.Decoder(TurnRecord, dec_hook=_decode_hook)


def encode(value: GatewayMessage | TurnRecord) -> bytes:
    """Encode a message or record as MessagePack."""
    return _encoder.encode(value)


def decode_message(data: bytes) -> GatewayMessage:
    """Decode a message from another gateway.

    Raises:
        msgspec.MsgspecError: it is none, or of another version.
    """
    return cast(GatewayMessage, _message_decoder.decode(data))


def decode_record(data: bytes) -> TurnRecord:
    """Decode a turn's record from Redis.

    Raises:
        msgspec.MsgspecError: it is none, or of another version.
    """
    return _record_decoder.decode(data)
