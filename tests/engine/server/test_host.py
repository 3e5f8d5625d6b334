"""The engine's process boundary: real sockets, a core in its thread, and clients that behave badly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.client import connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from engine.plan import Sampled, StepPlan
from engine.server import host as server_module
from engine.server.host import EngineServer
from engine.wire import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Announce,
    Cancel,
    Generate,
    Output,
    Pin,
    Ready,
    SamplingParams,
    Step,
    TokenIdLogprob,
    decode_server_frame,
    encode,
)
from tests.engine.ledger_runner import LedgerRunner, expected_output
from tests.engine.peers import TIMEOUT, GatedRunner, Peer, ask, assert_idle, make_core, peer_of, tokens, until

pytestmark = pytest.mark.anyio


async def test_a_connection_begins_with_an_introduction(address: str) -> None:
    async with asyncio.timeout(TIMEOUT), connect(address) as connection:
        frame = decode_server_frame(await connection.recv(decode=False))
        assert isinstance(frame, Ready)
        assert (frame.protocol, frame.model.name, frame.load.total_blocks) == (PROTOCOL_VERSION, "ledger", 64)


async def test_a_request_gets_its_tokens_step_by_step(address: str) -> None:
    async with peer_of(address) as peer:
        await peer.send(ask(prompt=[5, 6], max_tokens=6))
        outputs = await peer.outputs("a")
        assert tokens(outputs) == expected_output([5, 6], 6)
        assert outputs[-1].finish == "length"


async def test_one_frame_per_step_carries_all_requests_of_a_connection(address: str, runner: GatedRunner) -> None:
    runner.gate = threading.Semaphore(0)
    async with peer_of(address) as peer:
        await peer.send(ask("first", max_tokens=1))
        await asyncio.to_thread(runner.entered.wait)
        for id in ("a", "b", "c"):
            await peer.send(ask(id, max_tokens=2))
        await peer.flush()
        runner.gate.release(100)
        frames: list[set[str]] = []
        while not frames or "c" not in frames[-1]:
            frame = await peer.receive()
            assert isinstance(frame, Step)
            if frame.outputs:
                frames.append({output.id for output in frame.outputs})
        assert frames[-1] == {"a", "b", "c"}


async def test_an_idle_engine_sends_heartbeats(address: str) -> None:
    async with peer_of(address) as peer:
        for _ in range(2):
            frame = await peer.receive()
            assert isinstance(frame, Step)
            assert frame.outputs == []


async def test_two_connections_may_use_the_same_ids(address: str) -> None:
    async with peer_of(address) as one, peer_of(address) as two:
        await one.send(ask("x", [1, 2]))
        await two.send(ask("x", [3, 4]))
        assert tokens(await one.outputs("x")) == expected_output([1, 2], 4)
        assert tokens(await two.outputs("x")) == expected_output([3, 4], 4)


async def test_a_cancelled_request_ends_within_a_step(address: str, runner: GatedRunner) -> None:
    runner.gate = threading.Semaphore(0)
    async with peer_of(address) as peer:
        await peer.send(ask(max_tokens=100))
        await asyncio.to_thread(runner.entered.wait)
        await peer.send(Cancel("a"))
        await peer.flush()
        runner.gate.release(1)
        outputs = await peer.outputs("a")
        assert outputs[-1].finish == "cancelled"
        assert len(runner.step_tokens) == 1
        runner.gate.release(1)
        assert_idle(await peer.probe())


async def test_cancelling_twice_or_what_is_unknown_is_ignored(address: str) -> None:
    async with peer_of(address) as peer:
        await peer.send(Cancel("nobody"))
        await peer.send(ask(max_tokens=200))
        for _ in range(2):
            await peer.send(Cancel("a"))
        assert (await peer.outputs("a"))[-1].finish == "cancelled"
        await peer.send(ask("a"))
        assert (await peer.outputs("a"))[-1].finish == "length"


async def test_a_closed_connection_cancels_its_requests_within_a_step(
    server: EngineServer, address: str, runner: GatedRunner
) -> None:
    runner.gate = threading.Semaphore(0)
    async with peer_of(address) as watcher:
        async with peer_of(address) as peer:
            await peer.send(ask(max_tokens=200))
            await peer.send(ask("b", max_tokens=200))
            await asyncio.to_thread(runner.entered.wait)
        await until(lambda: len(server._connections) == 1)
        runner.gate.release(2)
        assert_idle(await watcher.probe())
        assert len(runner.step_tokens) == 2, "it was still run after its client had gone"


async def test_an_aborted_connection_cancels_its_requests_too(
    server: EngineServer, address: str, runner: GatedRunner
) -> None:
    runner.gate = threading.Semaphore(0)
    async with peer_of(address) as watcher:
        async with peer_of(address) as peer:
            await peer.send(ask(max_tokens=200))
            await asyncio.to_thread(runner.entered.wait)
            peer.connection.transport.abort()
        await until(lambda: len(server._connections) == 1)
        runner.gate.release(2)
        assert_idle(await watcher.probe())


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("text", 1003),
        (b"\xc1", 1007),
        (b"", 1007),
        (b"\x81\xa4type\xa7unknown", 1007),
        (encode({"type": "generate", "id": 1}), 1007),
        (encode(ask("")), 1007),
        (encode(ask("x" * 129)), 1007),
        (encode({"type": "generate", "id": "a", "prompt": ["x"], "sampling": {}}), 1007),
        (encode({"type": "generate", "id": "a", "prompt": [1], "sampling": {"max_tokens": "x"}}), 1007),
        (b"\x82\xa4type\xa6cancel\xa2id\xa1\xff", 1007),
        (b"\x83\xa4type\xa6cancel\xa2id\xa1a\xa5later" + b"\x91" * 200_000, 1007),
    ],
    ids=["text", "invalid", "empty", "unknown", "missing", "no id", "long id", "prompt", "sampling", "utf-8", "nested"],
)
async def test_a_malformed_frame_closes_its_connection_and_nothing_else(
    address: str, frame: str | bytes, code: int
) -> None:
    async with peer_of(address) as other, peer_of(address) as bad:
        await other.send(ask("x", max_tokens=3))
        with pytest.raises(ConnectionClosed) as closed:
            await bad.connection.send(frame)
            while True:
                await bad.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == code
        assert (await other.outputs("x"))[-1].finish == "length"


async def test_a_frame_that_announces_too_many_bytes_closes_its_connection_before_they_come(address: str) -> None:
    async with peer_of(address) as bad:
        bad.connection.transport.write(b"\x82\xff" + (MAX_FRAME_BYTES + 1).to_bytes(8, "big") + bytes(4))
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                await bad.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_a_frame_that_cannot_be_written_costs_its_connection_and_nothing_else(
    server: EngineServer, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a character cannot: whoever waits for that frame must not wait for ever, nor anybody else."""
    async with peer_of(address) as unlucky, peer_of(address) as other:
        await unlucky.flush()
        load = server._load
        server._publish([Output("1/a", error="\ud800", finish="error"), Output("2/b", [5])], load)
        with pytest.raises(ConnectionClosed):
            while True:
                await unlucky.receive()
        (output,) = [output for output in (await other.until_outputs()) if output.id == "b"]
        assert output.tokens == [5]
        await other.send(ask("x", max_tokens=2))
        assert (await other.outputs("x"))[-1].finish == "length"
    assert "a frame cannot be written" in caplog.text


async def test_the_longest_id_is_served(address: str) -> None:
    async with peer_of(address) as peer:
        await peer.send(ask("x" * 128))
        assert (await peer.outputs("x" * 128))[-1].finish == "length"


async def test_unknown_fields_are_ignored_for_newer_clients(address: str) -> None:
    request = msgspec.to_builtins(ask()) | {"type": "generate", "from_the_future": True}
    async with peer_of(address) as peer:
        await peer.connection.send(encode(request))
        assert (await peer.outputs("a"))[-1].finish == "length"


async def test_hints_about_adapters_are_no_requests(address: str) -> None:
    async with peer_of(address) as peer:
        await peer.send(Announce("version"))
        await peer.send(Pin(["version"]))
        await peer.send(ask(prompt=[5, 6], max_tokens=2))
        assert tokens(await peer.outputs("a")) == expected_output([5, 6], 2)


async def test_the_id_of_a_live_request_must_not_be_used_again(address: str, runner: GatedRunner) -> None:
    runner.gate = threading.Semaphore(0)
    async with peer_of(address) as peer:
        await peer.send(ask())
        await peer.send(ask())
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                await peer.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
    runner.gate.release(100)


@pytest.mark.parametrize("prompt", [[], [99], [1] * 256], ids=["empty", "vocabulary", "too long"])
async def test_a_bad_request_gets_an_error_and_the_connection_lives_on(address: str, prompt: list[int]) -> None:
    async with peer_of(address) as peer:
        await peer.send(Generate("bad", prompt, SamplingParams()))
        (output,) = await peer.outputs("bad")
        assert (output.finish, output.error_kind) == ("error", "invalid")
        assert (output.error or "").startswith("prompt: ")
        await peer.send(ask("good"))
        assert (await peer.outputs("good"))[-1].finish == "length"


async def test_more_requests_than_the_queue_holds_are_refused(runner: GatedRunner) -> None:
    runner.gate = threading.Semaphore(0)
    core = make_core(runner, max_running=1, max_waiting=2)
    async with EngineServer(core).listening("ws://127.0.0.1:0") as address, peer_of(address) as peer:
        for id in "abcd":
            await peer.send(ask(id))
        (output,) = await peer.outputs("d")
        assert (output.finish, output.error_kind) == ("error", "overloaded")
        runner.gate.release(100)
        assert tokens(await peer.outputs("c")) == expected_output([1, 2, 3], 4)


class Talkative(LedgerRunner):
    """Has 20 alternatives for every prompt token, which makes large frames."""

    def execute(self, plan: StepPlan) -> list[Sampled]:
        top = [(token, -1.0) for token in range(20)]
        return [
            Sampled([1] if row.sample else [], prompt_logprobs=[TokenIdLogprob(1, -1.0, top)] * row.count)
            for row in plan.rows
        ]


async def test_a_client_that_never_reads_is_cut_off_and_does_not_slow_the_others(tmp_path: Path) -> None:
    core = make_core(Talkative(64), step_tokens=256)
    server = EngineServer(core, max_backlog_bytes=10_000)
    path = str(tmp_path / "engine.sock")  # a unix socket buffers little
    async with (
        server.listening(f"unix://{path}"),
        asyncio.timeout(TIMEOUT),
        unix_connect(path, close_timeout=0) as silent,
        unix_connect(path) as connection,
    ):
        silent.transport.pause_reading()
        for id in range(20):
            await silent.send(encode(ask(str(id), [1] * 200, 1000, prompt_logprobs=20)))
        await until(lambda: len(server._connections) == 1)
        other = Peer(connection)
        await other.receive()
        await other.send(ask("x", max_tokens=3))
        assert tokens(await other.outputs("x")) == [1, 1, 1]
        silent.transport.abort()
    assert core.idle


async def test_no_web_page_may_connect(address: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with connect(address, origin="http://evil.example", proxy=None):  # type: ignore[arg-type]
            pass
    assert refused.value.response.status_code == 403


async def test_connections_beyond_the_limit_are_turned_away(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 1)
    async with peer_of(address), connect(address, proxy=None) as second:
        with pytest.raises(ConnectionClosed) as closed:
            await second.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013


async def test_connections_opened_and_abandoned_leave_nothing_behind(server: EngineServer, address: str) -> None:
    for _ in range(30):
        connection = await connect(address, proxy=None)
        await connection.send(encode(ask(max_tokens=200)))
        connection.transport.abort()
    await until(lambda: not server._connections)
    async with peer_of(address) as peer:
        assert_idle(await peer.probe())


async def test_it_listens_on_a_unix_socket(runner: GatedRunner, tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    async with EngineServer(make_core(runner)).listening(f"unix://{path}") as address:
        assert address == f"unix://{path}"
        async with asyncio.timeout(TIMEOUT), unix_connect(str(path)) as connection:
            assert isinstance(decode_server_frame(await connection.recv(decode=False)), Ready)


@pytest.mark.parametrize("listen", ["http://127.0.0.1:1", "ws://127.0.0.1", "unix:", "nonsense"])
async def test_an_address_of_another_kind_is_refused(runner: GatedRunner, listen: str) -> None:
    with pytest.raises(ValueError, match="cannot listen at"):
        async with EngineServer(make_core(runner)).listening(listen):
            pass


async def test_a_failing_step_fails_its_requests_and_the_server_lives_on(address: str, runner: GatedRunner) -> None:
    execute: Callable[[StepPlan], list[Sampled]] = runner.execute

    def fail(plan: StepPlan) -> list[Sampled]:
        if plan.rows[0].request.prompt == [13]:
            raise RuntimeError("device failure")
        return execute(plan)

    runner.execute = fail  # type: ignore[method-assign]
    async with peer_of(address) as peer:
        await peer.send(ask("bad", [13]))
        (output,) = await peer.outputs("bad")
        assert (output.finish, output.error_kind) == ("error", "internal")
        await peer.send(ask("good"))
        assert tokens(await peer.outputs("good")) == expected_output([1, 2, 3], 4)


async def test_a_broken_core_ends_the_server_with_its_error(runner: GatedRunner) -> None:
    core = make_core(runner)
    server = EngineServer(core)

    def broken() -> list[Output]:
        raise ZeroDivisionError("bookkeeping")

    core.step = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="core failed") as failed:
        async with server.listening("ws://127.0.0.1:0") as address, peer_of(address) as peer:
            await peer.send(ask())
            await server.wait_failed()
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
