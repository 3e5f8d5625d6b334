"""Copies of a log: whatever becomes of the slices on their way, a copy says what the log says, number by number."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.protocol.log import TurnLog
from gateway.protocol.slices import Deltas, Fit, LogSlice, fit
from gateway.protocol.stream import Finished, PromptScored, TextDelta, TokenLogprob, TokenUsage
from tests.gateway.protocol.test_log_items import LIMITS, ROUTED, STOP, answer, contents, logged, texts

FIRST = 1
"""Number of the last entry that every log begins with."""


def copy_of(log: TurnLog, *cuts: int) -> TurnLog:
    """A log made of slices that end at these numbers, each of which travels as MessagePack."""
    copy = TurnLog()
    for _ in (*cuts, None):
        gained = log.since(copy.last)
        copy.extend(msgspec.msgpack.decode(msgspec.msgpack.encode(gained), type=LogSlice))
    return copy


@given(contents, st.sampled_from(["stop", "length", "cancelled"]))
def test_a_copy_reads_as_the_log_from_every_number(items: list[tuple[bool, list[str], bool]], reason: str) -> None:
    """Entries, merged deltas, text and end."""
    log = logged(answer(items), Finished(reason, TokenUsage(1, 0, 1)))  # type: ignore[arg-type]
    copy = copy_of(log)
    for number in range(-1, log.last + 1):
        ours, theirs = log.read(number), copy.read(number)
        assert [(e.sequence, e.kind, e.event) for e in ours] == [(e.sequence, e.kind, e.event) for e in theirs]
        assert texts(ours) == texts(theirs)
    assert (copy.text, copy.finished, copy.routed) == (log.text, log.finished, log.routed)
    assert copy.since(-1) == log.since(-1)


def test_log_probabilities_travel() -> None:
    """Those of the prompt, and those of deltas, also where the first ones have none."""
    probable = TokenLogprob("a", (97,), -0.5, (TokenLogprob("b", (98,), -1.0),))
    log = logged([PromptScored((1, 2), (None, probable)), TextDelta("a"), TextDelta("b", (3,), (probable,))])
    assert copy_of(log).since(-1) == log.since(-1)
    assert copy_of(log).logprobs == (probable,)


@pytest.mark.parametrize(
    "gained",
    [
        LogSlice(3),
        LogSlice(FIRST, (Deltas(0, "x", (1,)),)),
        LogSlice(FIRST, (Deltas(0, "xy", (1,)),)),
    ],
)
def test_what_does_not_fit_is_refused(gained: LogSlice) -> None:
    """A gap, an item that does not exist, deltas that do not add up."""
    with pytest.raises(ValueError, match=r"cannot follow|does not exist|add up"):
        TurnLog().extend(gained)


class Following(RuleBasedStateMachine):
    """An owner's log grows; a feed of it travels over a way that loses, repeats and delays; a copy asks again."""

    def __init__(self) -> None:
        super().__init__()
        self.log = TurnLog()
        self.log.append(ROUTED)
        self.copy = TurnLog()
        self.feed, self.cursor = 1, FIRST
        """The feed that the copy has asked for last, and what it has sent."""
        self.way: list[tuple[int, LogSlice]] = []
        self.said = ""
        """What a viewer of the copy has read."""
        self.seen = -1

    @precondition(lambda self: not self.log.finished)
    @rule(text=st.text(max_size=3))
    def grow(self, text: str) -> None:
        self.log.append(TextDelta(text, (1,)))

    @precondition(lambda self: not self.log.finished)
    @rule()
    def end(self) -> None:
        self.log.append(LIMITS)
        self.log.append(STOP)

    @rule()
    def send(self) -> None:
        self.way.append((self.feed, self.log.since(self.cursor)))
        self.cursor = self.log.last

    @precondition(lambda self: self.way)
    @rule(data=st.data())
    def lose_or_repeat(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.way) - 1))
        if data.draw(st.booleans()):
            del self.way[place]
        else:
            self.way.append(self.way[place])

    @precondition(lambda self: self.way)
    @rule()
    def arrive(self) -> None:
        feed, gained = self.way.pop(0)
        if feed != self.feed:
            return
        match fit(gained, self.copy.last):
            case Fit.NEXT:
                self.copy.extend(gained)
            case Fit.KNOWN:
                assert gained.last <= self.copy.last
            case Fit.GAP:
                self.ask_again()

    @rule()
    def ask_again(self) -> None:
        self.feed, self.cursor = self.feed + 1, self.copy.last

    @rule()
    def view(self) -> None:
        entries = self.copy.read(self.seen)
        self.said += "".join(entry.event.text for entry in entries if isinstance(entry.event, TextDelta))
        self.seen = entries[-1].sequence if entries else self.seen

    @invariant()
    def what_was_read_is_how_the_answer_begins(self) -> None:
        assert self.log.text.startswith(self.copy.text)
        assert self.copy.text.startswith(self.said)
        assert self.copy.last <= self.log.last

    def teardown(self) -> None:
        """Whatever happened, asking once more gives everything."""
        self.ask_again()
        self.way.clear()
        self.send()
        self.arrive()
        self.view()
        assert self.said == self.log.text
        assert self.copy.since(-1) == self.log.since(-1)


TestFollowing = Following.TestCase
