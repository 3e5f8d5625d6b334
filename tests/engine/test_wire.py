"""The frames between gateway and engine: they survive the trip, and either side can be upgraded first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.wire import (
    MAX_FRAME_BYTES,
    Announce,
    Blocks,
    Cancel,
    ClientFrame,
    Follow,
    Generate,
    Grammar,
    Load,
    ModelInfo,
    Output,
    Pin,
    Ready,
    SamplingParams,
    Step,
    TokenIdLogprob,
    Usage,
    decode_client_frame,
    decode_server_frame,
    encode,
)

TOKENS = st.lists(st.integers(0, 2**31), max_size=5)
LOGPROBS = st.builds(
    TokenIdLogprob,
    st.integers(0, 2**31),
    st.floats(max_value=0, allow_nan=False),
    st.lists(st.tuples(st.integers(0, 2**31), st.floats(max_value=0, allow_nan=False)), max_size=3),
)
LOAD = Load(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0.5)


INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
SAMPLING = st.builds(
    SamplingParams,
    max_tokens=INTEGERS,
    temperature=FLOATS,
    logit_bias=st.dictionaries(INTEGERS, FLOATS, max_size=3),
    logprobs=st.none() | INTEGERS,
    stop_token_ids=st.lists(INTEGERS, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
)
GENERATE = st.builds(
    Generate,
    st.text(min_size=1, max_size=20),
    st.lists(INTEGERS, max_size=5),
    SAMPLING,
    adapter=st.none() | st.text(),
    salt=st.binary(),
    grammar=st.none() | st.builds(Grammar, st.sampled_from(["json_schema", "regex", "choice", "lark"]), st.text()),
    tenant=st.text(),
    weight=FLOATS,
    service=st.sampled_from(["premium", "standard", "batch"]),
    queue_timeout=st.none() | FLOATS,
    speculate=st.booleans(),
)


def by_msgpack(frame: Any) -> bytes:
    """The frame as another implementation of MessagePack reads it, and writes it again."""
    written: bytes = msgpack.packb(msgpack.unpackb(encode(frame), strict_map_key=False))
    return written


VERSIONS = st.text(min_size=1, max_size=128)


@given(
    GENERATE
    | st.builds(Cancel, st.text())
    | st.builds(Announce, VERSIONS)
    | st.builds(Pin, st.lists(VERSIONS, max_size=3))
    | st.builds(Follow, st.booleans())
)
def test_client_frames_survive_the_trip(frame: ClientFrame) -> None:
    assert decode_client_frame(encode(frame)) == decode_client_frame(by_msgpack(frame)) == frame


@given(
    st.builds(
        Output,
        st.text(),
        TOKENS,
        st.none() | st.lists(LOGPROBS, max_size=3),
        st.none() | st.lists(st.none() | LOGPROBS, max_size=3),
        st.sampled_from([None, "stop", "length", "cancelled", "error"]),
        st.none() | st.builds(Usage, *[st.integers(0, 2**31)] * 3, st.floats(0, 1e9)),
        st.none() | st.text(),
        st.sampled_from([None, "invalid", "overloaded", "internal"]),
    )
)
def test_outputs_survive_the_trip(output: Output) -> None:
    frame = Step([output], LOAD)
    assert decode_server_frame(encode(frame)) == decode_server_frame(by_msgpack(frame)) == frame


def test_the_introduction_survives_the_trip() -> None:
    frame = Ready(1, ModelInfo("m", "r", 2048, 320, (2, 3), 16, "cpu", "float32"), LOAD)
    assert decode_server_frame(encode(frame)) == decode_server_frame(by_msgpack(frame)) == frame


@given(st.builds(Blocks, st.binary(), st.binary(), st.booleans()))
def test_blocks_survive_the_trip(frame: Blocks) -> None:
    assert decode_server_frame(encode(frame)) == decode_server_frame(by_msgpack(frame)) == frame


def test_an_engine_of_before_is_understood() -> None:
    """It says nothing of blocks and regimes."""
    frame = msgspec.msgpack.decode(encode(Ready(1, ModelInfo("m", "r", 9, 9, (2,), 16, "cpu", "float32"), LOAD)))
    assert "tells_blocks" not in frame and "rope_regimes" not in frame["model"]
    ready = decode_server_frame(encode(frame))
    assert isinstance(ready, Ready) and not ready.tells_blocks and ready.model.rope_regimes is None


def test_a_decoding_token_costs_few_bytes() -> None:
    """Defaults are left out: a step of a busy engine must not be dominated by names of empty fields."""
    one = encode(Step([Output("1234", [5])], LOAD))
    two = encode(Step([Output("1234", [5]), Output("1235", [6])], LOAD))
    assert len(two) - len(one) <= 24


@pytest.mark.parametrize("frame", [Generate("a", [1], SamplingParams()), Cancel("a"), Announce("v"), Pin(["v"])])
def test_unknown_fields_are_ignored(frame: ClientFrame) -> None:
    fields: dict[str, Any] = msgspec.msgpack.decode(encode(frame)) | {"later": [1, 2]}
    assert decode_client_frame(encode(fields)) == frame


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"type": "step"},
        {"type": "generate"},
        {"type": "cancel", "id": 5},
        {"type": "pin", "adapters": [""]},
        [],
        None,
        7,
    ],
)
def test_what_is_no_frame_is_refused(bad: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_client_frame(encode(bad))


_DEEP = b"\x91" * 200_000


@pytest.mark.parametrize(
    ("decode", "beginning"),
    [
        (decode_client_frame, b"\x83\xa4type\xa6cancel\xa2id\xa1a\xa5later"),
        (decode_server_frame, b"\x82\xa4type\xa6blocks\xa5later"),
    ],
    ids=["client", "server"],
)
def test_a_frame_nested_without_end_is_refused(decode: Callable[[bytes], object], beginning: bytes) -> None:
    """In a field of a later version, which would be skipped."""
    decode(beginning + b"\x91" * 5 + b"\x01")
    with pytest.raises(msgspec.DecodeError, match="nested too deeply"):
        decode(beginning + _DEEP)


def test_a_text_that_is_no_text_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError, match="not UTF-8"):
        decode_client_frame(b"\x82\xa4type\xa6cancel\xa2id\xa1\xff")


def test_the_longest_context_in_use_fits_into_a_frame() -> None:
    """A million tokens of the largest ids."""
    frame = Generate("a", [2**18 - 1] * 1_048_576, SamplingParams())
    assert len(encode(frame)) < MAX_FRAME_BYTES
