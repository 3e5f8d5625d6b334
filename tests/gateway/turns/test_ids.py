"""Ids of responses: unique, recognised by who has the secret, and by nobody for another tenant."""

from __future__ import annotations

import secrets
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.storage.presence import new_id
from gateway.turns.ids import ResponseIds, gateway_of

SECRET = secrets.token_bytes(32)
HEX = st.text("0123456789abcdef", min_size=32, max_size=32)


def test_they_name_their_gateway_and_the_time_to_whoever_has_the_secret() -> None:
    gateway = new_id()
    before = int(time.time())
    id = ResponseIds(SECRET, gateway).new("acme")
    assert gateway_of(id) == gateway
    issued = ResponseIds(SECRET, new_id()).issued(id, "acme")
    assert issued is not None and before <= issued <= time.time()
    assert ResponseIds(secrets.token_bytes(32), gateway).issued(id, "acme") is None


def test_no_two_are_the_same_and_nothing_can_be_read_in_them() -> None:
    ids = ResponseIds(SECRET, new_id())
    made = [ids.new("acme") for _ in range(1000)]
    assert len(set(made)) == 1000
    assert max(map(made[0].removeprefix("resp_")[16:24].__eq__, (id[21:29] for id in made[1:]))) is False


@given(HEX)
def test_what_was_made_up_is_not_recognised(end: str) -> None:
    ids = ResponseIds(SECRET, new_id())
    assert ids.issued(ids.new("acme")[:21] + end, "acme") is None


@pytest.mark.parametrize("change", [lambda id: id[:-1] + ("0" if id[-1] != "0" else "1"), lambda id: "resp_" + id[9:]])
def test_what_was_changed_is_not_recognised(change: object) -> None:
    ids = ResponseIds(SECRET, new_id())
    assert callable(change)
    assert ids.issued(change(ids.new("acme")), "acme") is None


def test_another_tenants_or_another_gateways_is_not_recognised() -> None:
    one, other = new_id(), new_id()
    ids = ResponseIds(SECRET, one)
    id = ids.new("acme")
    assert ids.issued(id, "globex") is None
    assert ids.issued(id.replace(one.removeprefix("gw_"), other.removeprefix("gw_")), "acme") is None
