"""One generation: tokens become text, stop strings end it, and whoever leaves early ends it in the engine too."""

from __future__ import annotations

import asyncio
import threading

import pytest

from engine.client.engine_client import EngineClient
from engine.client.generation import EngineGone, EngineOverloaded, Generation, RequestFailed, RequestInvalid
from engine.text.processor import TextProcessor
from engine.wire import ErrorKind, Generate, Output, Usage
from tests.engine.peers import until
from tests.engine.scripted_engine import EOS, ScriptedEngine, assert_cancelled, collect, joined, params

pytestmark = pytest.mark.anyio


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
    engine: ScriptedEngine, client: EngineClient, text: TextProcessor
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


async def test_leaving_the_block_cancels_in_the_engine(engine: ScriptedEngine, client: EngineClient) -> None:
    engine.runner.gate = threading.Semaphore(0)
    async with client.generate([7], params(100_000)) as generation:
        engine.runner.gate.release(1)
        await anext(generation)
    await assert_cancelled(engine, client)
    with pytest.raises(RuntimeError, match="no result"):
        _ = generation.result
    assert generation.usage.output_tokens == 1


async def test_cancelling_the_task_that_iterates_cancels_in_the_engine(
    engine: ScriptedEngine, client: EngineClient
) -> None:
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
    engine: ScriptedEngine, client: EngineClient
) -> None:
    engine.runner.gate = threading.Semaphore(0)
    async with client.generate([7], params(100_000)) as generation:
        engine.runner.gate.release(1)
        assert (await anext(generation)).token_ids == [7]
        generation.cancel()
        assert [delta async for delta in generation] == []
    await assert_cancelled(engine, client)


async def test_a_slow_consumer_gets_everything_in_one_merged_delta(
    engine: ScriptedEngine, client: EngineClient, text: TextProcessor
) -> None:
    ids = text.encode("hello world, hello 世界 ")
    async with client.generate(ids, params(200), text=text) as generation:
        first = await anext(generation)
        await until(lambda: generation.usage.output_tokens == 200)
        rest = [delta async for delta in generation]
    assert len(rest) <= 2
    assert joined([first, *rest]) == text.decode((ids * 200)[:200])
    assert generation.result.usage.output_tokens == 200


class TestDelivered:
    """What a consumer has been given, which is what it owes for."""

    def generation(self) -> Generation:
        return Generation(Generate("1", [1, 2, 3], params(100)), lambda id: None)

    async def test_tokens_count_when_the_consumer_is_done_with_them(self) -> None:
        generation = self.generation()
        generation.feed(Output("1", [7, 7], usage=Usage(3, 2, 2, 0.0)))
        assert (generation.delivered.prompt_tokens, generation.delivered.output_tokens) == (3, 0)
        await anext(generation)
        assert (generation.delivered.cached_tokens, generation.delivered.output_tokens) == (2, 0)
        generation.feed(Output("1", [7]))
        await anext(generation)
        assert generation.delivered.output_tokens == 2
        generation.feed(Output("1", [7]))
        await generation.aclose()
        generation.feed(Output("1", [7]))
        assert [delta.token_ids async for delta in generation] == [[7]]
        assert generation.delivered.output_tokens == 4

    async def test_a_whole_answer_counts_the_token_that_ended_it(self) -> None:
        generation = self.generation()
        generation.feed(Output("1", [7, 2], finish="stop", usage=Usage(3, 0, 2, 0.0)))
        assert generation.delivered.output_tokens == 0
        assert [delta.token_ids async for delta in generation] == [[7]]
        assert generation.delivered.output_tokens == 2

    async def test_a_token_that_is_held_back_has_not_been_delivered(self, text: TextProcessor) -> None:
        ids = text.encode("a 😀")
        generation = Generation(Generate("1", [1], params(100)), lambda id: None, text=text)
        generation.feed(Output("1", ids[:-1]))
        shown = (await anext(generation)).token_ids
        await generation.aclose()
        assert [delta async for delta in generation] == []
        assert 0 < len(shown) < len(ids) - 1
        assert generation.delivered.output_tokens == len(shown)

    async def test_a_failure_comes_after_what_came_before_it(self) -> None:
        generation = self.generation()
        generation.feed(Output("1", [7]))
        await anext(generation)
        generation.feed(Output("1", [8]))
        generation.fail(EngineGone("gone", started=generation.started))
        assert (await anext(generation)).token_ids == [8]
        with pytest.raises(EngineGone):
            await anext(generation)
        assert generation.delivered.output_tokens == 2

    async def test_an_answer_that_fails_before_it_was_begun_delivers_nothing(self) -> None:
        generation = self.generation()
        generation.feed(Output("1", [7]))
        generation.fail(EngineGone("gone", started=generation.started))
        with pytest.raises(EngineGone) as caught:
            await anext(generation)
        assert not caught.value.started
        assert generation.delivered.output_tokens == 0


class TestAccepted:
    """Waiting for the engine's word before anybody is told that there will be an answer."""

    async def test_it_is_given_with_the_first_output(self, engine: ScriptedEngine, client: EngineClient) -> None:
        engine.runner.gate = threading.Semaphore(0)
        async with client.generate([7, 8], params(2)) as generation:
            waiting = asyncio.create_task(generation.accepted())
            await asyncio.sleep(0)
            assert not waiting.done()
            engine.runner.gate.release(2)
            await waiting
            await generation.accepted()  # it stays accepted
            assert [id for delta in [delta async for delta in generation] for id in delta.token_ids] == [7, 8]

    async def test_a_refusal_is_raised(self, client: EngineClient) -> None:
        async with client.generate([], params()) as generation:
            with pytest.raises(RequestFailed, match="prompt: is empty") as caught:
                await generation.accepted()
        assert not caught.value.started

    async def test_a_cancellation_ends_the_wait(self, engine: ScriptedEngine, client: EngineClient) -> None:
        engine.runner.gate = threading.Semaphore(0)
        async with client.generate([7], params()) as generation:
            waiting = asyncio.create_task(generation.accepted())
            await asyncio.sleep(0)
            generation.cancel()
            await waiting
            assert [delta async for delta in generation] == []
        await assert_cancelled(engine, client)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("invalid", RequestInvalid), ("overloaded", EngineOverloaded), ("internal", RequestFailed), (None, RequestFailed)],
)
async def test_the_kind_of_an_error_is_the_type_of_what_is_raised(
    kind: ErrorKind | None, expected: type[RequestFailed]
) -> None:
    generation = Generation(Generate("1", [1], params()), lambda id: None)
    error = "grammar: too costly"
    generation.feed(Output("1", finish="error", error=error, error_kind=kind, error_field="grammar", retry_after=2.0))
    with pytest.raises(RequestFailed) as failed:
        await anext(generation)
    assert (type(failed.value), str(failed.value)) == (expected, error)
    assert (failed.value.field, failed.value.reason) == ("grammar", "too costly")
    assert getattr(failed.value, "retry_after", None) == (2.0 if kind == "overloaded" else None)
