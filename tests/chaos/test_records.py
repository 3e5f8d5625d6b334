"""Answers that are put together from events of several connections."""

from __future__ import annotations

from typing import Any

from tests.chaos.cases import Case
from tests.chaos.records import Answer, TurnRecord

ID = "resp_" + "0" * 48


def answer() -> Answer:
    return Answer(TurnRecord("client", "demo", Case("greedy", {}), began=0.0))


def created(number: int = 0, id: str = ID) -> dict[str, Any]:
    return {"type": "response.created", "sequence_number": number, "response": {"id": id}}


def delta(number: int, text: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "sequence_number": number, "delta": text}


def completed(number: int, **fields: Any) -> dict[str, Any]:
    response = {
        "status": "completed",
        "incomplete_details": None,
        "usage": {"input_tokens": 3, "output_tokens": 2},
        "roundhouse": {"cost_microdollars": 5},
        **fields,
    }
    return {"type": "response.completed", "sequence_number": number, "response": response}


def taken(*events: dict[str, Any]) -> TurnRecord:
    taking = answer()
    for at, event in enumerate(events):
        taking.take(event, float(at))
    return taking.record


def test_an_answer_is_its_deltas() -> None:
    record = taken(created(), delta(1, "Hel"), delta(2, "lo"), completed(3))
    assert (record.text, record.ending, record.ended, record.failure) == ("Hello", "completed", 3.0, "")
    assert (record.input_tokens, record.output_tokens, record.cost) == (3, 2, 5)
    assert (record.ids, record.moments, record.problems) == ([ID], [1.0, 2.0], [])


def test_an_event_that_comes_twice_is_a_problem() -> None:
    assert taken(created(), delta(1, "a"), delta(1, "a")).problems == ["event 1 came after 1"]


def test_a_gap_is_a_problem_unless_deltas_were_merged() -> None:
    assert taken(created(), delta(4, "abcd")).problems == []
    assert taken(created(), delta(1, "a"), completed(3)).problems == ["response.completed 3 came after 1"]


def test_a_turn_that_begins_anew_after_text_is_a_problem() -> None:
    assert taken(created(), created(id="resp_" + "1" * 48)).problems == []
    assert taken(created(), delta(1, "a"), created(id="resp_" + "1" * 48)).problems


def test_a_failed_response_keeps_its_code() -> None:
    failed = {"status": "failed", "error": {"code": "server_error", "type": "engine_failed"}}
    record = taken(created(), delta(1, "a"), completed(2, **failed))
    assert (record.failure, record.ending, record.text) == ("engine_failed", "", "a")


def test_an_incomplete_response_says_why() -> None:
    record = taken(created(), completed(1, status="incomplete", incomplete_details={"reason": "max_output_tokens"}))
    assert record.ending == "incomplete: max_output_tokens"


def test_chunks_of_a_chat_that_is_asked_again() -> None:
    """The second connection shows it from its first event."""
    taking = answer()
    first, last = {"delta": {"content": "Hi"}, "finish_reason": None}, {"delta": {}, "finish_reason": "stop"}
    taking.take_chunk({"id": f"chatcmpl-{ID[5:]}", "choices": [first]}, 1.0)
    taking.begin_again()
    taking.take_chunk({"id": f"chatcmpl-{ID[5:]}", "choices": [first]}, 2.0)
    taking.take_chunk({"id": f"chatcmpl-{ID[5:]}", "choices": [last]}, 3.0)
    usage = {"prompt_tokens": 4, "completion_tokens": 1}
    taking.take_chunk({"id": f"chatcmpl-{ID[5:]}", "choices": [], "usage": usage}, 3.0)
    record = taking.record
    assert (record.text, record.ending, record.ids, record.problems) == ("Hi", "stop", [ID], [])
    assert (record.input_tokens, record.output_tokens) == (4, 1)
