"""The circuit breaker."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.health import Breaker, Circuit, ErrorRate
from router.replica import ReplicaPolicy


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker(failures=2, pause=10.0)
    breaker.failed(now)
    breaker.failed(now)
    return breaker


def test_it_opens_after_failures_in_a_row() -> None:
    breaker = Breaker(failures=2, pause=10.0)
    breaker.failed(0.0)
    assert breaker.allows(0.0)
    breaker.failed(0.0)
    assert breaker.circuit is Circuit.OPEN
    assert not breaker.allows(9.9)


def test_a_success_between_failures_starts_the_count_again() -> None:
    breaker = Breaker(failures=2, pause=10.0)
    breaker.failed(0.0)
    breaker.succeeded()
    breaker.failed(0.0)
    assert breaker.circuit is Circuit.CLOSED


def test_after_the_pause_one_request_is_on_trial() -> None:
    breaker = opened()
    assert breaker.allows(10.0)
    breaker.attempt(10.0)
    assert breaker.circuit is Circuit.HALF_OPEN
    assert not breaker.allows(10.1)


def test_the_trial_closes_or_opens_it() -> None:
    breaker = opened()
    breaker.attempt(10.0)
    breaker.succeeded()
    assert breaker.circuit is Circuit.CLOSED

    breaker = opened()
    breaker.attempt(10.0)
    breaker.failed(11.0)
    assert breaker.circuit is Circuit.OPEN
    assert not breaker.allows(20.9)
    assert breaker.allows(21.0)


def test_a_trial_without_outcome_does_not_block_for_ever() -> None:
    breaker = opened()
    breaker.attempt(10.0)
    assert breaker.allows(20.0)


def test_a_late_success_does_not_close_an_open_circuit() -> None:
    breaker = opened()
    breaker.succeeded()
    assert breaker.circuit is Circuit.OPEN


class AnyOrder(RuleBasedStateMachine):
    """Whatever the order of events, no illegal transition is made and the engine is tried again some time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.breaker = Breaker(failures=3, pause=5.0)

    @rule(seconds=st.floats(0, 10))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def attempt_if_allowed(self) -> None:
        if self.breaker.allows(self.now):
            self.breaker.attempt(self.now)

    @rule()
    def succeed(self) -> None:
        self.breaker.succeeded()

    @rule()
    def fail(self) -> None:
        self.breaker.failed(self.now)

    @invariant()
    def a_pause_later_it_may_be_tried(self) -> None:
        assert self.breaker.allows(self.now + 5.0)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=50, stateful_step_count=30)


def test_an_error_rate_forgets() -> None:
    """It grows with failures, fades with answers and, where nothing is sent any more, with time."""
    errors = ErrorRate(half_life=10.0)
    assert errors.rate(0.0) == 0.0
    errors.observe(True, 0.0)
    assert errors.rate(0.0) == 1 / (1 + ErrorRate.ASSUMED)
    for _ in range(20):
        errors.observe(True, 0.0)
    failing = errors.rate(0.0)
    assert failing > 0.8
    assert errors.rate(10.0) < failing
    assert errors.rate(200.0) < 0.01


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 100)), max_size=50))
def test_an_error_rate_is_a_share(outcomes: list[tuple[bool, float]]) -> None:
    errors, now = ErrorRate(), 0.0
    for failed, pause in outcomes:
        now += pause
        errors.observe(failed, now)
        assert 0 <= errors.rate(now) < 1
    assert any(failed for failed, _ in outcomes) or errors.rate(now) == 0


def test_failures_of_most_requests_are_noticed_and_those_of_a_few_are_not() -> None:
    """By the measure of the router, which leaves a replica alone from `eject_from`."""
    most, few = ErrorRate(), ErrorRate()
    for number in range(200):
        most.observe(number % 4 != 0, number * 0.1)
        few.observe(number % 20 == 0, number * 0.1)
    assert most.rate(20.0) > ReplicaPolicy().eject_from > few.rate(20.0)
