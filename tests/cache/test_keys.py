"""Names in Redis and the identity of a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from cache import keys

SECRET = b"installation"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PARTS = st.dictionaries(st.text(max_size=8), VALUES, max_size=5)


@given(PARTS)
def test_field_order_does_not_matter(parts: dict[str, Any]) -> None:
    backwards = dict(reversed(parts.items()))
    assert keys.response_digest(parts, SECRET) == keys.response_digest(backwards, SECRET)


@given(PARTS, st.text(max_size=8), VALUES)
def test_any_other_part_is_another_request(parts: dict[str, Any], name: str, value: Any) -> None:
    changed = parts | {name: value}
    # Python's == takes 1, 1.0 and True for equal; a request distinguishes them.
    assume(repr(sorted(changed.items(), key=repr)) != repr(sorted(parts.items(), key=repr)))
    assume(name not in parts or repr(parts[name]) != repr(value))
    assert keys.response_digest(parts, SECRET) != keys.response_digest(changed, SECRET)


def test_list_order_matters() -> None:
    """Messages in another order are another conversation."""
    assert keys.response_digest({"m": ["a", "b"]}, SECRET) != keys.response_digest({"m": ["b", "a"]}, SECRET)


def test_without_the_secret_a_guess_cannot_be_checked() -> None:
    assert keys.response_digest({"m": "hello"}, SECRET) != keys.response_digest({"m": "hello"}, b"other")


def test_the_keys_of_a_tenant_share_a_hash_slot() -> None:
    """One script touches them together, also in a cluster."""
    for key in (
        keys.response_key("acme", "0"),
        keys.index_key("acme"),
        keys.bytes_key("acme"),
        keys.epochs_key("acme"),
        keys.flight_key("acme", "0"),
    ):
        assert "{acme}" in key


def test_every_key_is_documented() -> None:
    documented = Path("docs/redis-keys.md").read_text("utf-8")
    for key in (
        keys.response_key("<tenant>", "<digest>"),
        keys.index_key("<tenant>"),
        keys.bytes_key("<tenant>"),
        keys.epochs_key("<tenant>"),
        keys.flight_key("<tenant>", "<digest>"),
        keys.statistics_key("<tenant>", "<yyyymmddhh>"),
        keys.TENANTS_KEY,
    ):
        assert f"`{key}`" in documented
