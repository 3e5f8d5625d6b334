"""The events of an answer after its filter: each text is filtered whole, and no token is lost."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.log import TurnLog
from gateway.protocol.stream import ArgumentsDelta, CallBegun, CallEnded, Finished, TextDelta, TokenUsage, TurnEvent
from gateway.safety.answer import AnswerFilter
from gateway.safety.json_stream import JsonFilter
from gateway.safety.stream import FilterRule, StreamFilter, TextFilter, filter_text
from tests.gateway.recognisers.samples import RECOGNISERS, cuts, texts

NAMES = ("api_key", "email", "card", "iban")
PLAIN = [FilterRule(name, RECOGNISERS[name], f"[{name}]") for name in NAMES]
QUOTED = [FilterRule(rule.name, rule.recogniser, json.dumps(rule.replacement)) for rule in PLAIN]
BLOCKING = [FilterRule(name, RECOGNISERS[name], blocks=True) for name in NAMES]


def answer(rules: list[FilterRule] = PLAIN, quoted: list[FilterRule] = QUOTED) -> AnswerFilter:
    def text(in_string: bool = True) -> StreamFilter:
        return TextFilter(rules if in_string else quoted, lambda rule, found: None)

    return AnswerFilter(lambda is_json: JsonFilter(text) if is_json else text())


def filtered(text: str) -> str:
    return filter_text(text, PLAIN, lambda rule, found: None)[0]


@given(data=st.data(), items=st.lists(st.tuples(st.booleans(), texts), max_size=4))
@settings(max_examples=150)
def test_each_item_comes_out_filtered_with_all_tokens(data: st.DataObject, items: list[tuple[bool, str]]) -> None:
    filter, log, token = answer(), TurnLog(), 0
    expected: list[tuple[str | None, Any]] = []

    def take(*events: TurnEvent) -> None:
        for event in filter.events(events):
            log.append(event)

    for is_call, text in items:
        text = text.encode("utf-8", "replace").decode()
        written = json.dumps({"a": text}) if is_call else text
        if is_call:
            take(CallBegun("id", "f"))
        for chunk in data.draw(cuts(written)):
            take((ArgumentsDelta if is_call else TextDelta)(chunk, (token,)))
            token += 1
        if is_call:
            take(CallEnded(True))
            expected.append(("f", {"a": filtered(text)}))
        elif expected and expected[-1][0] is None:
            expected[-1] = (None, expected[-1][1] + text)
        else:
            expected.append((None, text))
    for event in filter.finish():
        log.append(event)
    log.append(Finished("stop", TokenUsage()))
    shown = [
        (item.call.name, json.loads(item.text)) if item.call else (None, item.text)
        for item in log.items
        if item.call or item.text
    ]
    assert shown == [(name, filtered(said) if name is None else said) for name, said in expected if said]
    assert [token for item in log.items if item.deltas for token in item.merged(0).token_ids] == list(range(token))
    assert not filter.broken


def test_a_rule_that_blocks_ends_the_answer_in_a_message_and_in_a_call() -> None:
    for begun in ([], [CallBegun("id", "f")]):
        filter = answer(BLOCKING, BLOCKING)
        kind = ArgumentsDelta if begun else TextDelta
        events: list[TurnEvent] = [*begun, kind('{"to": "bob@example.com"}'), CallEnded(True), TextDelta("more")]
        shown = [*filter.events(events), *filter.finish(), *filter.release()]
        assert filter.blocked
        assert shown == [*begun, kind('{"to": "')]


def test_arguments_that_are_no_object_any_more_are_told() -> None:
    filter = answer()
    events = [CallBegun("id", "f"), ArgumentsDelta('{"a": -4111111111111111}'), CallEnded(True)]
    assert list(filter.events(events))[-1] == CallEnded(False)
    assert filter.broken


def test_positions_count_what_is_decided() -> None:
    filter = answer()
    list(filter.events([TextDelta("write to bob")]))
    assert (filter.position, filter.held) == (9, 3)
    assert list(filter.release()) == [TextDelta("bob")]
    assert (filter.position, filter.held) == (12, 0)
