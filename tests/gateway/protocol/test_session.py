"""The connection's state machine, without a network: messages and time in, effects out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from openai.types.responses import ResponseSteerFailedEvent

from gateway.errors import Unavailable
from gateway.protocol.codec import JsonCodec
from gateway.protocol.events import CloseCode
from gateway.protocol.session import (
    MAX_MALFORMED,
    CancelTurn,
    Close,
    Effect,
    Send,
    Session,
    SessionLimits,
    SessionState,
    StartTurn,
    Watch,
)

LIMITS = SessionLimits(max_turns=4, first_message_timeout=10, idle_timeout=100, lifetime=1000)


def session(limits: SessionLimits = LIMITS) -> Session:
    return Session(JsonCodec(), limits, now=0.0)


def message(type_: str = "response.create", **fields: Any) -> str:
    return json.dumps(
        {"type": type_, "input": "hi", **fields} if type_ == "response.create" else {"type": type_, **fields}
    )


def only(effects: list[Effect]) -> Effect:
    assert len(effects) == 1, effects
    return effects[0]


def started(effects: list[Effect]) -> StartTurn:
    effect = only(effects)
    assert isinstance(effect, StartTurn)
    return effect


def assert_error(effects: list[Effect], code: str, param: str | None = None, stream_id: str | None = None) -> None:
    """The first effect is an `error` event of this kind."""
    assert isinstance(effects[0], Send)
    event = effects[0].event
    assert event["type"] == "error"
    assert (event["error"]["code"], event["error"]["param"]) == (code, param)
    assert event.get("stream_id") == stream_id


class TestTurns:
    """Starting turns, lanes and their limit."""

    def test_a_create_event_starts_a_turn(self) -> None:
        """The request is parsed, ready for the pipeline."""
        effect = started(session().receive(message(temperature=0), now=1))
        assert effect.request.messages[0].content == "hi"
        assert effect.request.sampling.temperature == 0

    def test_turns_of_one_lane_run_one_after_the_other(self) -> None:
        """OpenAI: requests with the same `stream_id` are processed FIFO."""
        machine = session()
        first = started(machine.receive(message(stream_id="a"), now=1))
        assert machine.receive(message(stream_id="a", input="second"), now=2) == []
        assert machine.receive(message(stream_id="a", input="third"), now=2) == []
        machine.turn_started(first.subscription, "resp_1")
        second = started(machine.turn_ended(first.subscription, now=3))
        assert second.request.messages[0].content == "second"
        assert machine.lane(second.subscription) == "a"
        third = started(machine.turn_refused(second.subscription, Unavailable("no"), now=4)[1:])
        assert third.request.messages[0].content == "third"

    def test_lanes_run_side_by_side(self) -> None:
        """Also beside the lane without a name."""
        machine = session()
        lanes = [
            machine.lane(started(machine.receive(message(**lane), now=1)).subscription)
            for lane in ({}, {"stream_id": "a"})
        ]
        assert lanes == [None, "a"]

    def test_more_turns_than_allowed_are_refused_and_the_connection_stays(self) -> None:
        """Waiting ones count too, so that a client cannot queue without bound."""
        machine = session()
        for lane in "aabb":
            machine.receive(message(stream_id=lane), now=1)
        assert machine.turns == 4
        assert_error(machine.receive(message(stream_id="c"), now=1), "too_many_turns", stream_id="c")
        assert machine.state is SessionState.OPEN

    def test_a_refused_turn_is_told_in_its_lane(self) -> None:
        """The error carries the `stream_id`, and the lane is free again."""
        machine = session()
        subscription = started(machine.receive(message(stream_id="a"), now=1)).subscription
        assert_error(machine.turn_refused(subscription, Unavailable("no"), now=2), "unavailable", stream_id="a")
        assert machine.turns == 0

    def test_cancel_names_its_lane_for_the_error_that_may_follow(self) -> None:
        """Whether there is such a response is not the session's to know."""
        effects = session().receive(message("response.cancel", response_id="resp_1", stream_id="a"), now=1)
        assert effects == [CancelTurn("resp_1", "a")]

    def test_resume_watches_from_where_the_client_was(self) -> None:
        """-1, everything, unless it says so."""
        machine = session()
        assert machine.receive(message("response.resume", response_id="resp_1"), now=1) == [Watch(1, "resp_1", -1)]
        later = machine.receive(message("response.resume", response_id="resp_2", starting_after=7), now=1)
        assert later == [Watch(2, "resp_2", 7)]

    def test_resuming_what_is_on_its_way_already_does_nothing(self) -> None:
        """Otherwise a client that asks twice would get the text twice."""
        machine = session()
        subscription = started(machine.receive(message(), now=1)).subscription
        machine.turn_started(subscription, "resp_1")
        assert machine.receive(message("response.resume", response_id="resp_1"), now=2) == []
        machine.turn_ended(subscription, now=3)
        assert isinstance(only(machine.receive(message("response.resume", response_id="resp_1"), now=4)), Watch)

    def test_a_resumed_response_does_not_block_its_lane(self) -> None:
        """A lane orders the turns that it starts."""
        machine = session()
        machine.receive(message("response.resume", response_id="resp_1", stream_id="a"), now=1)
        started(machine.receive(message(stream_id="a"), now=1))


class TestBadInput:
    """Each gets a clear error; the connection stays, unless there is nothing but garbage."""

    @pytest.mark.parametrize(
        ("raw", "code", "param"),
        [
            ("{", "invalid_json", None),
            (b'{"type": "\xff"}', "invalid_json", None),
            ("\ud800", "invalid_json", None),
            ("[" * 100_000, "invalid_json", None),
            ('{"type": "response.create", "input": ' + "[" * 700 + "]" * 700 + "}", "invalid_json", None),
            ("[]", "invalid_message", None),
            ("null", "invalid_message", None),
            ("{}", "missing_required_parameter", "type"),
            ('{"type": 5}', "unknown_event_type", "type"),
            ('{"type": ["response.create"]}', "unknown_event_type", "type"),
            ('{"type": "response.jump", "input": "x"}', "unknown_event_type", "type"),
            (message(stream_id=""), "invalid_value", "stream_id"),
            (message(stream_id=7), "invalid_value", "stream_id"),
        ],
    )
    def test_malformed(self, raw: str | bytes, code: str, param: str | None) -> None:
        """What is no event of ours."""
        machine = session()
        assert_error(machine.receive(raw, now=1), code, param)
        started(machine.receive(message(), now=2))

    @pytest.mark.parametrize(
        ("raw", "code", "param"),
        [
            (message(input=3), "invalid_value", "input"),
            (message(tools=[{"type": "web_search"}]), "unsupported_parameter", "tools[0].type"),
            (message("response.cancel"), "missing_required_parameter", "response_id"),
            (message("response.cancel", response_id=1), "invalid_value", "response_id"),
            (message("response.cancel", response_id="r", why="x"), "unknown_parameter", "why"),
            (message("response.resume", response_id="r", starting_after=-2), "invalid_value", "starting_after"),
            (message("response.resume", response_id="r", starting_after="1"), "invalid_value", "starting_after"),
        ],
    )
    def test_wrong_parameters_are_named(self, raw: str, code: str, param: str) -> None:
        """Of events that we know; however many, they never close the connection."""
        machine = session()
        for _ in range(2 * MAX_MALFORMED):
            assert_error(machine.receive(raw, now=1), code, param)
        assert machine.state is SessionState.OPEN

    def test_the_error_names_the_lane_of_the_request(self) -> None:
        """So that a client with several lanes knows which one failed."""
        assert_error(session().receive(message(stream_id="a", foo=1), now=1), "unknown_parameter", "foo", "a")

    def test_repeated_garbage_closes_the_connection(self) -> None:
        """The last one still gets its error."""
        machine = session()
        for _ in range(MAX_MALFORMED - 1):
            only(machine.receive("{", now=1))
        error, close = machine.receive("{", now=1)
        assert isinstance(error, Send)
        assert isinstance(close, Close) and close.code is CloseCode.BAD_MESSAGE
        assert machine.receive(message(), now=2) == []

    def test_a_good_message_forgives_the_malformed_ones(self) -> None:
        """Only those in a row count."""
        machine = session()
        for _ in range(3):
            for _ in range(MAX_MALFORMED - 1):
                machine.receive("{", now=1)
            machine.receive(message("response.cancel", response_id="r"), now=1)
        assert machine.state is SessionState.OPEN

    def test_an_oversized_message_closes_the_connection(self) -> None:
        """Servers that hand it over at all are told what to do."""
        close = only(session(SessionLimits(max_message_bytes=10)).receive("x" * 11, now=1))
        assert isinstance(close, Close) and close.code is CloseCode.TOO_BIG


class TestTime:
    """Silence, lifetime and drain."""

    def test_a_client_that_never_speaks_is_closed(self) -> None:
        """After the first-message timeout, not before."""
        machine = session()
        assert machine.deadline == 10
        assert machine.tick(9.9) == []
        close = only(machine.tick(10))
        assert isinstance(close, Close) and close.code is CloseCode.TIMEOUT

    def test_a_silent_client_is_closed_after_the_idle_timeout(self) -> None:
        """It counts from the last message or the last turn's end."""
        machine = session()
        subscription = started(machine.receive(message(), now=1)).subscription
        assert machine.deadline == LIMITS.lifetime
        machine.turn_ended(subscription, now=50)
        assert machine.deadline == 150
        close = only(machine.tick(150))
        assert isinstance(close, Close) and close.code is CloseCode.TIMEOUT

    def test_the_lifetime_ends_an_idle_connection_with_openais_error(self) -> None:
        """An `error` event first, so that OpenAI's clients know why."""
        machine = session(SessionLimits(lifetime=5))
        effects = machine.tick(5)
        assert_error(effects, "websocket_connection_limit_reached")
        assert isinstance(effects[1], Close) and effects[1].code is CloseCode.GOING_AWAY

    def test_the_lifetime_lets_running_turns_end(self) -> None:
        """New ones are refused, waiting ones too."""
        machine = session(SessionLimits(lifetime=5))
        subscription = started(machine.receive(message(stream_id="a"), now=1)).subscription
        machine.receive(message(stream_id="a"), now=2)
        effects = machine.tick(5)
        assert_error(effects, "websocket_connection_limit_reached")
        assert_error(effects[1:], "websocket_connection_limit_reached", stream_id="a")
        assert len(effects) == 2
        assert_error(machine.receive(message(), now=6), "websocket_connection_limit_reached")
        close = only(machine.turn_ended(subscription, now=7))
        assert isinstance(close, Close) and close.code is CloseCode.GOING_AWAY

    def test_a_turn_cannot_be_steered(self) -> None:
        """Said in OpenAI's words, in the lane of the turn."""
        machine = session()
        subscription = started(machine.receive(message(stream_id="a"), now=1)).subscription
        machine.turn_started(subscription, "resp_1")
        steer = {"type": "response.steer", "previous_response_id": "resp_1", "input": "Be brief."}
        said = only(machine.receive(json.dumps(steer), now=2))
        assert isinstance(said, Send)
        failed = ResponseSteerFailedEvent.model_validate(said.event, strict=True)
        assert (failed.error.code, failed.stream_id) == ("steering_not_supported", "a")
        assert (failed.steer.input, failed.steer.previous_response_id) == ("Be brief.", "resp_1")

    def test_drain_tells_the_client_and_closes_when_its_turns_have_ended(self) -> None:
        """1012: connect again."""
        machine = session()
        subscription = started(machine.receive(message(), now=1)).subscription
        told = only(machine.drain(reconnect_after=1.5))
        assert isinstance(told, Send)
        assert told.event == {"type": "roundhouse.draining", "reconnect_after_ms": 1500}
        assert machine.drain(reconnect_after=1.5) == []
        assert_error(machine.receive(message(), now=2), "draining")
        close = only(machine.turn_ended(subscription, now=3))
        assert isinstance(close, Close) and close.code is CloseCode.RESTART

    def test_shut_does_not_wait(self) -> None:
        """The drain's time is over."""
        machine = session()
        machine.receive(message(), now=1)
        machine.drain(reconnect_after=0)
        assert isinstance(only(machine.shut()), Close)
        assert machine.shut() == []


class AnyTraffic(RuleBasedStateMachine):
    """Whatever happens in whatever order, the session keeps its bounds and never acts after its end."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.session = session()
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.closed = False

    def take(self, effects: list[Effect]) -> None:
        assert not (self.closed and effects)
        for effect in effects:
            assert not self.closed, "an effect after the close"
            match effect:
                case StartTurn(subscription) | Watch(subscription):
                    self.waiting.append(subscription)
                case Close():
                    self.closed = True

    @rule(lane=st.sampled_from([None, "a", "b"]))
    def create(self, lane: str | None) -> None:
        self.take(self.session.receive(message(**({"stream_id": lane} if lane else {})), self.now))

    @rule(number=st.integers(0, 3))
    def resume(self, number: int) -> None:
        self.take(self.session.receive(message("response.resume", response_id=f"resp_{number}"), self.now))

    @rule(raw=st.one_of(st.text(max_size=20), st.binary(max_size=20)))
    def garbage(self, raw: str | bytes) -> None:
        self.take(self.session.receive(raw, self.now))

    @precondition(lambda self: self.waiting and not self.closed)
    @rule(accepted=st.booleans())
    def admission(self, accepted: bool) -> None:
        subscription = self.waiting.pop(0)
        if accepted:
            self.session.turn_started(subscription, f"resp_{subscription}")
            self.running.append(subscription)
        else:
            self.take(self.session.turn_refused(subscription, Unavailable("no"), self.now))

    @precondition(lambda self: self.running and not self.closed)
    @rule()
    def end(self) -> None:
        self.take(self.session.turn_ended(self.running.pop(0), self.now))

    @rule(seconds=st.sampled_from([0.1, 20.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.session.tick(self.now))

    @rule()
    def drain(self) -> None:
        self.take(self.session.drain(1.0))

    @invariant()
    def bounded(self) -> None:
        assert self.session.turns <= LIMITS.max_turns
        if not self.closed:
            assert self.session.turns >= len(self.waiting) + len(self.running)
            # A turn waits for its lane only behind one that runs: nothing is forgotten in a queue.
            assert bool(self.session.turns) == bool(self.waiting or self.running)
        assert self.closed == (self.session.state is SessionState.CLOSED)


TestAnyTraffic = AnyTraffic.TestCase


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda c: st.lists(c) | st.dictionaries(st.text(), c),
    )
)
def test_any_json_value_gets_an_answer(value: Any) -> None:
    """No value makes the session raise."""
    machine = session()
    assert machine.receive(json.dumps(value), now=1)
    assert machine.receive(json.dumps({"type": "response.create", "input": value, "metadata": value}), now=2)


def test_illegal_transitions_raise() -> None:
    """A closed session does not close again."""
    machine = session()
    machine.disconnected()
    machine.disconnected()
    with pytest.raises(RuntimeError, match="illegal transition"):
        machine._move_to(SessionState.OPEN)
