"""One WebSocket connection as a state machine without I/O, after the model of the `websockets` library.

Messages, the fate of turns and the time go in; effects come out, to be carried out in order by an adapter
(`gateway.ws.socket`). Nothing here waits, reads a clock or knows a socket, so that every rule of the protocol can be
tested as plain function calls.

A *lane* is OpenAI's `stream_id` (None is a lane too): turns of one lane run one after the other, lanes run side by
side. A *subscription* is the session's own number for something that produces events: a turn started or a response
resumed.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gateway.errors import (
    ApiError,
    InvalidRequest,
    RateLimited,
    Unavailable,
    invalid_value,
    missing_parameter,
    unsupported_parameter,
)
from gateway.protocol.codec import Codec
from gateway.protocol.events import ClientEventType, CloseCode, Event, ServerEventType, error_event, with_stream_id
from gateway.protocol.requests import TurnRequest, converted, only_known
from gateway.protocol.response_create import ResponseCreate, parse_response_create

MAX_MALFORMED = 8
"""Malformed messages in a row after which the connection is closed."""

StreamId = Annotated[str, Meta(min_length=1, max_length=128)]
ResponseId = Annotated[str, Meta(min_length=1, max_length=128)]


class SessionLimits(Struct, frozen=True):
    """Limits of one connection. Times in seconds."""

    max_message_bytes: int = 1_048_576
    max_turns: int = 32
    """Most turns running, queued or resumed at the same time."""
    first_message_timeout: float = 60.0
    idle_timeout: float = 600.0
    lifetime: float = 3600.0
    ignore_unknown: bool = False
    """Whether parameters that no request has are ignored."""


class Send(Struct, frozen=True):
    """Send this event."""

    event: Event


class StartTurn(Struct, frozen=True):
    """Start a turn; report `turn_started` or `turn_refused`."""

    subscription: int
    request: TurnRequest
    idempotency_key: str | None = None


class Watch(Struct, frozen=True):
    """Show a running or retained response from number `after` on; report `turn_started` or `turn_refused`."""

    subscription: int
    response_id: str
    after: int


class CancelTurn(Struct, frozen=True):
    """End a response early; if there is none, send an error event in this lane."""

    response_id: str
    lane: str | None


class Close(Struct, frozen=True):
    """Send what was sent before, then close. Always the last effect."""

    code: CloseCode
    reason: str


Effect = Send | StartTurn | Watch | CancelTurn | Close


class SessionState(enum.Enum):
    """States of a session: OPEN -> ENDING -> CLOSED, or OPEN -> CLOSED; any other transition raises."""

    OPEN = "open"
    ENDING = "ending"
    """No new turns start; the connection closes when the running ones have ended."""
    CLOSED = "closed"


_ALLOWED = {
    (SessionState.OPEN, SessionState.ENDING),
    (SessionState.OPEN, SessionState.CLOSED),
    (SessionState.ENDING, SessionState.CLOSED),
}


class _Cancel(Struct, forbid_unknown_fields=True):
    response_id: ResponseId


class _Resume(Struct, forbid_unknown_fields=True):
    response_id: ResponseId
    starting_after: Annotated[int, Meta(ge=-1)] = -1


class _Steer(Struct, forbid_unknown_fields=True):
    previous_response_id: ResponseId
    input: str | list[Any]


class _Active(Struct):
    """The turn behind a subscription."""

    lane: str | None
    response_id: str | None = None
    occupies_lane: bool = True


class Session:
    """The protocol of one connection. `now` is in seconds on any monotonic clock."""

    def __init__(self, codec: Codec, limits: SessionLimits, now: float) -> None:
        self.state = SessionState.OPEN
        self._codec = codec
        self._limits = limits
        self._opened = now
        self._quiet_since = now
        self._heard = False
        self._malformed = 0
        self._subscriptions = 0
        self._active: dict[int, _Active] = {}
        self._queues: dict[str | None, deque[tuple[TurnRequest, str | None]]] = {}
        """Turns that wait for their lane; a lane is a key exactly while one of its turns runs."""
        self._refusal: ApiError | None = None
        """Error that new turns get while ENDING."""
        self._end = Close(CloseCode.RESTART, "")
        """The way in which the connection closes, while ENDING."""

    @property
    def turns(self) -> int:
        """Number of turns running, queued or resumed."""
        return len(self._active) + sum(len(queue) for queue in self._queues.values())

    @property
    def deadline(self) -> float:
        """Time at which `tick` must be called if nothing else happens before; infinity if never."""
        deadlines = []
        if self.state is SessionState.OPEN:
            deadlines.append(self._opened + self._limits.lifetime)
        if self.state is not SessionState.CLOSED and not self._active:
            patience = self._limits.idle_timeout if self._heard else self._limits.first_message_timeout
            deadlines.append(self._quiet_since + patience)
        return min(deadlines, default=float("inf"))

    def lane(self, subscription: int) -> str | None:
        """The lane whose `stream_id` the events of this subscription carry."""
        return self._active[subscription].lane

    def receive(self, message: str | bytes, now: float) -> list[Effect]:
        """Handle a message of the client."""
        if self.state is SessionState.CLOSED:
            return []
        self._heard, self._quiet_since = True, now
        if len(message) > self._limits.max_message_bytes:
            return self._close(CloseCode.TOO_BIG, f"a message may have {self._limits.max_message_bytes} bytes")
        lane: str | None = None
        try:
            body = self._codec.decode(message)
            handle = self._handler(body.pop("type", None))
            lane = _stream_id(body)
        except InvalidRequest as error:
            return self._reject(error, lane)
        self._malformed = 0
        try:
            return handle(body, lane)
        except ApiError as error:
            return [Send(error_event(error, lane))]

    def turn_started(self, subscription: int, response_id: str) -> None:
        """Record that the turn of a `StartTurn` or `Watch` runs; its events follow until `turn_ended`."""
        self._active[subscription].response_id = response_id

    def turn_refused(self, subscription: int, error: ApiError, now: float) -> list[Effect]:
        """Tell the client that a turn could not be started, and go on with the lane."""
        if self.state is SessionState.CLOSED:
            return []
        return [Send(error_event(error, self.lane(subscription))), *self.turn_ended(subscription, now)]

    def turn_ended(self, subscription: int, now: float) -> list[Effect]:
        """Record that the last event of a turn has been sent."""
        if self.state is SessionState.CLOSED:
            return []
        active = self._active.pop(subscription)
        self._quiet_since = now
        effects: list[Effect] = []
        if active.occupies_lane:
            queue = self._queues[active.lane]
            if queue:
                effects.append(self._start(active.lane, *queue.popleft()))
            else:
                del self._queues[active.lane]
        if self.state is SessionState.ENDING and not self._active:
            effects += self._close(self._end.code, self._end.reason)
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Close what has lived or been silent for too long."""
        if self.state is SessionState.CLOSED or now < self.deadline:
            return []
        if self.state is SessionState.OPEN and now >= self._opened + self._limits.lifetime:
            error = InvalidRequest(
                f"this connection has reached its limit of {self._limits.lifetime:g} seconds; open a new one",
                code="websocket_connection_limit_reached",
            )
            return [Send(error_event(error)), *self._finish(error, CloseCode.GOING_AWAY, "connection lifetime")]
        what = "another message" if self._heard else "a first message"
        return self._close(CloseCode.TIMEOUT, f"waited too long for {what}")

    def drain(self, reconnect_after: float) -> list[Effect]:
        """Refuse new turns because the server restarts, and close once the running ones have ended.

        Args:
            reconnect_after: seconds after which the client should connect again.
        """
        if self.state is not SessionState.OPEN:
            return []
        error = Unavailable("the server is restarting; connect again", code="draining")
        event: Event = {
            "type": ServerEventType.DRAINING,
            "reconnect_after_ms": round(1000 * reconnect_after),
        }
        told = [Send(event)] if self._codec.extensions else []
        return [*told, *self._finish(error, CloseCode.RESTART, "restart")]

    def shut(self, code: CloseCode = CloseCode.RESTART, reason: str = "restart") -> list[Effect]:
        """Close at once, because the server cannot wait any longer, or for another reason that is given."""
        return self._close(code, reason)

    def disconnected(self) -> None:
        """Record that the connection is gone."""
        if self.state is not SessionState.CLOSED:
            self._move_to(SessionState.CLOSED)

    def _handler(self, kind: object) -> Callable[[dict[str, Any], str | None], list[Effect]]:
        match kind:
            case ClientEventType.CREATE:
                return self._create
            case ClientEventType.CANCEL:
                return self._cancel
            case ClientEventType.RESUME:
                return self._resume
            case ClientEventType.STEER:
                return self._steer
            case None:
                raise missing_parameter("type")
            case _:
                known = ", ".join(ClientEventType)
                raise InvalidRequest(
                    f"type: unknown event {str(kind)[:80]!r}; this server knows {known}",
                    param="type",
                    code="unknown_event_type",
                )

    def _create(self, body: dict[str, Any], lane: str | None) -> list[Effect]:
        key = _idempotency_key(body)
        if self._limits.ignore_unknown:
            body = only_known(body, ResponseCreate)
        request, _ = parse_response_create(body)
        if request.background:
            raise unsupported_parameter("background", "not supported over a WebSocket; send POST /v1/responses")
        self._check_room()
        if self._refusal is not None:
            raise self._refusal
        if lane in self._queues:
            self._queues[lane].append((request, key))
            return []
        self._queues[lane] = deque()
        return [self._start(lane, request, key)]

    def _cancel(self, body: dict[str, Any], lane: str | None) -> list[Effect]:
        return [CancelTurn(converted(body, _Cancel).response_id, lane)]

    def _resume(self, body: dict[str, Any], lane: str | None) -> list[Effect]:
        resume = converted(body, _Resume)
        if any(active.response_id == resume.response_id for active in self._active.values()):
            # Its events are on their way already: repeating them would double the text of a client that asks twice.
            return []
        self._check_room()
        subscription = self._subscribe(_Active(lane, resume.response_id, occupies_lane=False))
        return [Watch(subscription, resume.response_id, resume.starting_after)]

    def _steer(self, body: dict[str, Any], lane: str | None) -> list[Effect]:
        """Give the input back, as OpenAI has it for models that cannot be steered."""
        steer = converted(body, _Steer)
        reason = "answers of this server cannot be steered; send the input with the next response.create"
        error = {"type": "invalid_request_error", "code": "steering_not_supported", "message": reason}
        lanes = [each.lane for each in self._active.values() if each.response_id == steer.previous_response_id]
        event: Event = {"type": ServerEventType.STEER_FAILED, "sequence_number": 0, "error": error}
        event["steer"] = msgspec.structs.asdict(steer)
        return [Send(with_stream_id(event, lanes[0] if lanes else None))]

    def _check_room(self) -> None:
        if self.turns >= self._limits.max_turns:
            raise RateLimited(
                f"this connection has {self._limits.max_turns} turns running or waiting; wait for one to end",
                retry_after=1,
                code="too_many_turns",
            )

    def _start(self, lane: str | None, request: TurnRequest, key: str | None) -> StartTurn:
        return StartTurn(self._subscribe(_Active(lane)), request, key)

    def _subscribe(self, active: _Active) -> int:
        self._subscriptions += 1
        self._active[self._subscriptions] = active
        return self._subscriptions

    def _reject(self, error: InvalidRequest, lane: str | None) -> list[Effect]:
        self._malformed += 1
        effects: list[Effect] = [Send(error_event(error, lane))]
        if self._malformed >= MAX_MALFORMED:
            effects += self._close(CloseCode.BAD_MESSAGE, f"{MAX_MALFORMED} malformed messages in a row")
        return effects

    def _finish(self, refusal: ApiError, code: CloseCode, reason: str) -> list[Effect]:
        """Refuse new turns from now on, also those that wait for their lane; close when the running ones have ended."""
        self._move_to(SessionState.ENDING)
        self._refusal, self._end = refusal, Close(code, reason)
        effects: list[Effect] = []
        for lane, queue in self._queues.items():
            effects += [Send(error_event(refusal, lane)) for _ in queue]
            queue.clear()
        return effects if self._active else [*effects, *self._close(code, reason)]

    def _close(self, code: CloseCode, reason: str) -> list[Effect]:
        if self.state is SessionState.CLOSED:
            return []
        self._move_to(SessionState.CLOSED)
        return [Close(code, reason)]

    def _move_to(self, state: SessionState) -> None:
        if (self.state, state) not in _ALLOWED:
            raise RuntimeError(f"session: illegal transition {self.state.value} -> {state.value}")
        self.state = state


def _stream_id(body: dict[str, Any]) -> str | None:
    """Take the lane out of a message: only the WebSocket's envelope has one."""
    try:
        return msgspec.convert(body.pop("stream_id", None), StreamId | None)
    except msgspec.ValidationError as error:
        raise invalid_value("stream_id", f"{error}") from None


def _idempotency_key(body: dict[str, Any]) -> str | None:
    """Take the client's own name for a turn out of its message: over HTTP it is a header."""
    key = body.pop("idempotency_key", None)
    if key is not None and not isinstance(key, str):
        raise invalid_value("idempotency_key", "expected a string")
    return key
