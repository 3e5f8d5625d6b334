"""Leases: what an engine says of itself, under a seal."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.registration import INDEX_KEY, LEASE_KEY, MAX_SKEW, Lease, LeaseRefused, opened, sealed
from engine.wire import PROTOCOL_MIN, PROTOCOL_VERSION

KEY = bytes(range(32))
LEASE = Lease(
    id="small-0a1b2c",
    pool="small",
    address="wss://10.0.0.7:9001",
    server_name="engines.internal",
    model="llama-8b",
    revision="77",
    protocol=PROTOCOL_VERSION,
    protocol_min=PROTOCOL_MIN,
    state="ready",
    zone="a",
    spot=True,
    capacity=64,
    load=3,
    time=1000.0,
)


def refusal(value: bytes, *, key: bytes = KEY, pool: str = "small", id: str = LEASE.id, now: float = 1000.0) -> str:
    with pytest.raises(LeaseRefused) as caught:
        opened(value, key, pool=pool, id=id, now=now)
    return caught.value.reason


def test_a_lease_is_read_back() -> None:
    assert opened(sealed(LEASE, KEY), KEY, pool="small", id=LEASE.id, now=1001.0) == LEASE


@given(st.data())
def test_a_lease_that_was_changed_anywhere_is_refused(data: st.DataObject) -> None:
    value = bytearray(sealed(LEASE, KEY))
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    assert refusal(bytes(value)) == "seal"


@given(st.binary(max_size=200))
def test_what_is_no_lease_is_refused(value: bytes) -> None:
    assert refusal(value) == "seal"


def test_a_lease_holds_for_its_own_id_pool_and_time() -> None:
    """What somebody copies elsewhere, or keeps for later, is not believed."""
    value = sealed(LEASE, KEY)
    assert refusal(value, key=bytes(32)) == "seal"
    assert refusal(value, pool="large") == "form"
    assert refusal(value, id="small-ffffff") == "form"
    assert refusal(value, now=1000.0 + MAX_SKEW + 1) == "time"
    assert refusal(value, now=1000.0 - MAX_SKEW - 1) == "time"


def test_an_address_of_another_kind_is_refused() -> None:
    assert refusal(sealed(msgspec.structs.replace(LEASE, address="http://10.0.0.7"), KEY)) == "form"


@pytest.mark.parametrize(
    ("oldest", "newest", "understood"),
    [
        (PROTOCOL_MIN, PROTOCOL_VERSION, True),
        (PROTOCOL_VERSION, PROTOCOL_VERSION + 5, True),
        (PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 5, False),
        (0, PROTOCOL_MIN - 1, False),
    ],
)
def test_ranges_of_the_protocol_must_meet(oldest: int, newest: int, understood: bool) -> None:
    lease = msgspec.structs.replace(LEASE, protocol_min=oldest, protocol=newest)
    assert lease.understood is understood


def test_the_keys_are_documented() -> None:
    documented = Path("docs/redis-keys.md").read_text("utf-8")
    for key in (LEASE_KEY.format(pool="<pool>", id="<id>"), INDEX_KEY.format(pool="<pool>")):
        assert f"`{key}`" in documented
