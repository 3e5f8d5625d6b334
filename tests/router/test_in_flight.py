"""What is counted while a request is under way."""

from __future__ import annotations

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.in_flight import AnswerLength, InFlightLoad, InFlightRequest


class Flights(RuleBasedStateMachine):
    """Requests that begin, get a first token or none, and end in any order and any way."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight = InFlightLoad()
        self.open: list[tuple[contextlib.ExitStack, InFlightRequest, int, int]] = []

    @rule(prompt=st.integers(0, 1000), answer=st.integers(0, 1000))
    def begin(self, prompt: int, answer: int) -> None:
        stack = contextlib.ExitStack()
        self.open.append((stack, stack.enter_context(self.in_flight.carry(prompt, answer)), prompt, answer))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.open) - 1))
        stack, flight, _, answer = self.open[at]
        flight.prefilled()
        self.open[at] = (stack, flight, 0, answer)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), failing=st.booleans())
    def end(self, data: st.DataObject, failing: bool) -> None:
        stack, _, _, _ = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        with contextlib.suppress(ConnectionError), stack:
            if failing:
                raise ConnectionError

    @invariant()
    def counts_are_those_of_the_open_ones(self) -> None:
        assert self.in_flight.requests == len(self.open)
        assert self.in_flight.tokens == sum(prompt + answer for _, _, prompt, answer in self.open)


TestFlights = Flights.TestCase
TestFlights.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_an_answer_is_predicted_to_be_as_long_as_late_ones() -> None:
    length = AnswerLength()
    assert length.predict(500) == 500
    length.observe(100)
    assert (length.predict(500), length.predict(30)) == (100, 30)
    for _ in range(200):
        length.observe(200)
    assert length.predict(500) == 200
