"""Engines that are killed in the middle of an answer: another one goes on, and nobody can tell from the answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.server import ServerConnection

from bench.servers import engine_process
from engine.wire import Generate, Grammar, Output, Step, Usage, encode
from gateway.config.settings import CacheSettings
from gateway.pipeline.relay import MAX_LOSSES
from gateway.protocol.output_format import OutputFormat
from gateway.protocol.requests import Sampling, TurnRequest
from gateway.protocol.stream import Finished, TextDelta, TokenUsage
from tests.gateway.conftest import Serve, Served, eventually
from tests.gateway.frame_engine import LOAD, FrameEngine
from tests.gateway.pipeline.turns import DEMO, request, routes, run, text

pytestmark = pytest.mark.anyio

NO_CACHE = CacheSettings(enabled=False)
SCHEMA = {"type": "array", "items": {"type": "integer"}, "minItems": 60, "maxItems": 60}
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": Sampling(temperature=0, ignore_eos=True)},
    "sampled": {"sampling": Sampling(temperature=1.2, seed=5, ignore_eos=True, logprobs=2)},
    "penalties": {
        "sampling": Sampling(
            temperature=0.8, seed=6, ignore_eos=True, presence_penalty=0.5, repetition_penalty=1.3, min_tokens=40
        )
    },
    "grammar": {
        "sampling": Sampling(temperature=0.9, seed=7),
        "format": OutputFormat(Grammar("json_schema", json.dumps(SCHEMA)), "text.format", {}),
    },
}
LENGTH = 240


class Processes:
    """Engine processes by address, which a test kills and starts again."""

    def __init__(self, model: Path, stack: contextlib.AsyncExitStack) -> None:
        self._model = model
        self._stack = stack
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self.killed: list[str] = []

    async def start(self, address: str) -> None:
        process = engine_process(address, self._model, kv_tokens=8192)
        self._running[address] = await self._stack.enter_async_context(process)

    async def kill(self, address: str) -> None:
        self._running[address].send_signal(signal.SIGKILL)
        await self._running[address].wait()
        self.killed.append(address)


@pytest.fixture
async def processes(model: Path) -> AsyncIterator[Processes]:
    async with contextlib.AsyncExitStack() as stack:
        yield Processes(model, stack)


async def interrupted(served: Served, asked: TurnRequest, after: int, interrupt: Callable[[str], Any]) -> list[Any]:
    """Return a turn's events; `interrupt` is called with the engine's address when it has said `after` deltas."""
    events: list[Any] = []
    with await served.gateway.turns.start(asked, DEMO) as viewer:
        async for entry in viewer.entries():
            events += [] if entry.event is None else [entry.event]
            if isinstance(entry.event, TextDelta) and sum(isinstance(each, TextDelta) for each in events) == after:
                await interrupt(served.gateway.engines[routes(events)[0].replica].client.address)
    return events


def scores(events: list[Any]) -> list[float]:
    entries = [entry for event in events if isinstance(event, TextDelta) for entry in event.logprobs]
    return [each.logprob for entry in entries for each in (entry, *entry.top)]


async def test_an_answer_goes_on_when_its_engine_is_killed(serve: Serve, processes: Processes, tmp_path: Path) -> None:
    """The same text, log-probabilities and usage as without; the other engine takes it up."""
    addresses = [f"unix://{tmp_path}/engine-{number}" for number in range(2)]
    await asyncio.gather(*(processes.start(address) for address in addresses))
    async with serve(engines={"small": addresses}, cache=NO_CACHE) as served:
        pool = served.gateway.engines.pools[0]
        for number, (name, fields) in enumerate(REQUESTS.items()):
            await eventually(lambda: all(engine.client.connected for engine in pool.engines))
            asked = request(f"{name}: count", max_output_tokens=LENGTH, **fields)
            whole = await run(served, asked)
            cut = await interrupted(served, asked, 2 + 3 * number, processes.kill)
            first, second = whole[-1], cut[-1]
            assert isinstance(first, Finished) and isinstance(second, Finished)
            assert (second.reason, second.error) == (first.reason, None), name
            assert text(cut) == text(whole)
            assert scores(cut) == pytest.approx(scores(whole), abs=1e-4)
            assert (second.usage.input_tokens, second.usage.output_tokens) == (
                first.usage.input_tokens,
                first.usage.output_tokens,
            )
            if number + 1 < len(REQUESTS):
                await processes.start(processes.killed[-1])
        await served.settle()


async def test_an_answer_waits_for_its_only_engine_to_be_started_again(
    serve: Serve, processes: Processes, tmp_path: Path
) -> None:
    """As a supervisor does it. A turn that is cancelled meanwhile waits no longer."""
    address = f"unix://{tmp_path}/engine"
    await processes.start(address)

    async def restart(address: str) -> None:
        await processes.kill(address)
        starting.append(asyncio.create_task(processes.start(address)))

    async with serve(engines={"small": [address]}, cache=NO_CACHE, turns={"move_timeout": 60.0}) as served:
        asked = request(sampling=Sampling(temperature=0, ignore_eos=True), max_output_tokens=LENGTH)
        whole = await run(served, asked)
        starting: list[asyncio.Task[None]] = []
        cut = await interrupted(served, asked, 5, restart)
        assert text(cut) == text(whole)
        assert (cut[-1].reason, cut[-1].usage.output_tokens) == ("length", LENGTH)
        await asyncio.gather(*starting)
        (engine,) = served.gateway.engines.pools[0].engines
        await eventually(lambda: engine.client.connected)  # unless the whole answer had come before the kill

        with await served.gateway.turns.start(asked, DEMO) as viewer:
            async for entry in viewer.entries():
                if isinstance(entry.event, TextDelta) and not viewer.turn.cancelled:
                    await processes.kill(address)
                    viewer.turn.cancel()
        assert isinstance(entry.event, Finished) and entry.event.reason == "cancelled"
        await served.settle()


class Mortal(FrameEngine):
    """Says one token of each answer, then closes the connection."""

    on_answered: Callable[[], object] = staticmethod(lambda: None)

    async def _answer(self, connection: ServerConnection, request: Generate) -> None:
        usage = Usage(len(request.prompt) - request.resumed, 0, request.resumed + 1, 0.0)
        await connection.send(encode(Step([Output(request.id, [65], usage=usage)], self.load)))
        self.on_answered()
        await connection.close()


async def test_a_request_that_ends_every_engine_ends_too(serve: Serve, tmp_path: Path) -> None:
    async with (
        Mortal(tmp_path / "one", {}).serving() as one,
        Mortal(tmp_path / "two", {}).serving() as two,
        serve(engines={"small": [one.address, two.address]}, cache=NO_CACHE) as served,
    ):
        events = await run(served, request(max_output_tokens=LENGTH))
    finished = events[-1]
    assert finished.error is not None and finished.error.code == "engine_failed"
    assert finished.usage.output_tokens == 1 + MAX_LOSSES
    asked = [*one.generated, *two.generated]
    assert sorted(each.resumed for each in asked) == [*range(1 + MAX_LOSSES)]
    assert all(each.prompt[len(each.prompt) - each.resumed :] == [65] * each.resumed for each in asked)


class Leaving(Mortal):
    """Hands each answer on after a token, as an engine does that is replaced, until it has six."""

    def __init__(self, path: Path, tokens: dict[str | None, int]) -> None:
        super().__init__(path, tokens)
        self.heard = asyncio.Semaphore(0)
        """Has one for each token that the turn's viewer has."""

    async def _answer(self, connection: ServerConnection, request: Generate) -> None:
        if request.resumed == 6:
            return await FrameEngine._answer(self, connection, request)
        usage = Usage(len(request.prompt) - request.resumed, 0, request.resumed + 1, 0.0)
        await connection.send(encode(Step([Output(request.id, [65], usage=usage)], self.load)))
        await self.heard.acquire()  # else the token could go with the answer
        await connection.send(encode(Step([Output(request.id, finish="moved")], self.load)))


async def test_engines_that_go_away_as_they_should_may_be_any_number(serve: Serve, tmp_path: Path) -> None:
    """A rolling update replaces all of them, however long an answer takes."""
    async with (
        (leaving := Leaving(tmp_path / "one", {None: 65})).serving() as one,
        serve(engines={"small": [one.address]}, cache=NO_CACHE) as served,
    ):
        events = []
        with await served.gateway.turns.start(request(max_output_tokens=8), DEMO) as viewer:
            async for entry in viewer.entries():
                events.append(entry.event)
                if isinstance(entry.event, TextDelta):
                    leaving.heard.release()
    assert (events[-1].reason, events[-1].error) == ("length", None)
    assert [each.resumed for each in one.generated] == [*range(7)]


class Unbegun(FrameEngine):
    """Gives up requests before their first token, until it has had four of them."""

    lost = False
    """Whether the connection ends with them; else they are handed on."""

    async def _answer(self, connection: ServerConnection, request: Generate) -> None:
        if len(self.generated) > 4:
            return await super()._answer(connection, request)
        if self.lost:
            return await connection.close()
        await connection.send(encode(Step([Output(request.id, finish="moved")], self.load)))


async def test_a_request_that_waits_in_engines_while_all_are_replaced_is_answered(serve: Serve, tmp_path: Path) -> None:
    """Also by one that was not there when the request was routed."""
    async with (
        Unbegun(tmp_path / "one", {None: 65}).serving() as one,
        serve(engines={"small": [one.address]}, cache=NO_CACHE) as served,
    ):
        events = await run(served, request(max_output_tokens=8))
        await served.settle()
    assert (events[-1].reason, events[-1].error, events[-1].usage.output_tokens) == ("length", None, 8)
    assert [each.resumed for each in one.generated] == [0] * 5


async def test_a_request_that_ends_every_engine_before_it_is_begun_ends_too(serve: Serve, tmp_path: Path) -> None:
    engines = [Unbegun(tmp_path / str(number), {}) for number in range(1 + MAX_LOSSES + 1)]
    for each in engines:
        each.lost = True
    async with contextlib.AsyncExitStack() as stack:
        addresses = [(await stack.enter_async_context(each.serving())).address for each in engines]
        served = await stack.enter_async_context(serve(engines={"small": addresses}, cache=NO_CACHE))
        events = await run(served, request(max_output_tokens=8))
        await served.settle()
    assert events[-1].error is not None and events[-1].error.code == "unavailable"
    assert sum(len(each.generated) for each in engines) == 1 + MAX_LOSSES


async def test_a_turn_that_is_cancelled_while_it_waits_for_an_engine_waits_no_longer(
    serve: Serve, tmp_path: Path
) -> None:
    async with (
        Unbegun(tmp_path / "one", {}).serving() as one,
        serve(engines={"small": [one.address]}, cache=NO_CACHE, turns={"move_timeout": 600.0}) as served,
    ):
        one.load = msgspec.structs.replace(LOAD, draining=True)
        async with asyncio.timeout(30):
            with await served.gateway.turns.start(request(max_output_tokens=8), DEMO) as viewer:
                (engine,) = served.gateway.engines.pools[0].engines
                await eventually(lambda: engine.client.leaving)  # told with the request that it hands on
                viewer.turn.cancel()
                *_, last = [entry.event async for entry in viewer.entries()]
        assert isinstance(last, Finished) and last.reason == "cancelled"
        await served.settle()


class Full(Mortal):
    """Is lost, and has no room for the rest at first; then it says it."""

    refusals = 3

    async def _answer(self, connection: ServerConnection, request: Generate) -> None:
        if not request.resumed:
            await super()._answer(connection, request)
        elif self.refusals:
            self.refusals -= 1
            full = Output(request.id, finish="error", error="full", error_kind="overloaded", retry_after=0.01)
            await connection.send(encode(Step([full], self.load)))
        else:
            await FrameEngine._answer(self, connection, request)


async def test_an_engine_that_has_no_room_is_asked_again(serve: Serve, tmp_path: Path) -> None:
    """That it refused is no move: else an answer would be lost just when everybody is busy."""
    async with (
        Full(tmp_path / "one", {None: 66}).serving() as one,
        serve(engines={"small": [one.address]}, cache=NO_CACHE) as served,
    ):
        events = await run(served, request(max_output_tokens=5))
    assert (events[-1].reason, events[-1].error) == ("length", None)
    assert [each.resumed for each in one.generated] == [0, 1, 1, 1, 1]


async def test_another_model_takes_nothing_up(serve: Serve, tmp_path: Path) -> None:
    """Not even at the address of the engine that was lost."""
    one, two = Mortal(tmp_path / "one", {}), FrameEngine(tmp_path / "two", {None: 66})
    two.revision = "another"
    one.on_answered = lambda: setattr(one, "revision", "another")
    async with one.serving(), two.serving():
        asked = serve(engines={"small": [one.address, two.address]}, cache=NO_CACHE, turns={"move_timeout": 0.5})
        async with asked as served:
            events = [Finished("error", TokenUsage())]
            while not one.generated:  # the other one is as good for a whole answer
                events = await run(served, request(max_output_tokens=LENGTH))
    assert events[-1].error is not None and events[-1].error.code == "engine_failed"
    assert all(not each.resumed for each in [*one.generated, *two.generated])
