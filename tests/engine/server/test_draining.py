"""An engine that goes away loses nothing: what it cannot finish goes on in another one."""

from __future__ import annotations

import asyncio
import threading

import pytest

from engine.server.host import EngineServer
from engine.wire import PROTOCOL_VERSION, Drain, Hello, Step
from tests.engine.ledger_runner import expected_output
from tests.engine.peers import TIMEOUT, GatedRunner, ask, peer_of, tokens, until

pytestmark = pytest.mark.anyio


async def test_running_requests_end_and_new_ones_are_refused(
    address: str, server: EngineServer, runner: GatedRunner
) -> None:
    runner.gate = threading.Semaphore(0)
    async with peer_of(address) as peer:
        await peer.send(ask("old", [5, 6], max_tokens=6))
        await asyncio.to_thread(runner.entered.wait)
        server.drain(TIMEOUT)
        await peer.send(ask("new"))
        [refused] = await peer.until_outputs()
        assert (refused.id, refused.error_kind) == ("new", "overloaded"), "it has said no version"
        assert refused.error is not None and "going away" in refused.error
        async with peer_of(address) as late:
            step = await late.receive()
            assert isinstance(step, Step) and step.load.draining
            await late.send(Hello(PROTOCOL_VERSION))
            await late.send(ask("late"))
            step = await late.until_step()
            [refused] = step.outputs
            assert (refused.id, refused.finish, refused.tokens) == ("late", "moved", [])
            assert step.load.draining
        runner.gate.release(100)
        assert tokens(await peer.outputs("old")) == expected_output([5, 6], 6)
        await server.wait_drained()


async def test_what_runs_longer_is_handed_on(address: str, server: EngineServer, runner: GatedRunner) -> None:
    """To clients that know how; the rest is asked of an engine with what it had said."""
    runner.gate = threading.Semaphore(3)
    async with peer_of(address) as peer, peer_of(address) as old:
        await peer.send(Hello(PROTOCOL_VERSION))
        await peer.send(ask("a", [5, 6], max_tokens=40))
        said = [await peer.until_outputs() for _ in range(3)]
        await old.send(ask("b"))
        await old.send(ask("b2", [5000]))
        await old.outputs("b2")
        await peer.send(Drain(0.0))
        [moved] = await peer.until_outputs()
        assert (moved.id, moved.finish, moved.tokens) == ("a", "moved", [])
        runner.gate.release(100)
        await server.wait_drained()
        outputs = [output for step in said for output in step]
        assert tokens(outputs) == expected_output([5, 6], 40)[:3]
        assert (await old.until_outputs())[0].finish != "moved"


async def test_of_two_deadlines_the_earlier_one_counts(address: str, server: EngineServer, runner: GatedRunner) -> None:
    """Whoever asked first: a day for one cannot make a restart wait."""
    runner.gate = threading.Semaphore(0)
    async with peer_of(address) as peer:
        await peer.send(Hello(PROTOCOL_VERSION))
        await peer.send(ask("a"))
        await asyncio.to_thread(runner.entered.wait)
        await peer.send(Drain(86_400.0))
        await until(lambda: server._draining is not None)
        server.drain(0.0)
        [moved] = await peer.until_outputs()
        assert moved.finish == "moved"
        runner.gate.release(100)
        await server.wait_drained()
