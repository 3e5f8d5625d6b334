"""A pool of several replicas behind a gateway: conversations stay where their prefix is, and move when they must."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bench.servers import engine_process
from engine.cache.prefix_keys import pack_numbers, unpack_numbers
from gateway.config.settings import CacheSettings, PoolSettings, RouterSettings
from gateway.engines.pools import Engines
from gateway.errors import Unavailable
from gateway.protocol.requests import Message
from gateway.protocol.stream import Finished, Routed
from gateway.records.directory import ReplicaControl
from tests.gateway.conftest import EngineThread, Serve, Served, eventually
from tests.gateway.frame_engine import LOAD, FrameEngine
from tests.gateway.pipeline.turns import DEMO, OTHER, request, routes, run, text

pytestmark = pytest.mark.anyio

SYSTEM = "You are a careful engineer who answers in one short sentence and never guesses. " * 4
NO_CACHE = CacheSettings(enabled=False)


class Conversation:
    """Turns that each repeat everything said before."""

    def __init__(self, served: Served, name: str) -> None:
        self.served = served
        self.messages = [Message("system", f"{name}: {SYSTEM}")]

    async def ask(self, question: str, **fields: Any) -> tuple[list[Routed], Finished]:
        self.messages.append(Message("user", question))
        events = await run(self.served, request(messages=tuple(self.messages), **fields))
        self.messages.append(Message("assistant", text(events)))
        return routes(events), events[-1]


@pytest.fixture
async def processes(model: Path, tmp_path: Path) -> AsyncIterator[dict[str, int]]:
    """Two engine processes: process id by address."""
    addresses = [f"unix://{tmp_path}/engine-{number}" for number in range(2)]
    async with contextlib.AsyncExitStack() as stack:
        starting = [stack.enter_async_context(engine_process(address, model, kv_tokens=8192)) for address in addresses]
        yield {address: (await one).pid for address, one in zip(addresses, starting, strict=True)}


def pid_of(served: Served, processes: dict[str, int], replica: str) -> int:
    return processes[served.gateway.engines[replica].client.address]


async def both_up(served: Served) -> None:
    pool = served.gateway.engines.pools[0]
    await eventually(lambda: all(engine.client.connected for engine in pool.engines))


async def test_a_conversation_stays_with_its_prefix_and_moves_when_its_engine_dies(
    serve: Serve, processes: dict[str, int]
) -> None:
    """Four conversations at once share both engines; the death of one loses no turn that had no token yet."""
    async with serve(engines={"small": list(processes)}, cache=NO_CACHE) as served:
        await both_up(served)
        talks = [Conversation(served, f"talk {number}") for number in range(4)]
        homes = []
        for talk in talks:
            announced, _ = await talk.ask("What is a prefix cache?")
            homes.append(announced[0].replica)
        for question in ("Why?", "How?"):
            for talk, home in zip(talks, homes, strict=True):
                announced, finished = await talk.ask(question)
                assert [route.replica for route in announced] == [home]
                assert finished.usage.cached_tokens > 0.5 * finished.usage.input_tokens
                assert announced[0].scores[home].match > 0.5
                assert any("behind it" in reason for reason in announced[0].reasons)

        names = {engine.name for engine in served.gateway.engines.pools[0].engines}
        dying, [other] = homes[0], names - {homes[0]}
        moving = [talk for talk, home in zip(talks, homes, strict=True) if home == dying]
        pid = pid_of(served, processes, dying)
        os.kill(pid, signal.SIGSTOP)  # it takes the turns and gives no token
        turns = [asyncio.create_task(talk.ask("And then?")) for talk in moving]
        await eventually(lambda: served.gateway.engines[dying].turns == len(moving))
        os.kill(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGCONT)
        for announced, finished in await asyncio.gather(*turns):
            assert [route.replica for route in announced] == [dying, other]
            assert finished.error is None and finished.usage.output_tokens == 4
        assert served.gateway.engines.pools[0].placer.index.blocks(dying) == 0
        announced, finished = await moving[0].ask("Still there?")
        assert [route.replica for route in announced] == [other]
        assert finished.usage.cached_tokens > 0.5 * finished.usage.input_tokens
        await served.settle()


async def test_the_gateway_knows_what_its_engines_hold(serve: Serve, model: Path, engine: EngineThread) -> None:
    """Block by block; an engine that starts again holds nothing."""
    with EngineThread(model) as second:
        async with serve(engines={"small": [engine.address, second.address]}, cache=NO_CACHE) as served:
            await both_up(served)
            # Chance decides where a conversation goes that nobody knows.
            for number in range(64):
                await Conversation(served, f"talk {number}").ask("Hello?")
                if number >= 3 and engine.core.held_blocks() and second.core.held_blocks():
                    break
            await served.settle()
            index = served.gateway.engines.pools[0].placer.index
            index.check_integrity()
            for name, one in (("small-0", engine), ("small-1", second)):
                held = unpack_numbers(pack_numbers(one.core.held_blocks()))
                assert index.blocks(name) == len(held) > 0
                assert all(index.match([block])[name] == 1 for block in held)
            await asyncio.to_thread(second.stop)
            await eventually(lambda: index.blocks("small-1") == 0)
            assert index.blocks("small-0") > 0


async def test_tenants_share_no_prefix(serve: Serve, model: Path, engine: EngineThread) -> None:
    """The same words of another tenant are unknown everywhere."""
    with EngineThread(model) as second:
        async with serve(engines={"small": [engine.address, second.address]}, cache=NO_CACHE) as served:
            await both_up(served)
            asked = request(messages=(Message("system", f"shared: {SYSTEM}"), Message("user", "Hello?")))
            first = routes(await run(served, asked))[0]
            again = routes(await run(served, asked))[0]
            others = routes(await run(served, asked, OTHER))[0]
            assert again.replica == first.replica and again.scores[first.replica].match > 0.5
            assert all(score.match == 0 for score in others.scores.values())


async def test_a_single_replica_costs_nothing_more(serve: Serve) -> None:
    """Its engine is not followed and no prompt is hashed."""
    async with serve(cache=NO_CACHE) as served:
        announced, _ = await Conversation(served, "alone").ask("Hello?")
        pool = served.gateway.engines.pools[0]
        assert announced[0].scores == {}
        assert len(pool.placer.index) == 0 and not pool.placer._answered
        assert served.gateway.engines["small-0"].client._on_blocks is None


async def test_a_drained_replica_is_left_although_it_knows_the_prompt(
    serve: Serve, model: Path, engine: EngineThread
) -> None:
    with EngineThread(model) as second:
        async with serve(engines={"small": [engine.address, second.address]}, cache=NO_CACHE) as served:
            await both_up(served)
            talk = Conversation(served, "drained")
            home = (await talk.ask("Hello?"))[0][0].replica
            await served.gateway.directory.write(ReplicaControl(name=home, drained=True), actor="test", expected=0)
            await served.gateway.view.refresh()
            announced, finished = await talk.ask("Still there?")
            assert announced[0].replica != home and finished.error is None


async def test_an_engine_that_tells_nothing_is_believed_to_hold_what_it_computed(tmp_path: Path, model: Path) -> None:
    """Until it is gone, and of that as much as it has room for; a turn that had no token leaves nothing."""
    async with (
        FrameEngine(tmp_path / "a", {None: 5}).serving() as one,
        FrameEngine(tmp_path / "b", {}).serving() as two,
    ):
        behind = Engines(
            [PoolSettings(tier="small", name="t", model=str(model), engines=[one.address, two.address])],
            RouterSettings(),
        )
        await behind.start()
        await eventually(lambda: all(behind[name].client.connected for name in ("small-0", "small-1")))
        index = behind.pools[0].placer.index
        for computed in (False, True):
            with behind["small-0"].carrying(40, 5, [1, 2, 3]) as flight:
                assert index.match([1, 2, 3]) == {"small-0": 3}
                if computed:
                    flight.prefilled()
            assert index.match([1, 2, 3]) == ({"small-0": 3} if computed else {})
        with behind["small-0"].carrying(1600, 5, range(100, 200)) as flight:
            flight.prefilled()
        assert index.match(range(100, 200)) == {"small-0": LOAD.total_blocks}
        with behind["small-0"].carrying(40, 5, [1, 2, 3]) as flight:
            flight.prefilled()
        await behind.aclose()
        assert index.match([1, 2, 3]) == {}


async def test_a_full_pool_sheds_and_says_when_to_come_back(serve: Serve, model: Path, engine: EngineThread) -> None:
    """A name that only the full pool may serve is refused; `auto` goes one tier up."""
    tiers = {"small": [engine.address], "medium": [engine.address]}
    endless = request("count", model="tiny-small", max_output_tokens=2000)
    async with serve(engines=tiers, pool={"max_turns": 1}, cache=NO_CACHE) as served:
        with await served.gateway.turns.start(endless, DEMO) as viewer:
            entries = viewer.entries()
            while not isinstance((await anext(entries)).event, Routed):
                pass
            seconds = []
            for _ in range(3):
                with pytest.raises(Unavailable, match="too many requests") as refused:
                    await run(served, request(model="tiny-small"))
                assert refused.value.code == "overloaded"
                seconds.append(int(refused.value.headers["retry-after"]))
            assert seconds == sorted(seconds) and seconds[0] >= 1
            assert [route.tier for route in routes(await run(served, request(model="auto")))] == ["medium"]
            viewer.turn.cancel()
        await eventually(lambda: served.gateway.engines.pools[0].turns == 0)
        assert routes(await run(served, request(model="tiny-small")))[0].tier == "small"
        await served.settle()


async def test_a_second_replica_is_followed_and_a_lone_one_not(model: Path, engine: EngineThread) -> None:
    """As a new configuration names them."""
    with EngineThread(model) as second:

        def pools(*addresses: str) -> list[PoolSettings]:
            return [PoolSettings(tier="small", name="tiny", model=str(model), engines=list(addresses))]

        behind = Engines(pools(engine.address), RouterSettings())
        await behind.start()
        await eventually(lambda: behind["small-0"].client.connected)
        behind.configure(pools(engine.address, second.address), RouterSettings(replica_beta=0.5))
        await eventually(lambda: behind["small-1"].client.connected)
        assert behind.pools[0].placer.policy.beta == 0.5
        await eventually(lambda: behind.pools[0].placer.index.blocks("small-0") == len(engine.core.held_blocks()))
        behind.configure(pools(engine.address), RouterSettings())
        await eventually(lambda: [name for name, _, _ in behind.left] == ["small-1"])
        await behind.aclose()
