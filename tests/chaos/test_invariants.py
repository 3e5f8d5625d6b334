"""That each invariant finds what it is for."""

from __future__ import annotations

import math

import pytest

from gateway.billing.entry import LedgerEntry
from tests.chaos.cases import Case, Whole
from tests.chaos.faults import Fault, Injected, Kind
from tests.chaos.invariants import billed, excuse, gaps, quantile, refused_without_reason, wrong
from tests.chaos.records import TurnRecord

WHOLE = Whole("one two three", "completed", 5, 3)
GATEWAY = "gw_" + "a" * 16
ID = "resp_" + "a" * 16 + "0" * 32


def turn(**fields: object) -> TurnRecord:
    """A turn that has ended as it should, but for these fields."""
    record = TurnRecord("client", "demo", Case("greedy", {}), began=10.0, ended=20.0, ids=[ID])
    record.text, record.ending, record.input_tokens, record.output_tokens = WHOLE.text, WHOLE.ending, 5, 3
    for name, value in fields.items():
        setattr(record, name, value)
    return record


def injected(kind: Kind, *, began: float = 15.0, seconds: float = 1.0, gateway: str = GATEWAY) -> Injected:
    return Injected(Fault(kind, 0, 0, seconds, 0.0, 0.0), began, began + seconds, gateway)


def entry(**fields: object) -> LedgerEntry:
    known = {"turn": ID, "at": 0, "tenant": "demo", "key": "demo", "model": "m", "outcome": "completed"}
    return LedgerEntry(**{**known, "input": 5, "output": 3, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "one two thre"},
        {"text": "one two two three"},
        {"text": "one three"},
        {"ending": "incomplete: max_output_tokens"},
        {"output_tokens": 4},
        {"problems": ["event 3 came after 3"]},
        {"failure": "engine_failed", "text": "one three"},
    ],
)
def test_a_turn_that_is_not_as_undisturbed_is_wrong(fields: dict[str, object]) -> None:
    assert wrong(turn(**fields), WHOLE)


def test_a_whole_turn_and_the_beginning_of_a_failed_one_are_right() -> None:
    assert wrong(turn(), WHOLE) == []
    assert wrong(turn(failure="engine_failed", ending="", text="one t"), WHOLE) == []


def test_an_answer_may_fail_after_three_engines_only() -> None:
    failed = turn(failure="engine_failed")
    lost = [injected(kind) for kind in (Kind.ENGINE_KILLED, Kind.CORE_HUNG, Kind.ENGINE_CUT)]
    assert excuse(failed, lost)
    assert excuse(failed, lost[:2]) is None
    assert excuse(failed, [*lost[:2], injected(Kind.ENGINE_SLOW), injected(Kind.REDIS_KILLED)]) is None
    assert excuse(failed, [*lost[:2], injected(Kind.ENGINE_KILLED, began=100.0)]) is None


def test_a_turn_may_fail_without_a_text_if_engines_fail_one_after_the_other() -> None:
    failed = turn(failure="unavailable")
    assert excuse(failed, [injected(Kind.ENGINE_CUT), injected(Kind.ENGINE_KILLED)])
    assert excuse(failed, [injected(Kind.ENGINE_KILLED), injected(Kind.REDIS_KILLED)]) is None


def test_a_turn_may_be_lost_with_its_own_gateway_only() -> None:
    failed = turn(failure="gateway_lost")
    assert excuse(failed, [injected(Kind.GATEWAY_KILLED)])
    assert excuse(failed, [injected(Kind.GATEWAY_KILLED, gateway="gw_" + "b" * 16)]) is None
    assert excuse(failed, [injected(Kind.GATEWAY_DRAINED)]) is None


@pytest.mark.parametrize("kind", [Kind.GATEWAY_KILLED, Kind.GATEWAY_STOPPED])
def test_a_turn_whose_gateway_is_gone_is_found(kind: Kind) -> None:
    unknown, gone = turn(failure="response_not_found"), injected(kind, seconds=4.0)
    assert excuse(unknown, [gone]) is None
    assert excuse(unknown, [gone, injected(Kind.REDIS_KILLED)]) is None
    assert excuse(unknown, [gone, injected(Kind.REDIS_FULL)])


def test_a_turn_may_be_lost_with_a_gateway_that_is_silent_for_long() -> None:
    failed = turn(failure="gateway_lost")
    assert excuse(failed, [injected(Kind.GATEWAY_STOPPED, seconds=4.0)])
    assert excuse(failed, [injected(Kind.GATEWAY_STOPPED, seconds=0.5)]) is None


def test_a_terminal_s_answer_may_break_off_with_a_gateway() -> None:
    failed = turn(failure="told: gone", ids=[])
    assert excuse(failed, [injected(Kind.GATEWAY_KILLED)]) == ("its gateway was killed", Kind.GATEWAY_KILLED)
    assert excuse(failed, [injected(Kind.ENGINE_KILLED)]) is None


def test_nothing_else_is_excused() -> None:
    everything = [injected(kind) for kind in Kind]
    assert excuse(turn(failure="never ended"), everything) is None
    assert excuse(turn(failure="internal_error"), everything) is None
    assert excuse(turn(failure="insufficient_quota"), everything) is None


def test_a_refusal_needs_a_limit_or_a_fault() -> None:
    refused = turn(refusals=[(12.0, "unavailable"), (12.0, "rate_limit_exceeded")])
    assert refused_without_reason(refused, []) == ["refused as unavailable while nothing was broken"]
    assert refused_without_reason(refused, [injected(Kind.REDIS_KILLED)]) == []


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [entry(), entry()],
        [entry(output=2)],
        [entry(input=6)],
        [entry(picodollars=4_000_001)],
    ],
)
def test_a_ledger_that_differs_from_what_clients_were_told(entries: list[LedgerEntry]) -> None:
    assert billed([turn(cost=4)], [entry(picodollars=3_500_000)]) == []
    assert billed([turn(cost=4)], entries)


def test_the_gap_of_a_turn_is_its_longest_pause_around_a_fault() -> None:
    moments = [10.0, 12.5, 14.9, 15.4, 15.5, 19.0]
    fault = injected(Kind.CLIENTS_CUT, seconds=0.5)
    assert gaps([turn(moments=moments)], fault) == [3.5]
    assert gaps([turn(moments=[16.0, 17.0])], fault) == []
    killed = injected(Kind.ENGINE_KILLED)
    killed.replica = "small-0"
    assert gaps([turn(moments=moments, replica="small-1")], killed) == []
    assert gaps([turn(moments=moments, replica="small-0")], killed) == [3.5]


def test_a_quantile_is_one_of_the_values() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [quantile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
    assert math.isnan(quantile([], 0.5))
