"""The client against real servers: connecting, many generations at once, and engines that die, hang or lie."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
from websockets.asyncio.server import ServerConnection, serve, unix_serve

from engine.client.engine_client import EngineClient
from engine.client.generation import EngineGone, RequestFailed, RequestInvalid, UnreadableOutput
from engine.text.processor import TextProcessor
from engine.wire import (
    PROTOCOL_MIN,
    PROTOCOL_VERSION,
    Announce,
    ClientFrame,
    Load,
    Pin,
    Ready,
    Step,
    decode_client_frame,
    encode,
)
from tests.engine.ledger_runner import model_info
from tests.engine.peers import TIMEOUT, until
from tests.engine.scripted_engine import ScriptedEngine, assert_cancelled, collect, joined, params

pytestmark = pytest.mark.anyio


async def test_it_knows_the_model_and_the_load(client: EngineClient) -> None:
    assert client.connected
    assert client.info is not None
    assert client.load is not None
    assert (client.info.name, client.load.total_blocks) == ("ledger", 64)


async def test_many_generations_share_the_connection(client: EngineClient, text: TextProcessor) -> None:
    prompts = [text.encode(f"number {index} ") for index in range(20)]
    answers = await asyncio.gather(*(collect(client.generate(ids, params(30), text=text)) for ids in prompts))
    for ids, deltas in zip(prompts, answers, strict=True):
        assert joined(deltas) == text.decode((ids * 30)[:30])
    assert client.live == 0


# Failures


async def test_a_refused_request_says_why(client: EngineClient) -> None:
    generation = client.generate([5000], params())
    with pytest.raises(RequestFailed, match=r"^prompt: token ids") as failed:
        await anext(generation)
    assert isinstance(failed.value, RequestInvalid)
    assert (failed.value.field, failed.value.started) == ("prompt", False)
    assert failed.value.reason.startswith("token ids")
    assert client.live == 0


async def test_a_prompt_too_large_for_a_frame_costs_itself_only(client: EngineClient) -> None:
    with pytest.raises(RequestFailed, match="prompt: too long"):
        client.generate([999] * 4_000_000, params())
    assert [delta.token_ids for delta in await collect(client.generate([7], params(1)))] == [[7]]


async def test_an_engine_that_dies_fails_all_its_generations_at_once(
    engine: ScriptedEngine, client: EngineClient
) -> None:
    engine.runner.gate = threading.Semaphore(0)
    started = client.generate([7], params(100_000))
    engine.runner.gate.release(1)
    await anext(started)
    untouched = client.generate([8], params(100_000))
    await engine.stop()
    with pytest.raises(EngineGone) as gone:
        async for _ in started:  # what had come before comes first
            pass
    assert gone.value.started
    with pytest.raises(EngineGone) as gone:
        while True:
            await anext(untouched)
    assert not gone.value.started or untouched.started
    assert (client.connected, client.load, client.live) == (False, None, 0)


async def test_what_was_not_delivered_before_the_engine_died_does_not_count_as_started(
    engine: ScriptedEngine, client: EngineClient
) -> None:
    engine.runner.gate = threading.Semaphore(0)
    generation = client.generate([7], params(100_000))
    engine.runner.gate.release(1)
    await until(lambda: generation.usage.output_tokens == 1)
    await engine.stop()
    with pytest.raises(EngineGone) as gone:
        await anext(generation)
    assert not gone.value.started


async def test_without_an_engine_a_request_fails_at_once_and_not_started(tmp_path: Path) -> None:
    async with EngineClient(f"unix://{tmp_path}/nobody.sock") as client:
        with pytest.raises(EngineGone, match="not connected") as gone:
            client.generate([1], params())
        assert not gone.value.started


async def test_it_connects_again_when_the_engine_is_back(engine: ScriptedEngine, client: EngineClient) -> None:
    await engine.stop()
    await until(lambda: not client.connected)
    assert client.info is not None, "what is known of the model stays"
    await engine.start()
    await client.wait_connected()
    assert [delta.token_ids for delta in await collect(client.generate([7], params(1)))] == [[7]]


async def test_pinned_adapters_are_named_again_after_every_connection() -> None:
    load = Load(0, 0, 0, 4, 4, 0, 0, 0, 0, 0, 0.0)
    received: asyncio.Queue[ClientFrame] = asyncio.Queue()

    async def handle(connection: ServerConnection) -> None:
        await connection.send(encode(Ready(PROTOCOL_MIN, _MODEL, load)))
        for _ in range(3):
            received.put_nowait(decode_client_frame(await connection.recv(decode=False)))

    async with serve(handler=handle, host="127.0.0.1", port=0) as server:
        address = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        async with asyncio.timeout(TIMEOUT), EngineClient(address) as client:
            client.pin(["one", "two"])
            await client.wait_connected()
            client.announce("three")
            client.pin(["one", "two"])  # nothing new: not sent again
            client.pin(["two"])
            frames = [await received.get() for _ in range(4)]
    assert frames == [Pin(["one", "two"]), Announce("three"), Pin(["two"]), Pin(["two"])]


async def test_nothing_is_announced_to_an_engine_that_is_away(tmp_path: Path) -> None:
    received: asyncio.Queue[object] = asyncio.Queue()

    async def handle(connection: ServerConnection) -> None:
        load = Load(0, 0, 0, 4, 4, 0, 0, 0, 0, 0, 0.0)
        await connection.send(encode(Ready(PROTOCOL_MIN, _MODEL, load)))
        received.put_nowait(decode_client_frame(await connection.recv(decode=False)))

    path = str(tmp_path / "engine.sock")
    async with asyncio.timeout(TIMEOUT), EngineClient(f"unix://{path}") as client:
        client.announce("one")
        client.pin(["two"])
        async with unix_serve(handle, path):
            assert await received.get() == Pin(["two"])


async def test_closing_the_client_fails_its_generations_and_frees_the_engine(engine: ScriptedEngine) -> None:
    engine.runner.gate = threading.Semaphore(0)
    async with asyncio.timeout(TIMEOUT), EngineClient(engine.address) as other:
        async with EngineClient(engine.address) as client:
            await client.wait_connected()
            generation = client.generate([7], params(100_000))
            engine.runner.gate.release(1)
            await anext(generation)
        with pytest.raises(EngineGone):
            await anext(generation)
        await other.wait_connected()
        assert engine.server is not None
        connections = engine.server._connections
        await until(lambda: len(connections) == 1)
        await assert_cancelled(engine, other)


@contextlib.asynccontextmanager
async def strange_engine(*frames: bytes | str) -> AsyncIterator[str]:
    """Something else that listens: it sends these frames and falls silent."""

    async def handle(connection: ServerConnection) -> None:
        for frame in frames:
            await connection.send(frame)
        await connection.wait_closed()

    async with serve(handler=handle, host="127.0.0.1", port=0) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


_MODEL = model_info()


@pytest.mark.parametrize(
    "frames",
    [
        [b"\xc1"],
        ["hello"],
        [encode({"type": "step", "outputs": [], "load": {}})],
        [encode({"type": "ready", "protocol": PROTOCOL_VERSION + 1})],
    ],
    ids=["garbage", "text", "no introduction", "another version"],
)
async def test_something_that_is_no_engine_is_never_connected(
    frames: list[bytes | str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "engine.client.engine_client")
    async with strange_engine(*frames) as address, EngineClient(address) as client:
        await until(lambda: "cannot be used" in caplog.text)
        assert not client.connected


async def test_an_engine_that_falls_silent_counts_as_dead(engine: ScriptedEngine, client: EngineClient) -> None:
    assert client.load is not None
    introduction = encode(Ready(PROTOCOL_VERSION, _MODEL, client.load))
    async with strange_engine(introduction) as address, EngineClient(address, silence=0.05) as silent:
        await silent.wait_connected()
        generation = silent.generate([1], params())
        with pytest.raises(EngineGone):
            await anext(generation)


async def test_an_engine_of_a_newer_version_is_not_misunderstood(
    client: EngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    assert client.load is not None
    caplog.set_level("DEBUG", "engine.client.engine_client")
    introduction = encode(Ready(PROTOCOL_VERSION + 1, _MODEL, client.load))
    async with strange_engine(introduction) as address, EngineClient(address) as other:
        await until(lambda: "speaks version" in caplog.text)
        assert not other.connected


class Clumsy:
    """Text whose detokenisers raise on one token."""

    class Detokenizer:
        def push(self, token: int) -> str:
            if token == 13:
                raise IndexError("no such piece")
            return chr(token)

        def flush(self) -> str:
            return ""

    def detokenizer(self, shown: object) -> Detokenizer:
        return self.Detokenizer()


async def test_a_text_that_cannot_be_read_ends_its_own_generation_only(
    engine: ScriptedEngine, client: EngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    clumsy = cast(TextProcessor, Clumsy())
    engine.runner.gate = threading.Semaphore(0)
    beside = client.generate([7], params(6))
    unlucky = client.generate([65, 66, 13], params(100_000), text=clumsy)
    engine.runner.gate.release(1000)
    with pytest.raises(RequestFailed, match="could not be turned into text") as failed:
        await collect(unlucky)
    assert (type(failed.value), type(failed.value.__cause__)) == (UnreadableOutput, IndexError)
    assert [token for delta in await collect(beside) for token in delta.token_ids] == [7] * 6
    assert "the answer to request 2 cannot be read" in caplog.text
    # The engine has been told to stop, on the same connection, and it goes on serving.
    assert [delta.token_ids for delta in await collect(client.generate([8], params(1)))] == [[8]]
    await until(lambda: client.load is not None and client.load.running == client.load.waiting == 0)
    assert engine.server is not None and len(engine.server._connections) == 1


async def test_whoever_follows_blocks_and_fails_costs_nobody_else(
    engine: ScriptedEngine, client: EngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    def listener(blocks: object) -> None:
        raise KeyError("books that do not add up")

    client.follow_blocks(listener)
    assert [delta.token_ids for delta in await collect(client.generate([7] * 40, params(1)))] == [[7]]
    await until(lambda: "follows its prefix blocks has failed" in caplog.text)
    await engine.stop()
    await until(lambda: not client.connected)
    await engine.start()
    await client.wait_connected()
    assert [delta.token_ids for delta in await collect(client.generate([7], params(1)))] == [[7]]


@pytest.mark.parametrize("where", ["_receive", "_watch", "_handshake"])
async def test_nothing_that_goes_wrong_with_one_connection_prevents_the_next(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    faults = iter([RuntimeError("unheard of"), RecursionError(), ZeroDivisionError()])
    sound = getattr(EngineClient, where)

    def faulty(self: EngineClient, *arguments: object) -> object:
        for fault in faults:
            raise fault
        return sound(self, *arguments)

    monkeypatch.setattr(EngineClient, where, faulty)
    told: list[type[BaseException] | None] = []

    def on_fault() -> None:
        told.append(sys.exc_info()[0])

    async with asyncio.timeout(TIMEOUT), EngineClient(engine.address, on_fault=on_fault) as client:
        await until(lambda: "ZeroDivisionError" in caplog.text and client.connected)
        assert [delta.token_ids for delta in await collect(client.generate([7], params(1)))] == [[7]]
    assert "unheard of" in caplog.text
    assert told == [RuntimeError, RecursionError, ZeroDivisionError]


async def test_a_server_s_frame_nested_without_end_costs_its_connection_only(
    client: EngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    assert client.load is not None
    introduction = encode(Ready(PROTOCOL_VERSION, _MODEL, client.load))
    deep = b"\x82\xa4type\xa6blocks\xa5later" + b"\x91" * 200_000
    async with strange_engine(introduction, deep) as address, EngineClient(address):
        for _ in range(2):  # and it comes back for more
            caplog.clear()
            await until(lambda: "nested too deeply" in caplog.text)


async def test_outputs_for_unknown_requests_are_ignored(client: EngineClient) -> None:
    """An answer may cross a cancellation on the wire."""
    assert client.load is not None
    frames = [encode(Ready(PROTOCOL_VERSION, _MODEL, client.load)), encode(Step([], client.load))]
    late = encode({"type": "step", "outputs": [{"id": "gone", "tokens": [1]}], "load": client.load})
    after = msgspec.structs.replace(client.load, running=7)
    async with strange_engine(*frames, late, encode(Step([], after))) as address, EngineClient(address) as other:
        await until(lambda: other.load == after)
        assert other.connected


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "127.0.0.1:1", "/tmp/x.sock"])
async def test_an_address_of_another_kind_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="use ws://host:port or unix://"):
        EngineClient(address)


# Answers that move


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(tmp_path / "other.sock")
    await engine.start()
    yield engine
    await engine.stop()


@pytest.mark.parametrize("cut", [1, 4, 11])
async def test_another_engine_goes_on_at_the_next_token(
    engine: ScriptedEngine, other: ScriptedEngine, client: EngineClient, text: TextProcessor, cut: int
) -> None:
    """The consumer sees one answer: text, tokens, log-probabilities, usage, and a stop string across the cut."""
    ids = text.encode("Grüße aus 世界 😀! ")
    engine.runner.gate = threading.Semaphore(cut)
    wanted = params(3 * len(ids), logprobs=0, prompt_logprobs=0)
    generation = client.generate(ids, wanted, text=text, stop=["! G", "никогда"])
    said = []
    async with EngineClient(other.address) as second, generation:
        await second.wait_connected()
        await until(lambda: generation.usage.output_tokens == cut)
        said.append(await anext(generation))
        await client.aclose()
        with pytest.raises(EngineGone) as gone:
            while True:
                said.append(await anext(generation))
        assert gone.value.started
        second.resume(generation)
        said += [delta async for delta in generation]
        assert second.live == 0
    assert joined(said) == "Grüße aus 世界 😀"
    tokens = [id for delta in said for id in delta.token_ids]
    assert tokens == ids[: len(tokens)]
    assert [entry.token for delta in said for entry in delta.logprobs or ()] == tokens
    assert len(generation.prompt_logprobs) == len(ids)
    assert generation.result.stop == "! G"
    assert generation.result.usage.prompt_tokens == len(ids)
    assert generation.result.usage.output_tokens > len(ids)


async def test_an_engine_of_an_older_version_takes_nothing_up(client: EngineClient) -> None:
    assert client.load is not None and client.resumes
    introduction = encode(Ready(1, _MODEL, client.load))
    async with strange_engine(introduction) as address, EngineClient(address) as old:
        await old.wait_connected()
        generation = client.generate([7], params())
        with pytest.raises(EngineGone):
            old.resume(generation)
        await collect(generation)
