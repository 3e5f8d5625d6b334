"""Until when the beginning of a first answer is shown to nobody."""

from __future__ import annotations

import pytest

from gateway.pipeline.routing.held import HeldAnswer
from gateway.protocol.stream import Routed, TextDelta
from gateway.turns import Turn
from tests.gateway.pipeline.sources.conftest import DEMO, request

pytestmark = pytest.mark.anyio


async def test_who_joins_later_waits_no_longer() -> None:
    """One waits for the end, and another one comes who reads along: with the next token all of it is shown."""
    turn = Turn("resp_1", DEMO, request("hello"), (), 1.0)
    turn.append(Routed(tier="small", model="m", replica="small-0", reason="complexity", complexity=0.1))
    held = HeldAnswer(turn, tokens=2, seconds=600)
    with turn.watch(live=False):
        for word in ("It ", "keeps ", "what "):
            held.take([TextDelta(word, (1,))])
            held.computed(1, None)
        assert (turn.log.text, held.text) == ("", "It keeps what ")
        with turn.watch():
            held.take([TextDelta("was", (1,))])
            held.computed(1, None)
        assert (turn.log.text, held.released) == ("It keeps what was", True)
        held.take([TextDelta(".", (1,))])
        assert turn.log.text == "It keeps what was."


async def test_those_who_follow_wait_for_some_time_only() -> None:
    """Who asked waits for the whole answer, however long it takes, while nobody else wants it."""
    turn = Turn("resp_1", DEMO, request("hello"), (), 1.0)
    turn.append(Routed(tier="small", model="m", replica="small-0", reason="complexity", complexity=0.1))
    held = HeldAnswer(turn, tokens=256, seconds=0.0)
    with turn.watch(live=False):
        held.take([TextDelta("It ", (1,))])
        held.computed(1, None)
        assert (turn.log.text, held.text) == ("", "It ")
        with turn.watch(live=False):
            held.take([TextDelta("keeps", (1,))])
            held.computed(1, None)
    assert turn.log.text == "It keeps"
