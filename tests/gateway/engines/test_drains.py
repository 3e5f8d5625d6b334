"""An operator drains a replica, and its turns go on in others when their time is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.wire import Output
from gateway.config.settings import CacheSettings
from gateway.protocol.requests import Sampling
from gateway.protocol.stream import Finished, TextDelta
from gateway.records.directory import ReplicaControl
from tests.gateway.conftest import EngineThread, Serve, Served, eventually
from tests.gateway.pipeline.turns import DEMO, request, run, text

pytestmark = pytest.mark.anyio

LONG = request("count", max_output_tokens=200, sampling=Sampling(temperature=1.1, seed=3, ignore_eos=True))


def slowed(step: Callable[[], list[Output]]) -> Callable[[], list[Output]]:
    def slow() -> list[Output]:
        time.sleep(0.005)
        return step()

    return slow


async def drained(served: Served, *, move_after: float | None) -> tuple[str, list[Any]]:
    """Return the replica that began a turn and the turn's events, of which the first text has it drained."""
    gateway, events, first = served.gateway, [], ""
    with await gateway.turns.start(LONG, DEMO) as viewer:
        async for entry in viewer.entries():
            events += [] if entry.event is None else [entry.event]
            if isinstance(entry.event, TextDelta) and not first:
                [first] = [each.name for each in gateway.engines.pools[0].engines if each.client.live]
                control = ReplicaControl(name=first, drained=True, move_after=move_after)
                await gateway.directory.write(control, actor="test")
    return first, events


@pytest.mark.parametrize("move_after", [0.0, None])
async def test_turns_of_a_drained_replica_go_on_elsewhere_where_asked_for(
    serve: Serve, engine: EngineThread, model: Path, monkeypatch: pytest.MonkeyPatch, move_after: float | None
) -> None:
    """With the same text; the engine goes on to serve."""
    with EngineThread(model) as second:
        for each in (engine, second):
            monkeypatch.setattr(each.core, "step", slowed(each.core.step))
        both = [engine.address, second.address]
        async with serve(engines={"small": both}, cache=CacheSettings(enabled=False)) as served:
            engines = served.gateway.engines.pools[0].engines
            await eventually(lambda: all(each.client.connected for each in engines))
            whole = text(await run(served, LONG))
            name, events = await drained(served, move_after=move_after)
            assert isinstance(events[-1], Finished) and (events[-1].reason, events[-1].error) == ("length", None)
            assert text(events) == whole
            moves = served.gateway.metrics.registry.get_sample_value("roundhouse_answer_moves_total", {"tier": "small"})
            assert (moves or 0) == (0 if move_after is None else 1)
            assert served.gateway.engines[name].client.connected and not served.gateway.engines[name].client.leaving
            await served.settle()


async def test_turns_of_the_only_replica_stay(
    serve: Serve, engine: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nobody to go on with them."""
    monkeypatch.setattr(engine.core, "step", slowed(engine.core.step))
    async with serve(cache=CacheSettings(enabled=False)) as served:
        _, events = await drained(served, move_after=0.0)
        assert isinstance(events[-1], Finished) and (events[-1].reason, events[-1].error) == ("length", None)
        await served.settle()
