"""One turn's times, and texts that must be equal."""

from __future__ import annotations

import pytest

from load.records import TurnEnd, differing
from tests.load.samples import measured


def test_times_count_from_the_intended_start() -> None:
    turn = measured(10.0, sent=10.5, first=11.0, last=12.0, ended=12.5, output_tokens=5)
    assert (turn.late, turn.ttft, turn.tpot, turn.e2e) == (0.5, 1.0, 0.25, 2.5)


def test_a_turn_without_text_has_no_times_of_it() -> None:
    turn = measured(end=TurnEnd.LOST, sent=None, first=None, last=None)
    assert (turn.late, turn.ttft, turn.tpot) == (None, None, None)


def test_pieces_stand_for_tokens_that_the_server_does_not_count() -> None:
    turn = measured(output_tokens=None, pieces=6)
    assert turn.tokens == 6
    assert turn.tpot == pytest.approx(0.02)


def test_texts_of_the_same_question_and_seed_are_compared() -> None:
    turns = [
        measured(number=0, digest="x"),
        measured(number=1, repeats=0, digest="x"),
        measured(number=2, repeats=0, digest="y"),
        measured(number=3, repeats=0, digest="y", end=TurnEnd.TIMED_OUT),
        measured(number=4, digest="z", end=TurnEnd.FAILED),
        measured(number=5, repeats=4, digest="x"),
    ]
    faults = {each.plan.number: each.fault for each in differing(turns) if each.fault}
    assert faults == {2: "the text differs from that of turn 0, which asked the same with the same seed"}
