"""Who follows is told which prefix blocks an engine holds, over real sockets; the truth is the engine's own books."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.blocks import BlockPool
from engine.cache.host_tier import HostTier
from engine.cache.prefix_keys import block_hash, pack_numbers, unpack_numbers
from engine.client.engine_client import EngineClient
from engine.server.host import EngineServer
from engine.wire import Blocks, Follow, Step
from tests.engine.ledger_runner import LedgerRunner
from tests.engine.peers import TIMEOUT, Peer, ask, make_core, peer_of, until
from tests.engine.scripted_engine import ScriptedEngine, collect, params

pytestmark = pytest.mark.anyio


class Mirror:
    """What a follower believes."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()
        self.frames: list[Blocks] = []

    def __call__(self, frame: Blocks) -> None:
        self.frames.append(frame)
        if frame.cleared:
            self.blocks.clear()
        stored, removed = set(unpack_numbers(frame.stored)), set(unpack_numbers(frame.removed))
        assert not stored & removed
        self.blocks |= stored
        self.blocks -= removed


def held(server: EngineServer) -> set[int]:
    return set(unpack_numbers(pack_numbers(server._core.held_blocks())))


@pytest.fixture
def server() -> EngineServer:
    return EngineServer(make_core(LedgerRunner(64)))


@pytest.fixture
async def address(server: EngineServer) -> AsyncIterator[str]:
    async with server.listening("ws://127.0.0.1:0") as address:
        yield address


async def blocks_of(peer: Peer) -> Blocks:
    while not isinstance(frame := await peer.receive(), Blocks):
        pass
    return frame


async def test_a_follower_is_told_everything_first_and_then_every_change(server: EngineServer, address: str) -> None:
    """Also of blocks that had to go; before the outputs of the step in which it happened."""
    mirror = Mirror()
    async with peer_of(address) as peer:
        await peer.send(ask("before", list(range(40))))
        await peer.outputs("before")
        await peer.send(Follow(True))
        mirror(await blocks_of(peer))
        assert mirror.frames[0].cleared and len(mirror.blocks) == 2
        for number in range(12):  # more than fit
            await peer.send(ask(str(number), [number] * 100, max_tokens=8))
            while True:
                frame = await peer.receive()
                if isinstance(frame, Blocks):
                    mirror(frame)
                elif isinstance(frame, Step) and any(output.finish for output in frame.outputs):
                    break
            assert mirror.blocks == held(server)
    assert any(frame.removed for frame in mirror.frames)
    assert len(mirror.frames) > 12


async def test_nobody_else_is_told_and_nothing_is_noted_for_nobody(server: EngineServer, address: str) -> None:
    async with peer_of(address) as follower, peer_of(address) as other:
        await follower.send(Follow(True))
        await blocks_of(follower)
        await other.send(ask("a", list(range(40))))
        await other.outputs("a")  # asserts that it is sent nothing but steps
        assert len(unpack_numbers((await blocks_of(follower)).stored)) == 2
        await follower.send(Follow(False))
        await other.send(ask("b", list(range(5, 45))))
        await other.outputs("b")
        await until(lambda: server._core._scheduler.pool._changes is None)
        await follower.send(Follow(True))
        assert len(unpack_numbers((await blocks_of(follower)).stored)) == 4
    await until(lambda: server._core._scheduler.pool._changes is None)  # who has gone follows no more


async def test_a_client_follows_through_restarts(tmp_path: Path) -> None:
    """A lost connection says that nothing is known, the new engine what it has; the blocks arrive before the end."""
    engine = ScriptedEngine(tmp_path / "engine")
    await engine.start()
    mirror = Mirror()
    async with asyncio.timeout(TIMEOUT), EngineClient(engine.address) as client:
        client.follow_blocks(mirror)
        await client.wait_connected()
        assert client.tells_blocks
        await collect(client.generate(list(range(3, 43)), params(1)))
        assert len(mirror.blocks) == 2
        await engine.stop()
        await until(lambda: not client.connected)
        assert mirror.blocks == set()
        restarted = ScriptedEngine(tmp_path / "engine")
        await restarted.start()
        await client.wait_connected()
        await collect(client.generate(list(range(3, 23)), params(1)))
        assert len(mirror.blocks) == 1
        client.follow_blocks(None)
        frames = len(mirror.frames)
        await collect(client.generate(list(range(100, 140)), params(1)))
        assert len(mirror.frames) == frames
        await restarted.stop()


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60), st.integers(0, 6))
def test_changes_add_up_to_what_the_pool_holds(steps: list[tuple[int, bool]], host_blocks: int) -> None:
    """However registering, forgetting and asking mix, on the device or in host memory below it; who does not follow is
    told nothing.
    """
    pool: Any = BlockPool(4, HostTier(host_blocks))
    pool.follow(True)
    mirror: set[bytes] = set()
    for number, asked in steps:
        digest = block_hash(b"", [number])
        if not pool.match([digest]):
            (block,) = pool.allocate(1)
            pool.register(block, digest)
            pool.release([block])
        if asked:
            for key, here in pool.take_changes().items():
                (mirror.add if here else mirror.discard)(key)
            assert mirror == set(pool.prefixes)
            assert len(mirror) <= 4 + host_blocks
    pool.follow(False)
    assert pool.take_changes() == {}
