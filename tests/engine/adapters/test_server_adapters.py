"""Adapters across the process boundary: refusals, hints of several clients, and who is told what is where."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator

import pytest

from engine import core as core_module
from engine.client.engine_client import EngineClient
from engine.core import EngineCore, EngineFeatures, SchedulerConfig
from engine.server import host as server_module
from engine.server.host import EngineServer
from engine.wire import Announce, Generate, Pin, Ready, SamplingParams, Step
from tests.engine.adapters.test_core_adapters import V, VersionBank, W, X
from tests.engine.ledger_runner import expected_output, model_info
from tests.engine.peers import Peer, ask, peer_of, tokens, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def bank() -> VersionBank:
    return VersionBank(64)


@pytest.fixture
def core(bank: VersionBank) -> EngineCore:
    return EngineCore(bank, model_info(), SchedulerConfig(64, step_tokens=64, max_running=8), EngineFeatures(bank=bank))


@pytest.fixture
async def address(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    monkeypatch.setattr(server_module, "HEARTBEAT_SECONDS", 0.02)
    async with EngineServer(core).listening("ws://127.0.0.1:0") as address:
        yield address
    core.close()


def adapted(id: str, adapter: str, prompt: list[int] | None = None) -> Generate:
    return Generate(id, prompt or [1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True), adapter=adapter)


async def residents(peer: Peer) -> set[str]:
    """What the next heartbeat says."""
    while True:
        frame = await peer.receive()
        if isinstance(frame, Step) and frame.load.adapters is not None:
            return set(frame.load.adapters)


async def until_resident(peer: Peer, versions: set[str]) -> None:
    while await residents(peer) != versions:
        pass


async def test_requests_with_adapters_are_served(address: str) -> None:
    async with peer_of(address) as peer:
        await peer.send(adapted("a", V))
        await peer.send(adapted("b", W))
        assert tokens(await peer.outputs("a")) == expected_output([1, 2, 3], 4, V)
    async with peer_of(address) as peer:
        await peer.send(adapted("c", W))
        assert tokens(await peer.outputs("c")) == expected_output([1, 2, 3], 4, W)


async def test_a_core_that_waits_for_a_load_does_not_spin(
    address: str, bank: VersionBank, core: EngineCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_module, "_STALLED_SECONDS", 3600.0)
    bank.gate = threading.Semaphore(0)
    steps = []
    step = core.step
    monkeypatch.setattr(core, "step", lambda: [steps.append(1), step()][1])
    async with peer_of(address) as peer:
        await peer.send(adapted("a", V))
        await until(lambda: core.stalled)
        bank.gate.release()
        assert tokens(await peer.outputs("a")) == expected_output([1, 2, 3], 4, V)
    # One begins the load, one the copy, four have rows; a wake-up may come late, twice.
    assert len(steps) <= 2 + 4 + 2


async def test_a_bad_adapter_gets_an_error_and_the_connection_lives_on(address: str) -> None:
    async with peer_of(address) as peer:
        for adapter, message in (("bad" + "0" * 61, "is not registered"), ("pirate", "not a version")):
            await peer.send(adapted("a", adapter))
            (output,) = await peer.outputs("a")
            assert (output.finish, output.error_kind) == ("error", "invalid")
            assert (output.error or "").startswith(f"adapter: {message}")
        await peer.send(ask("b"))
        assert tokens(await peer.outputs("b")) == expected_output([1, 2, 3], 4)


async def test_hints_that_are_no_versions_are_ignored(address: str, bank: VersionBank) -> None:
    async with peer_of(address) as peer:
        await peer.send(Announce("../../etc/passwd"))
        await peer.send(Pin(["pirate", V]))
        await until_resident(peer, {V})
    assert {line.split()[1] for line in bank.log} == {V}


async def test_the_pins_of_all_connections_count_until_they_close(address: str, core: EngineCore) -> None:
    residency = core._scheduler.adapters.residency
    async with peer_of(address) as one:
        async with peer_of(address) as two:
            await one.send(Pin([V]))
            await two.send(Pin([W, V]))
            await until_resident(one, {V, W})
            assert residency.anchored(V)
            assert residency.anchored(W)
        await until(lambda: not residency.anchored(W))
        assert residency.anchored(V)
        await one.send(Pin([X]))
        await until(lambda: residency.anchored(X))
        assert not residency.anchored(V)
    await until(lambda: not residency.anchored(X))


async def test_an_introduction_names_the_adapters_that_are_there(address: str) -> None:
    async with peer_of(address) as peer:
        await peer.send(adapted("a", V))
        await peer.outputs("a")
    async with EngineClient(address) as client:
        await client.wait_connected()
        assert client.load is not None
        assert client.load.adapters == (V,)


async def test_a_client_remembers_the_adapters_between_heartbeats(address: str) -> None:
    async with EngineClient(address) as client:
        await client.wait_connected()
        for version in (V, W):
            async with client.generate([1], SamplingParams(max_tokens=50, ignore_eos=True), adapter=version) as answer:
                async for _ in answer:
                    assert client.load is not None
                    assert client.load.adapters is not None
        await until(lambda: client.load is not None and client.load.adapters == (V, W))


async def test_outputs_do_not_repeat_what_is_where(address: str) -> None:
    async with peer_of(address) as peer:
        await peer.send(adapted("a", V))
        frames: list[Step] = []
        while not any(output.finish for frame in frames for output in frame.outputs):
            frame = await peer.receive()
            assert not isinstance(frame, Ready)
            frames.append(frame)
        assert all(frame.load.adapters is None for frame in frames if frame.outputs)
