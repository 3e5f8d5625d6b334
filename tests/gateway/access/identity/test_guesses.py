"""How guessing is slowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.identity.guesses import Guesses, network

times = st.lists(st.floats(0, 600), min_size=1, max_size=200).map(sorted)


@given(st.integers(1, 60), times)
def test_in_any_time_an_address_fails_no_more_than_it_may(per_minute: int, tries: list[float]) -> None:
    """In any stretch of t minutes it may try `per_minute` times at once and `per_minute * t` times more."""
    guesses = Guesses(per_minute)
    failed = []
    for now in tries:
        if not guesses.wait("a", now):
            guesses.failed("a", now)
            failed.append(now)
    for first in range(len(failed)):
        for last in range(first, len(failed)):
            assert last - first + 1 <= per_minute * (1 + (failed[last] - failed[first]) / 60) + 0.51


@given(st.integers(1, 60), st.integers(1, 100), st.floats(0, 1e9))
def test_after_the_wait_it_may_try_again(per_minute: int, failures: int, now: float) -> None:
    guesses = Guesses(per_minute)
    for _ in range(failures):
        guesses.failed("a", now)
    wait = guesses.wait("a", now)
    assert (wait > 0) == (failures >= per_minute)
    assert guesses.wait("a", now + wait) == 0
    assert guesses.wait("b", now) == 0


def test_so_many_addresses_are_remembered_and_no_more() -> None:
    guesses = Guesses(1, most=100)
    for number in range(1000):
        guesses.failed(f"10.0.{number // 256}.{number % 256}", 0.0)
    assert len(guesses) == 100
    assert guesses.wait("10.0.3.231", 0.0) > 0


def test_old_failures_are_forgotten() -> None:
    guesses = Guesses(10)
    for number in range(50):
        guesses.failed(f"10.0.0.{number}", 0.0)
    guesses.failed("192.0.2.1", 61.0)
    assert len(guesses) == 1


@pytest.mark.parametrize(
    ("address", "counted_as"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("", ""),
        ("testclient", "testclient"),
    ],
)
def test_what_stands_for_a_client(address: str, counted_as: str) -> None:
    assert network(address) == counted_as
