"""Which pool of a tier a conversation goes to."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.canary import WeightedTarget
from router.sharing import pool_order

POOLS = [WeightedTarget("ours", 3), WeightedTarget("theirs", 1), WeightedTarget("reserve", 0)]


def order(conversation: int, pools: list[WeightedTarget] = POOLS, tenant: str = "demo") -> list[str]:
    return pool_order("large", tenant, str(conversation).encode(), pools)


def test_conversations_are_shared_by_weight_and_a_pool_without_one_only_stands_in() -> None:
    first = Counter(order(number)[0] for number in range(1000))
    assert 700 < first["ours"] < 800 and first["ours"] + first["theirs"] == 1000


def test_the_others_follow_in_the_order_of_the_configuration() -> None:
    assert {tuple(order(number)) for number in range(100)} == {
        ("ours", "theirs", "reserve"),
        ("theirs", "ours", "reserve"),
    }


def test_without_weights_all_stand_in_the_order_of_the_configuration() -> None:
    pools = [WeightedTarget("ours", 0), WeightedTarget("theirs", 0)]
    assert {tuple(order(number, pools)) for number in range(100)} == {("ours", "theirs")}


@given(st.integers(0, 10**6), st.integers(1, 5))
def test_more_weight_for_a_pool_moves_conversations_to_it_only(conversation: int, more: int) -> None:
    heavier = [POOLS[0], WeightedTarget("theirs", 1 + more), POOLS[2]]
    before, after = order(conversation)[0], order(conversation, heavier)[0]
    assert after in (before, "theirs")
