"""What a reservation leaves to whoever finds that its gateway has died."""

from __future__ import annotations

import pytest

from gateway.limits.reservation import Reservation
from gateway.records.quota import Amounts, Charge, LimitSubject, Quota

TENANT = (LimitSubject("tenant", Quota(spend_per_day=5)),)


@pytest.mark.parametrize(
    ("ended", "local", "if_held"),
    [(False, False, False), (True, False, True), (False, True, False), (True, True, False)],
)
def test_only_what_redis_held_may_have_been_settled(ended: bool, local: bool, if_held: bool) -> None:
    reservation = Reservation("shop", "resp_1", TENANT, Amounts(spend=5), local, [])
    assert reservation.charges(Amounts(spend=2), ended=ended) == [Charge("resp_1", Amounts(spend=2), TENANT, if_held)]


def test_what_nothing_limits_owes_nothing() -> None:
    assert Reservation("shop", "resp_1", (), Amounts(), False, []).charges(Amounts(spend=2)) == []
