"""Texts that are not whole are noticed, however the events come."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.records import TurnEnd
from load.transcript import ChatTranscript, ResponsesTranscript, Transcript

TEXTS = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=12)


def answer(pieces: list[str], status: str = "completed") -> list[dict[str, Any]]:
    content = [{"type": "output_text", "text": "".join(pieces)}]
    response = {"id": "r", "status": status, "output": [{"type": "message", "content": content}]}
    response["usage"] = {"input_tokens": 3, "output_tokens": len(pieces)}
    end = "response.completed" if status == "completed" else "response.incomplete"
    events = [
        {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "item": {"type": "message"}},
        *({"type": "response.output_text.delta", "delta": each} for each in pieces),
        {"type": "response.output_text.done", "text": "".join(pieces)},
        {"type": end, "response": response},
    ]
    return numbered(events)


def numbered(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**each, "sequence_number": number} for number, each in enumerate(events)]


def taken(transcript: Transcript, events: list[Any]) -> Transcript:
    for at, event in enumerate(events):
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        assert transcript.take(data, float(at)) is (transcript.end is not None)
    return transcript


@given(TEXTS)
def test_a_whole_answer_has_no_fault(pieces: list[str]) -> None:
    found = taken(ResponsesTranscript(), answer(pieces))
    assert (found.end, found.fault, found.error) == (TurnEnd.COMPLETED, None, None)
    assert found.text == "".join(pieces)
    assert list(found.times) == [float(at + 2) for at in range(len(pieces))]
    assert (found.input_tokens, found.output_tokens) == (3, len(pieces))


@given(TEXTS, st.data())
def test_a_piece_that_is_lost_or_doubled_is_noticed_though_numbers_have_no_gap(
    pieces: list[str], data: st.DataObject
) -> None:
    events = answer(pieces)
    at = data.draw(st.integers(2, 1 + len(pieces)))
    times = data.draw(st.sampled_from([0, 2]))
    changed = numbered([*events[:at], *[events[at]] * times, *events[at + 1 :]])
    assert "they differ at" in (taken(ResponsesTranscript(), changed).fault or "")


@given(TEXTS, st.data())
def test_an_event_that_is_lost_doubled_or_late_is_noticed(pieces: list[str], data: st.DataObject) -> None:
    events = answer(pieces)
    at = data.draw(st.integers(1, len(events) - 2))
    changed = data.draw(
        st.sampled_from(
            [
                [*events[:at], *events[at + 1 :]],
                [*events[:at], events[at], *events[at:]],
                [*events[:at], events[at + 1], events[at], *events[at + 2 :]],
            ]
        )
    )
    assert taken(ResponsesTranscript(), changed).fault is not None


def test_the_place_of_the_first_difference_is_told() -> None:
    events = answer(["ab", "cd"])
    events[3]["delta"] = "cx"
    fault = taken(ResponsesTranscript(), events).fault
    assert fault == "4 characters came in pieces, 4 in the last event; they differ at 3"


def test_a_cancelled_answer_is_compared_too() -> None:
    found = taken(ResponsesTranscript(), answer(["a", "b"], "cancelled"))
    assert (found.end, found.fault) == (TurnEnd.CANCELLED, None)


def test_an_answer_that_reached_its_limit_is_complete() -> None:
    assert taken(ResponsesTranscript(), answer(["a"], "incomplete")).end is TurnEnd.COMPLETED


@pytest.mark.parametrize(
    ("events", "end", "error"),
    [
        (
            [{"type": "error", "status": 429, "error": {"code": "rate_limited", "message": "later"}}],
            TurnEnd.REFUSED,
            "rate_limited: later",
        ),
        (
            [*answer(["a"])[:3], {"type": "error", "code": "gone", "message": "sorry", "sequence_number": 3}],
            TurnEnd.FAILED,
            "gone: sorry",
        ),
        (
            [
                *answer(["a"])[:3],
                {
                    "type": "response.failed",
                    "sequence_number": 3,
                    "response": {"id": "r", "error": {"code": "lost", "message": "engine"}},
                },
            ],
            TurnEnd.FAILED,
            "lost: engine",
        ),
    ],
)
def test_what_the_server_says_went_wrong_is_kept(events: list[Any], end: TurnEnd, error: str) -> None:
    found = taken(ResponsesTranscript(), events)
    assert (found.end, found.error, found.fault) == (end, error, None)


def test_bytes_that_are_no_event_end_the_turn() -> None:
    found = taken(ResponsesTranscript(), [b"what?"])
    assert found.end is TurnEnd.FAILED and "cannot be read" in (found.error or "")


def test_a_server_without_sequence_numbers_is_judged_by_its_text() -> None:
    events = [{name: value for name, value in each.items() if name != "sequence_number"} for each in answer(["a", "b"])]
    assert taken(ResponsesTranscript(), events).fault is None
    del events[2]
    assert taken(ResponsesTranscript(), events).fault is not None


def chunks(pieces: list[str], reason: str | None = "stop") -> list[Any]:
    return [
        {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
        *({"choices": [{"delta": {"content": each}, "finish_reason": None}]} for each in pieces),
        {"choices": [{"delta": {}, "finish_reason": reason}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(pieces)}},
        b"[DONE]",
    ]


@given(TEXTS)
def test_a_chat_completion_is_its_pieces(pieces: list[str]) -> None:
    found = taken(ChatTranscript(), chunks(pieces))
    assert (found.end, found.fault, found.text) == (TurnEnd.COMPLETED, None, "".join(pieces))
    assert (found.input_tokens, found.output_tokens) == (3, len(pieces))
    assert len(found.times) == len(pieces)


def test_a_chat_completion_without_its_end_is_a_fault() -> None:
    assert taken(ChatTranscript(), chunks(["a"], None)).fault == "the stream ended without a finish_reason"


def test_an_error_within_a_stream_fails_the_turn() -> None:
    found = taken(ChatTranscript(), [*chunks(["a"])[:2], {"error": {"message": "out of memory", "type": "server"}}])
    assert (found.end, found.error) == (TurnEnd.FAILED, "server: out of memory")


def test_equal_texts_have_equal_digests_however_they_are_cut() -> None:
    first, second = taken(ChatTranscript(), chunks(["ab", "c"])), taken(ResponsesTranscript(), answer(["a", "bc"]))
    assert first.digest == second.digest
    assert first.digest != taken(ChatTranscript(), chunks(["ab"])).digest
