"""The turn's log: numbers without gaps, and no reading pattern that loses or doubles a character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.log import LogEntryKind, TurnLog
from gateway.protocol.stream import Finished, LimitState, Routed, TextDelta, TokenLogprob, TokenUsage

ROUTED = Routed(tier="small", model="m", replica="small-0", reason="requested", complexity=None)
LIMITS = LimitState()
STOP = Finished("stop", TokenUsage(1, 0, 1))

texts = st.lists(st.text(max_size=4), max_size=20)


def full_log(deltas: list[str]) -> TurnLog:
    log = TurnLog()
    for event in (ROUTED, *map(TextDelta, deltas), LIMITS, STOP):
        log.append(event)
    return log


def text_after(log: TurnLog, after: int) -> str:
    return "".join(entry.event.text for entry in log.read(after) if isinstance(entry.event, TextDelta))


def test_an_answer_has_the_entries_of_a_responses_stream_in_order() -> None:
    """The order is OpenAI's, with our own events inside."""
    kinds = [entry.kind for entry in full_log(["a"]).read(-1)]
    assert kinds == [
        LogEntryKind.CREATED,
        LogEntryKind.IN_PROGRESS,
        LogEntryKind.EVENT,
        LogEntryKind.ITEM_ADDED,
        LogEntryKind.PART_ADDED,
        LogEntryKind.DELTA,
        LogEntryKind.EVENT,
        LogEntryKind.TEXT_DONE,
        LogEntryKind.PART_DONE,
        LogEntryKind.ITEM_DONE,
        LogEntryKind.FINISHED,
    ]


def test_an_empty_answer_is_a_message_with_empty_text() -> None:
    """No token at all still makes an item that begins and ends, after the limits."""
    kinds = [entry.kind for entry in full_log([]).read(2)]
    assert kinds == [
        LogEntryKind.EVENT,
        LogEntryKind.ITEM_ADDED,
        LogEntryKind.PART_ADDED,
        LogEntryKind.TEXT_DONE,
        LogEntryKind.PART_DONE,
        LogEntryKind.ITEM_DONE,
        LogEntryKind.FINISHED,
    ]


def test_a_failure_before_the_first_token_has_no_item() -> None:
    """There is nothing to show of an answer that never began."""
    log = TurnLog()
    log.append(ROUTED)
    log.append(Finished("error", TokenUsage()))
    assert [entry.kind for entry in log.read(2)] == [LogEntryKind.FINISHED]
    assert not log.items


def test_a_warm_up_has_no_item() -> None:
    """`generate: false` gives no output."""
    log = TurnLog(with_item=False)
    log.append(ROUTED)
    log.append(STOP)
    assert [entry.kind for entry in log.read(2)] == [LogEntryKind.FINISHED]


@given(deltas=texts, reads=st.lists(st.integers(0, 20)))
def test_however_a_viewer_reads_it_gets_every_character_once(deltas: list[str], reads: list[int]) -> None:
    """Reads fall between any two appends; numbers rise, and the text is whole."""
    log, cursor, seen, numbers = TurnLog(), -1, "", []
    for step, event in enumerate((ROUTED, *map(TextDelta, deltas), LIMITS, STOP)):
        log.append(event)
        if step in reads or event is STOP:
            for entry in log.read(cursor):
                cursor = entry.sequence
                numbers.append(cursor)
                if isinstance(entry.event, TextDelta):
                    seen += entry.event.text
    assert seen == "".join(deltas) == log.text
    assert numbers == sorted(set(numbers))
    assert cursor == log.last


@given(deltas=texts, finished=st.booleans())
def test_resuming_after_any_number_gives_exactly_the_text_after_it(deltas: list[str], finished: bool) -> None:
    """The first part read live and the rest read later make the whole, at every cut."""
    log = full_log(deltas) if finished else TurnLog()
    if not finished:
        for event in (ROUTED, *map(TextDelta, deltas)):
            log.append(event)
    whole = "".join(deltas)
    first = 5  # created, in progress, route, item, part
    for cut in range(-1, log.last + 1):
        covered = max(min(cut - first + 1, len(deltas)), 0)
        assert text_after(log, cut) == whole[len("".join(deltas[:covered])) :]


@given(deltas=texts)
def test_numbers_are_contiguous_for_a_viewer_that_keeps_up(deltas: list[str]) -> None:
    """Nothing is merged, so nothing is skipped."""
    log, numbers = TurnLog(), []
    for event in (ROUTED, *map(TextDelta, deltas), LIMITS, STOP):
        log.append(event)
        numbers += [entry.sequence for entry in log.read(numbers[-1] if numbers else -1)]
    assert numbers == list(range(log.last + 1))


@given(deltas=texts, extensions=st.integers(1, 3))
def test_numbers_without_our_events_have_no_gaps_either(deltas: list[str], extensions: int) -> None:
    """Each leads back to its entry, while the log grows and later."""
    log, numbers = TurnLog(), []
    for event in (*[ROUTED] * extensions, *map(TextDelta, deltas), LIMITS, STOP):
        log.append(event)
        new = [entry.sequence for entry in log.read(log.sequence_of(len(numbers) - 1))]
        theirs = [sequence for sequence in new if sequence not in log._extensions]
        numbers += [log.number_of(sequence) for sequence in theirs]
        assert [log.sequence_of(log.number_of(sequence)) for sequence in theirs] == theirs
    assert numbers == list(range(log.last - extensions))


@given(deltas=texts, after=st.integers(-1, 40), apart=st.integers(1, 9))
def test_read_apart_is_every_entry_by_itself(deltas: list[str], after: int, apart: int) -> None:
    """So many at a time."""
    log, seen, cursor = full_log(deltas), [], after
    while entries := log.read(cursor, apart):
        assert len(entries) <= apart
        cursor = entries[-1].sequence
        seen += entries
    assert [entry.sequence for entry in seen] == list(range(after + 1, log.last + 1))
    text = "".join(entry.event.text for entry in seen if isinstance(entry.event, TextDelta))
    assert text == text_after(log, after)


def test_a_merged_delta_carries_all_tokens_and_logprobs() -> None:
    """Merging loses neither token ids nor log-probabilities."""
    log = TurnLog()
    log.append(ROUTED)
    a, b = TokenLogprob("a", (97,), -1.0), TokenLogprob("b", (98,), -2.0)
    log.append(TextDelta("", ()))
    log.append(TextDelta("a", (5,), (a,)))
    log.append(TextDelta("b", (6, 7), (b,)))
    merged = log.read(5)[0].event
    assert merged == TextDelta("ab", (5, 6, 7), (a, b))
    assert log.logprobs == (a, b)
    assert log.read(6)[0].event == TextDelta("b", (6, 7), (b,))


def test_reading_beyond_the_end_gives_nothing() -> None:
    """A client may claim to have seen more than there is."""
    assert full_log(["a"]).read(1000) == []


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([ROUTED, STOP], TextDelta("late")),
        ([ROUTED, STOP], STOP),
        ([ROUTED, LIMITS], TextDelta("late")),
        ([ROUTED, TextDelta("a")], ROUTED),
    ],
)
def test_events_out_of_order_raise(events: list[object], wrong: object) -> None:
    """The log refuses what its readers could not make sense of."""
    log = TurnLog()
    for event in events:
        log.append(event)
    with pytest.raises(RuntimeError):
        log.append(wrong)
