"""Every kind of server that a pool may be does the same for a gateway, or refuses in the same way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from engine.client.conversation import TextPart
from engine.client.generation import EngineGone, EngineOverloaded, Generation, RequestInvalid
from engine.client.upstream import Upstream
from engine.wire import Grammar
from gateway.protocol.requests import Message, TurnRequest
from gateway.protocol.stream import ArgumentsDelta, CallBegun, CallEnded
from gateway.protocol.tools import Tool, ToolUse
from gateway.tools.answer import AnswerReader
from gateway.tools.formats import tool_format
from tests.gateway.conftest import EngineThread
from tests.gateway.upstreams import subjects
from tests.gateway.upstreams.conformance import (
    CALL,
    GRAMMARS,
    NOW,
    QUESTION,
    REFUSED,
    WITHOUT,
    ask,
    collect,
    expect_call,
    feature,
    greedy,
    prompt,
    text_of,
    until_running,
)
from tests.gateway.upstreams.doubles import Sglang, Vllm
from tests.gateway.upstreams.faulty_proxy import RETRY_AFTER, FaultyProxy
from tests.gateway.upstreams.message_doubles import Ollama, Tgi
from tests.gateway.upstreams.nvidia_doubles import TensorrtLlm
from tests.gateway.upstreams.subjects import OF_MESSAGES, SUBJECTS, Subject

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session")
def llama_cpp(smallest_model: Path) -> Iterator[str]:
    pytest.importorskip("xllamacpp")
    with subjects.llama_server(smallest_model) as address:
        yield address


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "subject" in metafunc.fixturenames:
        metafunc.parametrize("subject", subjects.servers(metafunc.function.__name__ in GRAMMARS), indirect=True)


@pytest.fixture
async def subject(request: pytest.FixtureRequest, engine: EngineThread, model: Path) -> AsyncIterator[Subject]:
    if request.param == subjects.VLLM_ITSELF:
        request.getfixturevalue("vllm")  # it takes minutes to start
    async with asyncio.timeout(250), AsyncExitStack() as stack:
        match request.param:
            case "llama.cpp" | subjects.LLGUIDANCE | "openai" | "anthropic":
                address = request.getfixturevalue("llama_cpp")
                found = subjects.of_llama_cpp(request.param, address, request.getfixturevalue("smallest_model"))
            case "onnxruntime":
                found = subjects.of_onnxruntime(request.getfixturevalue("onnxruntime"), model)
            case "vllm":
                found = subjects.of_double(Vllm, engine.address, model)
            case subjects.VLLM_ITSELF:
                found = subjects.of_vllm(request.getfixturevalue("vllm"))
            case "sglang":
                found = subjects.of_double(Sglang, engine.address, model)
            case "tensorrt-llm":
                found = subjects.of_double(TensorrtLlm, engine.address, model)
            case "ollama" | "tgi":
                found = subjects.of_message_double({"ollama": Ollama, "tgi": Tgi}[request.param], engine.address, model)
            case _:
                found = subjects.of_roundhouse(engine.address, model)
        yield await stack.enter_async_context(found)


@pytest.fixture
async def client(subject: Subject) -> AsyncIterator[Upstream]:
    async with subject.connected() as client:
        yield client


@pytest.fixture
async def proxy(subject: Subject) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy(subject.address).running() as proxy:
        yield proxy


@feature("Answers stream, and end with their usage")
async def test_an_answer_streams_and_ends_with_its_usage(subject: Subject, client: Upstream) -> None:
    generation = ask(subject, client)
    deltas = await collect(generation)
    assert generation.result.finish_reason == "length"
    usage = generation.result.usage
    assert usage.output_tokens == 16
    if subject.takes_messages:
        assert usage.prompt_tokens > 0
    else:
        tokens = [token for delta in deltas for token in delta.token_ids]
        assert "".join(delta.text for delta in deltas) == subject.text.decode(tokens)
        assert (usage.prompt_tokens, len(tokens)) == (len(prompt(subject)), 16)
    running = ask(subject, client, tokens=subject.long)
    await anext(running)
    assert client.live == 1
    running.cancel()
    again = ask(subject, client)
    await collect(again)
    assert 0 <= again.result.usage.cached_tokens < usage.prompt_tokens


@feature("A greedy answer is the same alone and among others")
async def test_an_answer_is_the_same_among_others(subject: Subject, client: Upstream) -> None:
    questions = [QUESTION, "What is a train?", "Count to five."]
    alone = [await text_of(ask(subject, client, 8, question=question)) for question in questions]
    together = await asyncio.gather(*(text_of(ask(subject, client, 8, question=question)) for question in questions))
    assert together == alone


@feature("Stop strings, which also end the answer in the server")
async def test_a_stop_string_ends_the_answer_in_the_server(subject: Subject, client: Upstream) -> None:
    whole = await text_of(ask(subject, client, tokens=24))
    stop = whole[len(whole) // 2 :][:3]
    generation = ask(subject, client, tokens=subject.long, stop=[stop])
    assert await text_of(generation) == whole[: whole.index(stop)]
    assert (generation.result.finish_reason, generation.result.stop) == ("stop", stop)
    await until_running(subject, 0)


@feature("Stop tokens", refused=OF_MESSAGES)
async def test_a_stop_token_ends_the_answer(subject: Subject, client: Upstream) -> None:
    if subject.name in REFUSED["test_a_stop_token_ends_the_answer"]:
        with pytest.raises(RequestInvalid, match="stop_token_ids"):
            ask(subject, client, sampling=greedy(4, stop_token_ids=(5,)))
        return
    whole = [token for delta in await collect(ask(subject, client)) for token in delta.token_ids]
    stop = whole[-1]
    generation = ask(subject, client, sampling=greedy(subject.long, stop_token_ids=(stop,)))
    tokens = [token for delta in await collect(generation) for token in delta.token_ids]
    assert tokens == whole[: whole.index(stop)]
    assert generation.result.finish_reason == "stop"


@feature("Cancelling an answer frees its place in the server")
async def test_cancelling_frees_its_place(subject: Subject, client: Upstream) -> None:
    generation = ask(subject, client, tokens=subject.long)
    await anext(generation)
    generation.cancel()
    await until_running(subject, 0)
    assert client.live == 0
    await client.idle()


@feature("Log-probabilities, with the likeliest other tokens", refused=("tensorrt-llm", "anthropic"))
async def test_log_probabilities_come_with_their_tokens(subject: Subject, client: Upstream) -> None:
    if subject.name in REFUSED["test_log_probabilities_come_with_their_tokens"]:
        with pytest.raises(RequestInvalid, match="logprobs"):
            ask(subject, client, sampling=greedy(8, logprobs=3))
        return
    deltas = await collect(ask(subject, client, sampling=greedy(8, logprobs=3)))
    if subject.takes_messages:
        parts = [part for delta in deltas for part in delta.parts if isinstance(part, TextPart)]
        told = [entry for part in parts for entry in part.logprobs]
        assert len(told) == 8
        assert "".join(part.text for part in parts).startswith(told[0].token)
        for each in told:
            assert each.logprob <= 0
            assert (each.top[0].bytes, len(each.top)) == (each.bytes, 3)
        return
    tokens = [token for delta in deltas for token in delta.token_ids]
    scores = [entry for delta in deltas for entry in delta.logprobs or ()]
    assert [entry.token for entry in scores] == tokens
    for entry in scores:
        assert entry.logprob <= 0
        # Greedy: the token is the likeliest one.
        assert entry.top[0] == (entry.token, pytest.approx(entry.logprob))
        assert [value for _, value in entry.top] == sorted((value for _, value in entry.top), reverse=True)
        assert len(entry.top) == 3


@feature("JSON Schema", refused=("anthropic",), grammar=True)
async def test_an_answer_follows_a_json_schema(subject: Subject, client: Upstream) -> None:
    schema = {
        "type": "object",
        "properties": {"sure": {"type": "boolean"}},
        "required": ["sure"],
        "additionalProperties": False,
    }
    grammar = Grammar("json_schema", json.dumps(schema))
    if subject.name in REFUSED["test_an_answer_follows_a_json_schema"]:
        with pytest.raises(RequestInvalid, match="grammar"):
            ask(subject, client, grammar=grammar)
        return
    generation = ask(subject, client, sampling=greedy(400, ignore_eos=False), grammar=grammar)
    answer = json.loads(await text_of(generation))
    assert answer in ({"sure": True}, {"sure": False})
    assert generation.result.finish_reason == "stop"


SIGNS = 'é 漢字 "🎉" \\ x'
"""Characters that are spread over several tokens."""


@feature("Choices, and characters of several tokens", refused=OF_MESSAGES, grammar=True)
async def test_an_answer_is_one_of_several(subject: Subject, client: Upstream) -> None:
    grammar = Grammar("choice", json.dumps([SIGNS], ensure_ascii=False))
    if subject.name in REFUSED["test_an_answer_is_one_of_several"]:
        with pytest.raises(RequestInvalid, match="grammar"):
            ask(subject, client, grammar=grammar)
        return
    deltas = await collect(ask(subject, client, sampling=greedy(100, ignore_eos=False), grammar=grammar))
    assert "".join(delta.text for delta in deltas) == SIGNS
    tokens = [token for delta in deltas for token in delta.token_ids]
    assert subject.text.decode(tokens) == SIGNS


@feature("Regular expressions", refused=("llama.cpp", "openai", "anthropic", "ollama"), grammar=True)
async def test_an_answer_matches_an_expression(subject: Subject, client: Upstream) -> None:
    grammar = Grammar("regex", "[ab]{5}")
    asked = {"sampling": greedy(20, ignore_eos=False), "grammar": grammar}
    if subject.name in REFUSED["test_an_answer_matches_an_expression"]:
        with pytest.raises(RequestInvalid, match="grammar"):
            ask(subject, client, **asked)
        return
    answer = await text_of(ask(subject, client, **asked))
    assert len(answer) == 5 and set(answer) <= {"a", "b"}


@feature("Function calls, as the model writes them")
async def test_calls_are_read_out_of_the_answer(subject: Subject, client: Upstream) -> None:
    if subject.takes_messages:
        must_call = subject.name != "ollama"
        await expect_call(ask(subject, client, 60, question="What time is it?", tools=[NOW], must_call=must_call))
        return
    grammar = Grammar("choice", json.dumps([CALL]))
    tools = ToolUse(tools=(Tool("now"),), allowed=("now",))
    request = TurnRequest(model="auto", messages=(Message("user", "What time is it?"),), tools=tools)
    reader = AnswerReader(request, tool_format(CALL, "hermes"), lambda: "call_1")
    events = []
    for delta in await collect(ask(subject, client, sampling=greedy(200, ignore_eos=False), grammar=grammar)):
        events += reader.read(delta.text, delta.token_ids, ())
    events += reader.finish()
    assert [each.name for each in events if isinstance(each, CallBegun)] == ["now"]
    arguments = "".join(each.text for each in events if isinstance(each, ArgumentsDelta))
    assert json.loads(arguments) == {"zone": "UTC"}
    assert [each.complete for each in events if isinstance(each, CallEnded)] == [True]


@feature(
    "Calls and strict arguments that are enforced",
    refused=("llama.cpp", "vllm", "sglang", "tensorrt-llm", "anthropic", "ollama", "tgi"),
    grammar=True,
)
async def test_enforced_calls_are_a_grammar(subject: Subject, client: Upstream) -> None:
    if subject.takes_messages:
        strict = msgspec.structs.replace(NOW, strict=True)
        asked = {"tokens": 60, "question": "What time is it?", "tools": [strict], "must_call": True}
        if subject.name in REFUSED["test_enforced_calls_are_a_grammar"]:
            with pytest.raises(RequestInvalid, match="tools"):
                ask(subject, client, **asked)
        else:
            await expect_call(ask(subject, client, **asked))
        return
    grammar = Grammar("lark", 'start: "yes" | "no"')
    asked = {"sampling": greedy(20, ignore_eos=False), "grammar": grammar}
    if subject.name in REFUSED["test_enforced_calls_are_a_grammar"]:
        with pytest.raises(RequestInvalid, match="grammar"):
            ask(subject, client, **asked)
        return
    assert await text_of(ask(subject, client, **asked)) in ("yes", "no")


@feature("Log-probabilities of the prompt", refused=SUBJECTS[1:])
async def test_the_prompt_has_log_probabilities(subject: Subject, client: Upstream) -> None:
    sampling = greedy(1, prompt_logprobs=0)
    if subject.name in REFUSED["test_the_prompt_has_log_probabilities"]:
        with pytest.raises(RequestInvalid, match="prompt_logprobs"):
            ask(subject, client, sampling=sampling)
        return
    generation = ask(subject, client, sampling=sampling)
    await collect(generation)
    assert len(generation.prompt_logprobs) == len(prompt(subject))


@feature("An adapter that it does not have is refused")
async def test_an_unknown_adapter_is_refused(subject: Subject, client: Upstream) -> None:
    with pytest.raises(RequestInvalid, match="adapter"):
        await collect(ask(subject, client, adapter="a" * 32))


@feature("An interrupted answer goes on at its next token", without=OF_MESSAGES)
async def test_an_interrupted_answer_goes_on(subject: Subject, proxy: FaultyProxy) -> None:
    async with subject.connected(proxy.address) as client:
        whole = await text_of(ask(subject, client, tokens=subject.long // 20))
        proxy.slow = True
        generation = ask(subject, client, tokens=subject.long // 20)
        said = [(await anext(generation)).text]
        handed, proxy.slow = client.hand_on(), False
        if subject.name in WITHOUT["test_an_interrupted_answer_goes_on"]:
            assert (handed, client.resumes) == (0, False)
        else:
            assert isinstance(generation, Generation) and handed == 1
            with pytest.raises(EngineGone) as lost:
                while True:
                    said.append((await anext(generation)).text)
            assert lost.value.started and lost.value.leaving
            client.resume(generation)
        said += [delta.text for delta in await collect(generation)]
        assert "".join(said) == whole
        assert subject.takes_messages or generation.result.usage.output_tokens == subject.long // 20


@feature("A prompt that is too long is refused, and says so")
async def test_a_prompt_that_is_too_long_is_refused(subject: Subject, client: Upstream) -> None:
    assert client.info is not None
    with pytest.raises(RequestInvalid, match="shorten the prompt") as refused:
        if subject.takes_messages:
            ask(subject, client, question="train " * client.info.context)
        else:
            await collect(client.generate([5] * client.info.context, greedy(1)))
    assert refused.value.field == "prompt"


@feature("A server that is too busy says when to come back")
async def test_a_busy_server_says_when_to_come_back(subject: Subject, proxy: FaultyProxy, model: Path) -> None:
    """An engine of ours has as many requests as it takes."""
    if subject.name == "roundhouse":
        with EngineThread(model, max_running=1, max_waiting=1) as full:
            async with subject.connected(full.address) as client:
                asked = [ask(subject, client, tokens=subject.long) for _ in range(3)]
                with pytest.raises(EngineOverloaded):
                    await anext(asked[-1])
                for generation in asked:
                    generation.cancel()
        return
    async with subject.connected(proxy.address) as client:
        proxy.busy = True
        with pytest.raises(EngineOverloaded) as refused:
            await collect(ask(subject, client))
        assert (refused.value.retry_after, refused.value.started) == (RETRY_AFTER, False)
        proxy.busy = False
        assert await text_of(ask(subject, client))


@feature("A server that dies, and comes back")
async def test_a_server_dies_and_comes_back(subject: Subject, proxy: FaultyProxy) -> None:
    async with subject.connected(proxy.address) as client:
        generation = ask(subject, client, tokens=subject.long)
        await anext(generation)
        await proxy.die()
        with pytest.raises(EngineGone) as lost:
            await collect(generation)
        assert lost.value.started
        while client.connected:  # noqa: ASYNC110  nothing announces it
            await asyncio.sleep(0.01)
        with pytest.raises(EngineGone) as unreachable:
            ask(subject, client)
        assert not unreachable.value.started
        await proxy.rise()
        client.retry()
        await client.wait_connected()
        assert await text_of(ask(subject, client))
    await until_running(subject, 0)


@feature("A server that hangs")
async def test_a_server_that_hangs_counts_as_dead(subject: Subject, proxy: FaultyProxy) -> None:
    """An engine of ours sends a frame each second."""
    async with subject.connected(proxy.address, silence=2.0) as client:
        proxy.slow = True
        generation = ask(subject, client, tokens=subject.long // 20)
        await anext(generation)
        proxy.hang()
        with pytest.raises(EngineGone):
            await collect(generation)
        assert not client.connected


@feature("A connection that breaks in the middle of a message")
async def test_half_a_message_is_no_answer(subject: Subject, proxy: FaultyProxy) -> None:
    async with subject.connected(proxy.address) as client:
        generation = ask(subject, client, tokens=subject.long)
        await anext(generation)
        proxy.cut_after = 10
        with pytest.raises(EngineGone) as lost:
            await collect(generation)
        assert lost.value.started
        await client.wait_connected()
        assert await text_of(ask(subject, client))
