"""How deep a client's JSON may be nested."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.errors import InvalidRequest
from gateway.protocol.codec import Codec, JsonCodec, MsgpackCodec
from gateway.protocol.nesting import MAX_LEVELS, check_depth, json_depth


def nested(levels: int, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind is list else {"a": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
def test_a_value_may_have_so_many_levels_and_no_more(kind: type) -> None:
    check_depth(nested(MAX_LEVELS, kind), "the body", "invalid_json")
    with pytest.raises(InvalidRequest, match=f"the body is nested deeper than {MAX_LEVELS} levels; flatten it"):
        check_depth(nested(MAX_LEVELS + 1, kind), "the body", "invalid_json")


@pytest.mark.parametrize(
    ("codec", "encode", "code"),
    [
        (JsonCodec(), msgspec.json.encode, "invalid_json"),
        (MsgpackCodec(), msgspec.msgpack.encode, "invalid_msgpack"),
    ],
)
def test_a_message_that_is_nested_too_deep_is_refused_whole(codec: Codec, encode: Any, code: str) -> None:
    """Levels that the decoder would bear, and code that walks through them would not."""
    with pytest.raises(InvalidRequest, match="levels") as caught:
        codec.decode(encode({"type": "response.create", "input": nested(300, dict)}))
    assert caught.value.code == code


def test_levels_are_counted_along_the_deepest_branch() -> None:
    """Empty objects and lists are levels too; what is no object and no list is none."""
    value = {"a": [1, "x", None], "b": [[], {"c": [{}]}], "d": 2}
    assert json_depth(value) == 5
    assert [json_depth(each) for each in (1, "x", None, [], {}, [1, 2])] == [0, 0, 0, 1, 1, 1]
    assert json_depth(nested(9, list), limit=4) == 5
