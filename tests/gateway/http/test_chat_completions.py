"""`/v1/chat/completions`, driven by the real `openai` client over a real socket."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from engine.text.processor import TextProcessor
from tests.gateway.conftest import KEY, EngineThread, Serve, Served, eventually
from tests.gateway.frame_engine import FrameEngine

pytestmark = pytest.mark.anyio

USER: list[Any] = [{"role": "user", "content": "hello"}]
UNENDED = {"ignore_eos": True}


async def whole(served: Served, **options: Any) -> Any:
    """A whole answer of a few greedy tokens."""
    given = {"model": "small", "messages": USER, "max_tokens": 8, "temperature": 0, **options}
    return await served.client.chat.completions.create(**given)


async def streamed(served: Served, **options: Any) -> list[ChatCompletionChunk]:
    """The same as a stream."""
    return [chunk async for chunk in await whole(served, stream=True, **options)]


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    """One answer's text."""
    choices = (choice for chunk in chunks for choice in chunk.choices if choice.index == index)
    return "".join(choice.delta.content or "" for choice in choices)


async def test_a_whole_answer_has_openais_shape(serve: Serve) -> None:
    """Message, finish reason and usage; the model that answered, not the name asked for."""
    async with serve() as served:
        raw = await served.client.chat.completions.with_raw_response.create(
            model="small", messages=USER, max_tokens=8, temperature=0, extra_body=UNENDED
        )
        await served.settle()
    answer = raw.parse()
    ChatCompletion.model_validate_json(raw.http_response.content, strict=True)
    assert 0 <= int(raw.headers["openai-processing-ms"]) < 20_000
    assert answer.system_fingerprint is not None and answer.system_fingerprint.startswith("fp_")
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "tiny-small"
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert choice.logprobs is None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_a_stream_is_role_text_and_finish_reason(serve: Serve) -> None:
    """The first chunk names the role, the last one says why it ended, and the text is that of the whole answer."""
    async with serve() as served:
        expected = await whole(served, extra_body={"roundhouse": {"cache": "no-store"}})
        chunks = await streamed(served, extra_body={"roundhouse": {"cache": "no-store"}})
        await served.settle()
    assert chunks[0].choices[0].delta.role == "assistant"
    assert text_of(chunks) == expected.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert {(chunk.id, chunk.object, chunk.model) for chunk in chunks} == {
        (chunks[0].id, "chat.completion.chunk", "tiny-small")
    }
    assert all(chunk.usage is None for chunk in chunks)


async def test_a_stream_ends_with_done(serve: Serve) -> None:
    """The raw bytes are server-sent events, the last one OpenAI's `[DONE]`."""
    async with serve() as served, httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as client:
        body = {"model": "small", "messages": USER, "max_tokens": 2, "stream": True}
        response = await client.post(f"{served.base_url}/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("\n\ndata: [DONE]\n\n")
    assert all(line.startswith("data: ") for line in response.text.split("\n\n") if line)


async def test_usage_comes_last_if_asked_for(serve: Serve) -> None:
    """`include_usage` adds a chunk without choices; before it usage is null."""
    async with serve() as served:
        chunks = await streamed(served, stream_options={"include_usage": True}, extra_body=UNENDED)
    *others, last = chunks
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 8
    assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in others)


async def test_usage_so_far_comes_with_every_chunk_if_asked_for(serve: Serve) -> None:
    """`continuous_usage_stats`, as load tools ask for it, counts up to the usage of the whole."""
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "ignore_eos": True}
    async with serve() as served:
        *chunks, last = await streamed(served, extra_body=options)
    usages = [chunk.usage for chunk in chunks]
    assert all(usage is not None and usage.prompt_tokens == last.usage.prompt_tokens for usage in usages)
    counts = [usage.completion_tokens for usage in usages]
    assert counts == sorted(counts)
    assert counts[-1] == last.usage.completion_tokens == 8


async def test_text_parts_and_roles_make_the_same_prompt(serve: Serve) -> None:
    """Parts are joined by line breaks, and `developer` is another word for `system`."""
    plain = [{"role": "system", "content": "be\nbrief"}, *USER]
    parts = [{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}]
    async with serve() as served:
        one = await whole(served, messages=plain)
        other = await whole(served, messages=[{"role": "developer", "content": parts}, *USER])
    assert one.usage.prompt_tokens == other.usage.prompt_tokens
    assert one.choices[0].message.content == other.choices[0].message.content


async def test_an_answer_can_be_sent_back_as_it_came(serve: Serve) -> None:
    """The message that the client's own type dumps, nulls and all, is accepted as history."""
    async with serve() as served:
        first = await whole(served)
        history = [*USER, first.choices[0].message.model_dump(), {"role": "user", "content": "go on"}]
        second = await whole(served, messages=history)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


async def test_a_stop_string_ends_the_answer_before_it(serve: Serve) -> None:
    """A stop string cut out of the unstopped answer ends it there, with reason `stop`."""
    async with serve() as served:
        full = (await whole(served, max_tokens=24, extra_body=UNENDED)).choices[0].message.content
        stop = full[5:8]
        answer = (await whole(served, max_tokens=24, stop=[stop], extra_body=UNENDED)).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.message.content == full[: full.index(stop)]


async def test_logprobs_list_the_chosen_token_and_the_most_likely_ones(serve: Serve) -> None:
    """Greedy: the chosen token is the most likely one; the tokens' bytes are the text's."""
    asked: Any = {"messages": [{"role": "user", "content": "Say hello."}], "logprobs": True, "top_logprobs": 3}
    async with serve() as served:
        choice = (await whole(served, **asked)).choices[0]
        chunks = await streamed(served, **asked)
    content = choice.logprobs.content
    text = b"".join(bytes(token.bytes) for token in content).decode(errors="replace")
    assert text == choice.message.content
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == token.logprob
    pieces = [chunk.choices[0].logprobs.content for chunk in chunks if chunk.choices[0].logprobs]
    assert [token.bytes for piece in pieces for token in piece] == [token.bytes for token in content]


async def test_several_answers_have_seeds_of_their_own(serve: Serve) -> None:
    """`n` answers with a seed are those of the seeds that follow, whole and streamed; the prompt counts once."""
    hot = {"temperature": 1.5, "max_tokens": 12, "extra_body": UNENDED}
    async with serve() as served:
        alone = [await whole(served, seed=7 + index, **hot) for index in range(3)]
        together = await whole(served, seed=7, n=3, **hot)
        chunks = await streamed(served, seed=7, n=3, **hot)
        await served.settle()
    expected = [answer.choices[0].message.content for answer in alone]
    assert len(set(expected)) > 1
    assert [choice.message.content for choice in together.choices] == expected
    assert [text_of(chunks, index) for index in range(3)] == expected
    assert together.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert together.usage.completion_tokens == 36


async def test_a_logit_bias_forces_a_token(serve: Serve) -> None:
    """Token ids come as strings."""
    async with serve() as served:
        token = served.gateway.engines.pools[0].text.encode("a")[0]
        answer = await whole(served, logit_bias={str(token): 100})
    assert answer.choices[0].message.content == "a" * 8


async def test_an_answer_that_was_given_before_comes_from_the_cache(serve: Serve) -> None:
    """The headers say so, and `Cache-Control: no-store` bypasses the cache."""
    async with serve() as served:
        full = (await whole(served, max_tokens=24, extra_body=UNENDED)).choices[0].message.content
        # Only answers that end of themselves are stored; this one does, because it is cut at a stop string.
        ask: dict[str, Any] = {
            "model": "small",
            "messages": USER,
            "temperature": 0,
            "max_tokens": 24,
            "stop": full[5:8],
            "extra_body": UNENDED,
        }
        create = served.client.chat.completions.with_raw_response.create
        first = await create(**ask)
        second = await create(**ask)
        third = await create(**ask, extra_headers={"cache-control": "no-store"})
        chunks = await served.client.chat.completions.with_raw_response.create(**ask, stream=True)
    outcomes = [raw.headers["x-roundhouse-cache"] for raw in (first, second, third, chunks)]
    assert outcomes == ["miss", "hit", "bypass", "hit"]
    assert first.headers["x-roundhouse-tier"] == "small"
    assert first.headers["x-roundhouse-model"] == "tiny-small"
    assert first.headers["x-request-id"] == first.parse()._request_id
    texts = {raw.parse().choices[0].message.content for raw in (first, second, third)}
    assert texts == {full[: full.index(full[5:8])]}


async def test_repeated_prompts_report_cached_tokens(serve: Serve) -> None:
    """The prefix cache's share shows in `prompt_tokens_details`."""
    messages = [{"role": "user", "content": "a long question that fills blocks of the cache " * 3}]
    async with serve() as served:
        for _ in range(2):
            answer = await whole(served, messages=messages, extra_body={"roundhouse": {"cache": "no-store"}})
    assert 0 < answer.usage.prompt_tokens_details.cached_tokens < answer.usage.prompt_tokens


async def test_the_synchronous_client_works_too(serve: Serve) -> None:
    """Whole and streamed, on a thread of its own."""

    def ask(base_url: str) -> tuple[str | None, str]:
        with openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
            answer = client.chat.completions.create(model="auto", messages=USER, max_tokens=6)
            chunks = list(client.chat.completions.create(model="auto", messages=USER, max_tokens=6, stream=True))
        return answer.choices[0].message.content, text_of(chunks)

    async with serve() as served:
        answer, text = await asyncio.to_thread(ask, served.base_url)
    assert answer == text


async def test_a_client_that_leaves_its_stream_ends_the_turn(serve: Serve, engine: EngineThread) -> None:
    """Closing the stream after the first text ends it in the engine, before the answer would have ended."""
    before = engine.core.load().output_tokens
    async with serve() as served:
        stream = await whole(served, stream=True, max_tokens=3000, extra_body=UNENDED)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        await served.settle()
        await eventually(lambda: engine.core.idle)
    assert engine.core.load().output_tokens - before < 3000


async def test_a_client_that_does_not_wait_for_its_answer_ends_the_turn(serve: Serve, engine: EngineThread) -> None:
    """The same for whole answers, of all `n`."""
    before = engine.core.load().output_tokens
    async with serve() as served:
        task = asyncio.create_task(whole(served, max_tokens=3000, n=2, extra_body=UNENDED))
        await eventually(lambda: served.gateway.engines.live == 2, served.leftovers)
        task.cancel()
        await served.settle()
        await eventually(lambda: engine.core.idle)
    assert engine.core.load().output_tokens - before < 6000


async def test_a_drain_tells_streams_that_they_were_cut_off(serve: Serve) -> None:
    """A stream that a restart ends has an error as its last event, never a finish reason."""
    async with serve() as served:
        stream = await whole(served, stream=True, max_tokens=3000, extra_body=UNENDED)
        with pytest.raises(openai.APIError) as caught:
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    await served.gateway.turns.drain(0)
        await served.settle()
    assert caught.value.code == "draining"


async def test_templates_and_engines_are_told_more_than_openai_can_say(serve: Serve) -> None:
    """Variables of the chat template, and tokens that end the answer."""
    async with serve() as served:
        plain = await whole(served, max_tokens=1)
        without = await whole(served, max_tokens=1, extra_body={"add_generation_prompt": False})
        assert without.usage.prompt_tokens < plain.usage.prompt_tokens
        continued = await whole(
            served,
            messages=[*USER, {"role": "assistant", "content": "I am"}],
            extra_body={"continue_final_message": True, "add_generation_prompt": False},
        )
        raw = await served.client.completions.create(
            model="small", prompt="<|user|>hello\n<|assistant|>I am", max_tokens=8, temperature=0
        )
        assert continued.choices[0].message.content == raw.choices[0].text
        assert continued.usage.prompt_tokens == raw.usage.prompt_tokens
        ended = await whole(served, extra_body={"stop_token_ids": [70], "logit_bias": {"70": 100}})
        assert (ended.choices[0].finish_reason, ended.usage.completion_tokens) == ("stop", 1)
        await served.settle()


async def test_control_tokens_show_if_asked_for(serve: Serve, model: Path, tmp_path: Path) -> None:
    """Whole and streamed, in a prompt of tokens that is repeated, and in the offsets of scores."""
    text = TextProcessor.from_path(model)
    engine = FrameEngine(tmp_path / "engine.sock", {})
    engine.script = lambda request: [[token] for token in text.encode("a<|user|>b</s>")]
    prompt = text.encode("<|user|>hi")
    async with engine.serving(), serve(engines={"small": [engine.address]}) as served:
        for skip, begun, shown in ((True, "hi", "ab"), (False, "<|user|>hi", "a<|user|>b</s>"), (True, "hi", "ab")):
            extra = {"skip_special_tokens": skip}
            complete = partial(served.client.completions.create, model="small", prompt=prompt, extra_body=extra)
            assert (await whole(served, extra_body=extra)).choices[0].message.content == shown
            assert text_of(await streamed(served, extra_body=extra)) == shown
            assert (await complete(echo=True)).choices[0].text == begun + shown
            scores = (await complete(logprobs=0)).choices[0].logprobs
            assert scores is not None and scores.text_offset == ([0, 1, 1, 2] if skip else [0, 1, 9, 10])
        await served.settle()


async def test_the_control_token_that_ends_an_answer_never_shows(serve: Serve) -> None:
    async with serve() as served:
        extra = {"skip_special_tokens": False, "logit_bias": {"2": 100}}
        answer = await whole(served, extra_body=extra)
        endless = await whole(served, extra_body=extra | UNENDED)
        await served.settle()
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("", "stop")
    assert endless.choices[0].message.content == "</s>" * 8
