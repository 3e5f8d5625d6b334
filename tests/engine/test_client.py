"""The client against real servers: text out, cancellation, and what happens when the engine goes away."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve

from engine import server as server_module
from engine.client import Delta, EngineClient, EngineGone, Generation, RequestFailed
from engine.core import EngineCore, SchedulerConfig
from engine.plan import Sampled, StepPlan
from engine.request import Request
from engine.server import EngineServer
from engine.text import TextProcessor
from engine.wire import PROTOCOL_VERSION, Ready, SamplingParams, Step, TokenLogprob, encode
from tests.engine.ledger_runner import model_info
from tests.engine.tokenizer_zoo import byte_level, write_tokenizer

pytestmark = pytest.mark.anyio

TIMEOUT = 30
EOS = 2


class ScriptedRunner:
    """Answers a prompt with the prompt itself, over and over; a step waits for the gate if there is one."""

    def __init__(self) -> None:
        self.gate: threading.Semaphore | None = None
        self.steps = 0

    def execute(self, plan: StepPlan) -> list[Sampled]:
        if self.gate is not None:
            assert self.gate.acquire(timeout=TIMEOUT)
        self.steps += 1
        return [self._next(row.request, row.start, row.count) if row.sample else Sampled(None) for row in plan.rows]

    def release(self, request: Request) -> None:
        pass

    @staticmethod
    def _next(request: Request, start: int, count: int) -> Sampled:
        token = request.prompt[len(request.output) % len(request.prompt)]
        wanted = request.sampling.logprobs is not None
        prompt = None
        if request.sampling.prompt_logprobs is not None:
            successors = request.prompt[start + 1 : start + count + 1]
            prompt = [TokenLogprob(successor, -1.0) for successor in successors]
        return Sampled(token, TokenLogprob(token, -0.5) if wanted else None, prompt)


class Engine:
    """A server that can be killed and started again at the same address."""

    def __init__(self, path: Path) -> None:
        self.runner = ScriptedRunner()
        self.address = f"unix://{path}"
        self.server: EngineServer | None = None
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        model = model_info(context=1000, vocabulary=1000, eos=(EOS,))
        self.server = EngineServer(EngineCore(self.runner, model, SchedulerConfig(64, step_tokens=64, max_running=8)))
        await self._stack.enter_async_context(self.server.listening(self.address))

    async def stop(self) -> None:
        if self.runner.gate is not None:
            self.runner.gate.release(1000)
        await self._stack.aclose()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextProcessor:
    return TextProcessor.from_directory(write_tokenizer(tmp_path_factory.mktemp("tokenizer"), byte_level()))


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    monkeypatch.setattr(server_module, "HEARTBEAT_SECONDS", 0.02)
    engine = Engine(tmp_path / "engine.sock")
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[EngineClient]:
    async with asyncio.timeout(TIMEOUT), EngineClient(engine.address) as client:
        await client.wait_connected()
        yield client


def params(max_tokens: int = 8, **fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **fields)  # type: ignore[arg-type]


async def collect(generation: Generation) -> list[Delta]:
    async with generation:
        return [delta async for delta in generation]


def joined(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110 (nothing announces it)
            await asyncio.sleep(0.001)


async def assert_cancelled(engine: Engine, client: EngineClient) -> None:
    """The engine has been told to drop everything, does so after the step it is in, and has all its blocks back."""
    assert client.live == 0
    with pytest.raises(RequestFailed):  # refused in its turn, so that the cancellation before it has been read
        await anext(client.generate([], params()))
    assert engine.runner.gate is not None
    engine.runner.gate.release(1)
    await until(lambda: client.load is not None and client.load.running == client.load.waiting == 0)
    assert client.load is not None
    assert client.load.free_blocks + client.load.cached_blocks == client.load.total_blocks


async def test_it_knows_the_model_and_the_load(client: EngineClient) -> None:
    assert client.connected
    assert client.info is not None
    assert client.load is not None
    assert (client.info.name, client.load.total_blocks) == ("ledger", 64)


async def test_an_answer_comes_as_text_with_a_result_at_the_end(client: EngineClient, text: TextProcessor) -> None:
    ids = text.encode("Grüße aus 世界 😀!")
    generation = client.generate(ids, params(len(ids)), text=text)
    deltas = await collect(generation)
    assert joined(deltas) == "Grüße aus 世界 😀!"
    assert [id for delta in deltas for id in delta.token_ids] == ids
    assert all(delta.text for delta in deltas)
    result = generation.result
    assert (result.finish_reason, result.stop) == ("length", None)
    assert (result.usage.prompt_tokens, result.usage.output_tokens) == (len(ids), len(ids))
    assert 0 < result.timings.first_token <= result.timings.total


async def test_without_a_text_processor_deltas_carry_tokens_only(client: EngineClient) -> None:
    deltas = await collect(client.generate([7, 8, 9], params(3)))
    assert [id for delta in deltas for id in delta.token_ids] == [7, 8, 9]
    assert joined(deltas) == ""


async def test_the_token_that_ends_the_answer_is_counted_but_not_shown(
    client: EngineClient, text: TextProcessor
) -> None:
    ids = [*text.encode("hello"), EOS]
    generation = client.generate(ids, params(100), text=text)
    deltas = await collect(generation)
    assert (joined(deltas), generation.result.finish_reason) == ("hello", "stop")
    assert [id for delta in deltas for id in delta.token_ids] == ids[:-1]
    assert generation.result.usage.output_tokens == len(ids)


async def test_special_tokens_in_the_middle_of_an_answer_are_not_text(
    client: EngineClient, text: TextProcessor
) -> None:
    ids = text.encode("a<|user|>b")
    deltas = await collect(client.generate(ids, params(3), text=text))
    assert joined(deltas) == "ab"
    assert [id for delta in deltas for id in delta.token_ids] == ids


async def test_logprobs_come_with_the_tokens_of_their_text(client: EngineClient, text: TextProcessor) -> None:
    ids = text.encode("a 😀")
    deltas = await collect(client.generate(ids, params(len(ids), logprobs=0), text=text))
    for delta in deltas:
        assert delta.logprobs is not None
        assert [entry.token for entry in delta.logprobs] == delta.token_ids


async def test_prompt_logprobs_are_complete_with_the_first_delta(client: EngineClient) -> None:
    prompt = list(range(10, 20))
    async with client.generate(prompt, params(4, prompt_logprobs=0)) as generation:
        await anext(generation)
        assert [entry and entry.token for entry in generation.prompt_logprobs] == [None, *prompt[1:]]


# Stop strings


async def test_a_stop_string_ends_the_answer_here_and_in_the_engine(
    engine: Engine, client: EngineClient, text: TextProcessor
) -> None:
    engine.runner.gate = threading.Semaphore(0)
    ids = text.encode("one two STOP three")
    generation = client.generate(ids, params(10_000), text=text, stop=["STOP"])
    deltas = asyncio.create_task(collect(generation))
    engine.runner.gate.release(len(ids) + 1)
    assert joined(await deltas) == "one two "
    assert (generation.result.finish_reason, generation.result.stop) == ("stop", "STOP")
    assert generation.result.usage.output_tokens <= len(ids)
    assert generation.result.usage.prompt_tokens == len(ids)
    await assert_cancelled(engine, client)


async def test_tokens_of_the_stop_string_are_not_shown(client: EngineClient, text: TextProcessor) -> None:
    ids = text.encode("ab STOP")
    generation = client.generate(ids, params(100, logprobs=0), text=text, stop=["STOP"])
    deltas = await collect(generation)
    shown = [id for delta in deltas for id in delta.token_ids]
    assert text.decode(shown) == "ab "
    assert [entry.token for delta in deltas for entry in delta.logprobs or []] == shown


async def test_a_token_that_only_ends_in_the_stop_string_is_shown_in_part(
    client: EngineClient, text: TextProcessor
) -> None:
    hello = text.encode(" hello")
    assert len(hello) == 1
    deltas = await collect(client.generate(hello, params(4), text=text, stop=["llo"]))
    assert (joined(deltas), deltas[0].token_ids) == (" he", hello)


async def test_what_was_held_back_for_a_stop_string_comes_at_the_end(client: EngineClient, text: TextProcessor) -> None:
    ids = text.encode("say STO")
    generation = client.generate(ids, params(len(ids)), text=text, stop=["STOP"])
    deltas = await collect(generation)
    assert (joined(deltas), generation.result.finish_reason) == ("say STO", "length")
    assert [id for delta in deltas for id in delta.token_ids] == ids


async def test_min_tokens_come_before_any_stop_string(client: EngineClient, text: TextProcessor) -> None:
    ids = text.encode("a")
    generation = client.generate(ids, params(20, min_tokens=5), text=text, stop=["a"])
    assert joined(await collect(generation)) == "aaaaa"
    assert generation.result.stop == "a"


async def test_stop_strings_need_text(client: EngineClient) -> None:
    with pytest.raises(ValueError, match="stop: "):
        client.generate([1], params(), stop=["x"])


# Leaving early


async def test_leaving_the_block_cancels_in_the_engine(engine: Engine, client: EngineClient) -> None:
    engine.runner.gate = threading.Semaphore(0)
    async with client.generate([7], params(100_000)) as generation:
        engine.runner.gate.release(1)
        await anext(generation)
    await assert_cancelled(engine, client)
    with pytest.raises(RuntimeError, match="no result"):
        _ = generation.result
    assert generation.usage.output_tokens == 1


async def test_cancelling_the_task_that_iterates_cancels_in_the_engine(engine: Engine, client: EngineClient) -> None:
    engine.runner.gate = threading.Semaphore(0)
    generation = client.generate([7], params(100_000))

    async def consume() -> None:
        async for _ in generation:
            pass

    task = asyncio.create_task(consume())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await assert_cancelled(engine, client)


async def test_a_generation_cancelled_from_outside_stops_after_what_has_come(
    engine: Engine, client: EngineClient
) -> None:
    engine.runner.gate = threading.Semaphore(0)
    async with client.generate([7], params(100_000)) as generation:
        engine.runner.gate.release(1)
        assert (await anext(generation)).token_ids == [7]
        generation.cancel()
        assert [delta async for delta in generation] == []
    await assert_cancelled(engine, client)


async def test_a_slow_consumer_gets_everything_in_one_merged_delta(
    engine: Engine, client: EngineClient, text: TextProcessor
) -> None:
    ids = text.encode("hello world, hello 世界 ")
    async with client.generate(ids, params(200), text=text) as generation:
        first = await anext(generation)
        await until(lambda: generation.usage.output_tokens == 200)
        rest = [delta async for delta in generation]
    assert len(rest) <= 2
    assert joined([first, *rest]) == text.decode((ids * 200)[:200])
    assert generation.result.usage.output_tokens == 200


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
    assert (failed.value.kind, failed.value.started) == ("invalid", False)
    assert client.live == 0


async def test_a_prompt_too_large_for_a_frame_costs_itself_only(client: EngineClient) -> None:
    with pytest.raises(RequestFailed, match="prompt: too long"):
        client.generate([999] * 4_000_000, params())
    assert [delta.token_ids for delta in await collect(client.generate([7], params(1)))] == [[7]]


async def test_an_engine_that_dies_fails_all_its_generations_at_once(engine: Engine, client: EngineClient) -> None:
    engine.runner.gate = threading.Semaphore(0)
    started = client.generate([7], params(100_000))
    engine.runner.gate.release(1)
    await anext(started)
    untouched = client.generate([8], params(100_000))
    await engine.stop()
    with pytest.raises(EngineGone) as gone:
        await anext(started)
    assert gone.value.started
    with pytest.raises(EngineGone) as gone:
        while True:
            await anext(untouched)
    assert not gone.value.started or untouched.started
    assert (client.connected, client.load, client.live) == (False, None, 0)


async def test_what_was_not_delivered_before_the_engine_died_does_not_count_as_started(
    engine: Engine, client: EngineClient
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


async def test_it_connects_again_when_the_engine_is_back(engine: Engine, client: EngineClient) -> None:
    await engine.stop()
    await until(lambda: not client.connected)
    assert client.info is not None, "what is known of the model stays"
    await engine.start()
    await client.wait_connected()
    assert [delta.token_ids for delta in await collect(client.generate([7], params(1)))] == [[7]]


async def test_closing_the_client_fails_its_generations_and_frees_the_engine(engine: Engine) -> None:
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
    caplog.set_level("DEBUG", "engine.client")
    async with strange_engine(*frames) as address, EngineClient(address) as client:
        await until(lambda: "cannot be used" in caplog.text)
        assert not client.connected


async def test_an_engine_that_falls_silent_counts_as_dead(engine: Engine, client: EngineClient) -> None:
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
    caplog.set_level("DEBUG", "engine.client")
    introduction = encode(Ready(PROTOCOL_VERSION + 1, _MODEL, client.load))
    async with strange_engine(introduction) as address, EngineClient(address) as other:
        await until(lambda: "speaks version" in caplog.text)
        assert not other.connected


async def test_outputs_for_unknown_requests_are_ignored(client: EngineClient) -> None:
    """An answer may cross a cancellation on the wire."""
    assert client.load is not None
    frames = [encode(Ready(PROTOCOL_VERSION, _MODEL, client.load)), encode(Step([], client.load))]
    late = encode({"type": "step", "outputs": [{"id": "gone", "tokens": [1]}], "load": client.load})
    async with strange_engine(*frames, late) as address, EngineClient(address) as other:
        await other.wait_connected()
        await asyncio.sleep(0.05)
        assert other.connected


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "127.0.0.1:1", "/tmp/x.sock"])
async def test_an_address_of_another_kind_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="use ws://host:port or unix://"):
        EngineClient(address)
