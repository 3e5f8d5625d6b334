"""JSON and MessagePack: the same events in two spellings, malformed ones refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocol.codec import Codec, JsonCodec, MsgpackCodec, negotiate

scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=10)
values = scalars | texts | st.lists(scalars | texts, max_size=3) | st.dictionaries(texts, scalars, max_size=3)
CODECS: list[Codec] = [JsonCodec(), MsgpackCodec()]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.subprotocol)
@given(event=st.dictionaries(texts, values, max_size=4))
def test_what_is_written_is_read(codec: Codec, event: dict[str, Any]) -> None:
    """For every event that JSON can hold."""
    assert codec.decode(codec.encode(event)) == event


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.subprotocol)
@given(message=st.one_of(st.text(), st.binary()))
def test_any_message_is_read_or_refused(codec: Codec, message: str | bytes) -> None:
    """Nothing else is ever raised."""
    try:
        assert isinstance(codec.decode(message), dict)
    except InvalidRequest as error:
        assert error.code in ("invalid_json", "invalid_msgpack", "invalid_message")


@pytest.mark.parametrize("depth", [10_000, 1_000_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    """It does not exhaust the stack."""
    for codec, message in ((JsonCodec(), "[" * depth), (MsgpackCodec(), b"\x91" * depth)):
        with pytest.raises(InvalidRequest):
            codec.decode(message)


@pytest.mark.parametrize(
    ("offered", "codec", "echoed"),
    [
        ([], "roundhouse.json", None),
        (["roundhouse.json"], "roundhouse.json", "roundhouse.json"),
        (["roundhouse.msgpack", "roundhouse.ticket.x"], "roundhouse.msgpack", "roundhouse.msgpack"),
        (["roundhouse.ticket.x", "roundhouse.json"], "roundhouse.json", "roundhouse.json"),
        (["roundhouse.ticket.x"], "roundhouse.json", None),
        (["realtime"], "roundhouse.json", None),
        (["roundhouse.json", "roundhouse.msgpack"], "roundhouse.json", "roundhouse.json"),
    ],
)
def test_the_first_known_subprotocol_is_chosen(offered: list[str], codec: str, echoed: str | None) -> None:
    """A ticket is never echoed. Our own events come with a subprotocol of ours, or if a header asks for them."""
    chosen, name = negotiate(offered, {})
    assert (chosen.subprotocol, name) == (codec, echoed)
    assert chosen.extensions is (echoed is not None)
    assert negotiate(offered, {"x-roundhouse-events": "true"})[0].extensions
