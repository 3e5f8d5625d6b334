"""What a client saw of one turn, and an answer put together from events that came over any number of connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gateway.turns.ids import response_id
from tests.chaos.cases import Case

ENDS = ("response.completed", "response.incomplete", "response.failed")


@dataclass
class TurnRecord:
    """One turn as its client saw it; times on the monotonic clock."""

    client: str
    tenant: str
    case: Case
    began: float
    ended: float | None = None
    ids: list[str] = field(default_factory=list)
    """Ids of its responses: more than one if the first was gone before the client had seen any of it."""
    replica: str = ""
    """Engine that began to answer, if the client was told."""
    text: str = ""
    ending: str = ""
    """As `cases.Whole.ending`; empty if the turn has failed."""
    failure: str = ""
    """Code of the error with which it has failed."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: int | None = None
    """Micro-dollars, if the client was told."""
    moments: list[float] = field(default_factory=list)
    """When text came."""
    refusals: list[tuple[float, str]] = field(default_factory=list)
    """When it was refused before it began, and with which code; it was asked again."""
    interruptions: int = 0
    """Connections that were lost on the way."""
    problems: list[str] = field(default_factory=list)
    """What no fault excuses, such as an event that came twice."""

    @property
    def limited(self) -> float:
        """When its limits refused it for the last time; 0 if they never did."""
        return max((at for at, code in self.refusals if code == "rate_limit_exceeded"), default=0.0)

    def fail(self, code: str, now: float) -> None:
        self.failure, self.ended = code, now


class Answer:
    """Puts the events of one turn together; those of a response may come over several connections."""

    def __init__(self, record: TurnRecord) -> None:
        self.record = record
        self.id: str | None = None
        self.last = -1
        """Number of the last event."""

    def take(self, event: dict[str, Any], now: float) -> bool:
        """Take an event of the Responses API; return whether it was the last one."""
        record, kind = self.record, event["type"]
        number = event["sequence_number"]
        if kind == "response.created" and event["response"]["id"] != self.id:
            if self.id is not None and record.text:
                record.problems.append(f"began again as {event['response']['id']} after {self.id}")
            self.id, self.last = event["response"]["id"], -1
            record.ids.append(self.id)
        if number <= self.last:
            record.problems.append(f"event {number} came after {self.last}")
        elif number > self.last + 1 and not kind.endswith(".delta"):  # deltas may be merged
            record.problems.append(f"{kind} {number} came after {self.last}")
        self.last = number
        if kind == "response.output_text.delta":
            self._said(event["delta"], now)
        elif kind == "roundhouse.route":
            record.replica = event["replica"] or ""
        elif kind in ENDS:
            self._ended(event["response"], now)
        return kind in ENDS

    def take_chunk(self, chunk: dict[str, Any], now: float) -> None:
        """Take a chunk of a chat completion."""
        record, id = self.record, response_id(chunk["id"])
        if id != self.id:
            if self.id is not None and record.text:
                record.problems.append(f"began again as {id} after {self.id}")
            self.id = id
            record.ids.append(id)
        for choice in chunk["choices"]:
            if choice["delta"].get("content"):
                self._said(choice["delta"]["content"], now)
            record.ending = choice["finish_reason"] or record.ending
        if chunk.get("usage"):
            self._count(chunk["usage"], "prompt_tokens", "completion_tokens")

    def begin_again(self) -> None:
        """Forget the text so far: the next connection shows the turn from its first event."""
        self.record.text, self.last = "", -1

    def _said(self, text: str, now: float) -> None:
        self.record.text += text
        self.record.moments.append(now)

    def _ended(self, response: dict[str, Any], now: float) -> None:
        record = self.record
        record.ended = now
        if response["status"] == "failed":
            record.failure = response["error"].get("type") or response["error"]["code"]
            return
        record.ending = response["status"]
        if response.get("incomplete_details"):
            record.ending += f": {response['incomplete_details']['reason']}"
        if response.get("usage"):
            self._count(response["usage"], "input_tokens", "output_tokens")
        record.cost = (response.get("roundhouse") or {}).get("cost_microdollars")

    def _count(self, usage: dict[str, Any], read: str, written: str) -> None:
        self.record.input_tokens, self.record.output_tokens = usage[read], usage[written]
