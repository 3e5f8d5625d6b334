"""The turn's log with several items: messages and calls in any order, read in any way, numbered without gaps."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.items import ItemState, OutputItem
from gateway.protocol.log import LogEntry, LogEntryKind, TurnLog
from gateway.protocol.stream import (
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    Finished,
    LimitState,
    Routed,
    TextDelta,
    TokenUsage,
    TurnEvent,
)

ROUTED = Routed(tier="small", model="m", replica="small-0", reason="requested", complexity=None)
LIMITS = LimitState()
STOP = Finished("stop", TokenUsage(1, 0, 1))

pieces = st.lists(st.text(max_size=4), max_size=6)
contents = st.lists(st.tuples(st.booleans(), pieces, st.booleans()), max_size=6)
"""Items: is it a call, its deltas, is it complete."""


def answer(items: list[tuple[bool, list[str], bool]]) -> list[TurnEvent]:
    """The events of an answer with these items. Messages that follow one another are one, as a parser has it."""
    events: list[TurnEvent] = []
    for number, (is_call, deltas, complete) in enumerate(items):
        if is_call:
            events.append(CallBegun(f"call_{number}", "f"))
            events += [ArgumentsDelta(text, (number,)) for text in deltas]
            events.append(CallEnded(complete))
        else:
            events += [TextDelta(text, (number,)) for text in deltas]
    return events


def logged(events: list[TurnEvent], end: Finished = STOP) -> TurnLog:
    log = TurnLog()
    for event in (ROUTED, *events, LIMITS, end):
        log.append(event)
    return log


def texts(entries: list[LogEntry]) -> dict[int, str]:
    """What deltas say of each item."""
    said: dict[int, str] = defaultdict(str)
    for entry in entries:
        if isinstance(entry.event, TextDelta | ArgumentsDelta):
            assert entry.kind is LogEntryKind.DELTA and entry.item is not None
            said[entry.item.index] += entry.event.text
    return said


def test_a_message_and_two_calls_have_the_entries_of_a_responses_stream() -> None:
    """Each item begins after the one before has ended; the last one ends after the limits if it is a message."""
    events = [TextDelta("a"), *answer([(True, ["{", "}"], True), (True, [], False)]), TextDelta("b")]
    shown = [(entry.kind, entry.item and entry.item.index) for entry in logged(events).read(1)]
    assert shown == [
        (LogEntryKind.EVENT, None),
        (LogEntryKind.ITEM_ADDED, 0),
        (LogEntryKind.PART_ADDED, 0),
        (LogEntryKind.DELTA, 0),
        (LogEntryKind.TEXT_DONE, 0),
        (LogEntryKind.PART_DONE, 0),
        (LogEntryKind.ITEM_DONE, 0),
        (LogEntryKind.ITEM_ADDED, 1),
        (LogEntryKind.DELTA, 1),
        (LogEntryKind.ARGUMENTS_DONE, 1),
        (LogEntryKind.ITEM_DONE, 1),
        (LogEntryKind.ITEM_ADDED, 2),
        (LogEntryKind.ARGUMENTS_DONE, 2),
        (LogEntryKind.ITEM_DONE, 2),
        (LogEntryKind.ITEM_ADDED, 3),
        (LogEntryKind.PART_ADDED, 3),
        (LogEntryKind.DELTA, 3),
        (LogEntryKind.EVENT, None),
        (LogEntryKind.TEXT_DONE, 3),
        (LogEntryKind.PART_DONE, 3),
        (LogEntryKind.ITEM_DONE, 3),
        (LogEntryKind.FINISHED, None),
    ]


def test_what_is_known_of_the_items() -> None:
    """Text is that of messages; calls have their state."""
    log = logged([TextDelta("a"), *answer([(True, ["{}"], True), (True, ["{"], False)]), TextDelta("b")])
    assert (log.text, log.characters) == ("ab", 5)
    assert [item.text for item in log.calls] == ["{}", "{"]
    assert [item.state for item in log.items] == [
        ItemState.COMPLETED,
        ItemState.COMPLETED,
        ItemState.INCOMPLETE,
        ItemState.COMPLETED,
    ]


@pytest.mark.parametrize("reason", ["stop", "length", "cancelled", "error"])
def test_an_item_that_is_cut_off_is_incomplete(reason: Any) -> None:
    """A call in any case, a message unless it ended of itself."""
    call = logged([CallBegun("call_1", "f"), ArgumentsDelta("{")], Finished(reason, TokenUsage()))
    assert [item.state for item in call.items] == [ItemState.INCOMPLETE]
    message = logged([TextDelta("a")], Finished(reason, TokenUsage()))
    assert [item.state is ItemState.COMPLETED for item in message.items] == [reason == "stop"]


def test_an_answer_of_calls_only_has_no_message() -> None:
    """Nothing was said."""
    log = logged(answer([(True, ["{}"], True)]))
    assert (log.messages, log.text) == ([], "")


@given(items=contents, reads=st.sets(st.integers(0, 60)))
def test_however_a_viewer_reads_it_gets_every_character_once(
    items: list[tuple[bool, list[str], bool]], reads: set[int]
) -> None:
    """Reads fall between any two events; every item is whole, and none begins before the one before it has ended."""
    log, cursor, seen = TurnLog(), -1, list[LogEntry]()
    for step, event in enumerate([ROUTED, *answer(items), LIMITS, STOP]):
        log.append(event)
        if step in reads or event is STOP:
            seen += log.read(cursor)
            cursor = seen[-1].sequence if seen else cursor
    numbers = [entry.sequence for entry in seen]
    assert numbers == sorted(set(numbers))
    assert cursor == log.last
    said = texts(seen)
    assert [said[item.index] for item in log.items] == [item.text for item in log.items]
    about = [entry.item.index for entry in seen if entry.item is not None]
    assert about == sorted(about)
    begun = [entry.item for entry in seen if entry.kind is LogEntryKind.ITEM_ADDED]
    ended = [entry.item for entry in seen if entry.kind is LogEntryKind.ITEM_DONE]
    assert begun == ended == list(log.items)


@given(items=contents, finished=st.booleans())
def test_resuming_after_any_number_gives_exactly_what_is_left(
    items: list[tuple[bool, list[str], bool]], finished: bool
) -> None:
    """What was read one by one up to a number, and the rest read at once, make the whole, at every cut."""
    log, live = TurnLog(), list[LogEntry]()
    for event in [ROUTED, *answer(items), *((LIMITS, STOP) if finished else ())]:
        log.append(event)
        live += log.read(live[-1].sequence if live else -1)
    assert [entry.sequence for entry in live] == list(range(log.last + 1))
    whole = texts(live)
    for cut in range(-1, log.last + 1):
        before, after = live[: cut + 1], log.read(cut)
        assert all(entry.sequence > cut for entry in after)
        first, rest = texts(before), texts(after)
        assert {index: first[index] + rest[index] for index in whole} == whole
        kinds = [entry.kind for entry in (*before, *after) if entry.kind is not LogEntryKind.DELTA]
        assert kinds == [entry.kind for entry in live if entry.kind is not LogEntryKind.DELTA]
        tokens = [token for entry in (*before, *after) for token in getattr(entry.event, "token_ids", ())]
        assert tokens == [token for entry in live for token in getattr(entry.event, "token_ids", ())]


@given(items=contents)
def test_a_reader_that_is_far_behind_gets_one_delta_an_item(items: list[tuple[bool, list[str], bool]]) -> None:
    """However long the answer is; its number is that of the last delta covered."""
    log = logged(answer(items))
    merged = [entry for entry in log.read(-1) if entry.kind is LogEntryKind.DELTA]
    assert [entry.item.index for entry in merged if entry.item] == [item.index for item in log.items if item.deltas]
    assert log.waiting(-1) == log.last + 1
    assert log.waiting(log.last) == log.waiting(log.last + 7) == 0


CALL = CallBegun("call_1", "f")


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([ROUTED], ArgumentsDelta("{")),
        ([ROUTED], CallEnded(True)),
        ([ROUTED, TextDelta("a")], ArgumentsDelta("{")),
        ([ROUTED, CALL], TextDelta("a")),
        ([ROUTED, CALL, CallEnded(True)], CallEnded(True)),
        ([ROUTED, CALL, CallEnded(True)], ArgumentsDelta("{")),
        ([ROUTED, CALL], ROUTED),
        ([ROUTED, LIMITS], CALL),
        ([ROUTED, CALL, LIMITS], ArgumentsDelta("{")),
        ([ROUTED, STOP], CALL),
    ],
)
def test_events_out_of_order_raise(events: list[TurnEvent], wrong: TurnEvent) -> None:
    """The log refuses what its readers could not make sense of."""
    log = TurnLog()
    for event in events:
        log.append(event)
    with pytest.raises(RuntimeError):
        log.append(wrong)


def test_an_item_ends_once() -> None:
    """And takes no more deltas then."""
    item = OutputItem(0)
    with pytest.raises(RuntimeError):
        item.close(ItemState.OPEN)
    item.close(ItemState.COMPLETED)
    with pytest.raises(RuntimeError):
        item.close(ItemState.INCOMPLETE)
    with pytest.raises(RuntimeError):
        item.append(TextDelta("late"))
