"""Every kind of server that a pool may be does the same for a gateway, or refuses in the same way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from engine.client.generation import Delta, EngineGone, EngineOverloaded, Generation, RequestInvalid
from engine.client.upstream import Upstream
from engine.wire import Grammar, SamplingParams
from gateway.protocol.requests import Message, TurnRequest
from gateway.protocol.stream import ArgumentsDelta, CallBegun, CallEnded
from gateway.protocol.tools import Tool, ToolUse
from gateway.tools.answer import AnswerReader
from gateway.tools.formats import tool_format
from tests.gateway.conftest import EngineThread
from tests.gateway.upstreams import subjects
from tests.gateway.upstreams.doubles import Sglang, Vllm
from tests.gateway.upstreams.faulty_proxy import RETRY_AFTER, FaultyProxy
from tests.gateway.upstreams.subjects import SUBJECTS, Subject

pytestmark = pytest.mark.anyio

FEATURES: dict[str, str] = {}
"""What each test of this file asks for, by the test's name."""
REFUSED: dict[str, frozenset[str]] = {}
"""Servers that refuse what a test asks for, which the test checks too."""
_Test = TypeVar("_Test", bound=Callable[..., Any])


def feature(what: str, *, refused: tuple[str, ...] = ()) -> Callable[[_Test], _Test]:
    """Make a test a row of the conformance table."""

    def row(test: _Test) -> _Test:
        FEATURES[test.__name__], REFUSED[test.__name__] = what, frozenset(refused)
        return test

    return row


@pytest.fixture(scope="session")
def llama_cpp(smallest_model: Path) -> Iterator[str]:
    pytest.importorskip("xllamacpp")
    with subjects.llama_server(smallest_model) as address:
        yield address


@pytest.fixture(params=SUBJECTS)
async def subject(request: pytest.FixtureRequest, engine: EngineThread, model: Path) -> AsyncIterator[Subject]:
    async with asyncio.timeout(250), AsyncExitStack() as stack:
        match request.param:
            case "llama.cpp" | "llama.cpp-llguidance":
                address = request.getfixturevalue("llama_cpp")
                found = subjects.of_llama_cpp(request.param, address, request.getfixturevalue("smallest_model"))
            case "vllm":
                found = subjects.of_double(Vllm, engine.address, model)
            case "sglang":
                found = subjects.of_double(Sglang, engine.address, model)
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


def greedy(tokens: int, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True, **fields})


def prompt(subject: Subject, text: str = "Name three colours.") -> list[int]:
    return subject.text.encode_chat([{"role": "user", "content": text}])


def ask(subject: Subject, client: Upstream, tokens: int = 16, **options: Any) -> Generation:
    question = options.pop("question", "Name three colours.")
    sampling = options.pop("sampling", None) or greedy(tokens)
    return client.generate(prompt(subject, question), sampling, text=subject.text, **options)


async def collect(generation: Generation) -> list[Delta]:
    async with generation:
        return [delta async for delta in generation]


async def text_of(generation: Generation) -> str:
    return "".join(delta.text for delta in await collect(generation))


async def until_running(subject: Subject, count: int) -> None:
    while await subject.running() != count:  # noqa: ASYNC110  nothing announces it
        await asyncio.sleep(0.01)


@feature("Answers stream, and end with their usage")
async def test_an_answer_streams_and_ends_with_its_usage(subject: Subject, client: Upstream) -> None:
    generation = ask(subject, client)
    deltas = await collect(generation)
    tokens = [token for delta in deltas for token in delta.token_ids]
    assert "".join(delta.text for delta in deltas) == subject.text.decode(tokens)
    assert generation.result.finish_reason == "length"
    usage = generation.result.usage
    assert (usage.prompt_tokens, usage.output_tokens, len(tokens)) == (len(prompt(subject)), 16, 16)
    running = ask(subject, client, tokens=subject.long)
    await anext(running)
    assert not running.ended_in_engine
    running.cancel()
    again = ask(subject, client)
    await collect(again)
    assert 0 <= again.result.usage.cached_tokens < usage.prompt_tokens


@feature("A greedy answer is the same alone and among others")
async def test_an_answer_is_the_same_among_others(subject: Subject, client: Upstream) -> None:
    questions = ["Name three colours.", "What is a train?", "Count to five."]
    alone = [await text_of(ask(subject, client, question=question)) for question in questions]
    together = await asyncio.gather(*(text_of(ask(subject, client, question=question)) for question in questions))
    assert together == alone


@feature("Stop strings, which also end the answer in the server")
async def test_a_stop_string_ends_the_answer_in_the_server(subject: Subject, client: Upstream) -> None:
    whole = await text_of(ask(subject, client, tokens=24))
    stop = whole[len(whole) // 2 :][:3]
    generation = ask(subject, client, tokens=subject.long, stop=[stop])
    assert await text_of(generation) == whole[: whole.index(stop)]
    assert (generation.result.finish_reason, generation.result.stop) == ("stop", stop)
    await until_running(subject, 0)


@feature("Stop tokens")
async def test_a_stop_token_ends_the_answer(subject: Subject, client: Upstream) -> None:
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


@feature("Log-probabilities, with the likeliest other tokens")
async def test_log_probabilities_come_with_their_tokens(subject: Subject, client: Upstream) -> None:
    deltas = await collect(ask(subject, client, sampling=greedy(8, logprobs=3)))
    tokens = [token for delta in deltas for token in delta.token_ids]
    scores = [entry for delta in deltas for entry in delta.logprobs or ()]
    assert [entry.token for entry in scores] == tokens
    for entry in scores:
        assert entry.logprob <= 0
        # Greedy: the token is the likeliest one.
        assert entry.top[0] == (entry.token, pytest.approx(entry.logprob))
        assert [value for _, value in entry.top] == sorted((value for _, value in entry.top), reverse=True)
        assert len(entry.top) == 3


@feature("JSON Schema")
async def test_an_answer_follows_a_json_schema(subject: Subject, client: Upstream) -> None:
    schema = {
        "type": "object",
        "properties": {"sure": {"type": "boolean"}},
        "required": ["sure"],
        "additionalProperties": False,
    }
    grammar = Grammar("json_schema", json.dumps(schema))
    generation = ask(subject, client, sampling=greedy(400, ignore_eos=False), grammar=grammar)
    answer = json.loads(await text_of(generation))
    assert answer in ({"sure": True}, {"sure": False})
    assert generation.result.finish_reason == "stop"


SIGNS = 'é 漢字 "🎉" \\ x'
"""Characters that are spread over several tokens."""


@feature("Choices, and characters of several tokens")
async def test_an_answer_is_one_of_several(subject: Subject, client: Upstream) -> None:
    grammar = Grammar("choice", json.dumps([SIGNS], ensure_ascii=False))
    deltas = await collect(ask(subject, client, sampling=greedy(100, ignore_eos=False), grammar=grammar))
    assert "".join(delta.text for delta in deltas) == SIGNS
    tokens = [token for delta in deltas for token in delta.token_ids]
    assert subject.text.decode(tokens) == SIGNS


@feature("Regular expressions", refused=("llama.cpp",))
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
    call = '<tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call>'
    grammar = Grammar("choice", json.dumps([call]))
    tools = ToolUse(tools=(Tool("now"),), allowed=("now",))
    request = TurnRequest(model="auto", messages=(Message("user", "What time is it?"),), tools=tools)
    reader = AnswerReader(request, tool_format(call, "hermes"), lambda: "call_1")
    events = []
    for delta in await collect(ask(subject, client, sampling=greedy(200, ignore_eos=False), grammar=grammar)):
        events += reader.read(delta.text, delta.token_ids, ())
    events += reader.finish()
    assert [each.name for each in events if isinstance(each, CallBegun)] == ["now"]
    arguments = "".join(each.text for each in events if isinstance(each, ArgumentsDelta))
    assert json.loads(arguments) == {"zone": "UTC"}
    assert [each.complete for each in events if isinstance(each, CallEnded)] == [True]


@feature("Calls and strict arguments that are enforced", refused=("llama.cpp", "vllm", "sglang"))
async def test_enforced_calls_are_a_grammar(subject: Subject, client: Upstream) -> None:
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


@feature("An interrupted answer goes on at its next token")
async def test_an_interrupted_answer_goes_on(subject: Subject, client: Upstream) -> None:
    count = subject.long // 30  # not there yet when its first token is
    whole = await text_of(ask(subject, client, tokens=count))
    generation = ask(subject, client, tokens=count)
    said = [(await anext(generation)).text]
    assert client.hand_on() == 1
    with pytest.raises(EngineGone) as lost:
        while True:
            said.append((await anext(generation)).text)
    assert lost.value.started and lost.value.leaving
    client.resume(generation)
    said += [delta.text for delta in await collect(generation)]
    assert "".join(said) == whole
    assert generation.result.usage.output_tokens == count


@feature("A prompt that is too long is refused, and says so")
async def test_a_prompt_that_is_too_long_is_refused(subject: Subject, client: Upstream) -> None:
    assert client.info is not None
    with pytest.raises(RequestInvalid, match="shorten the prompt") as refused:
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
        generation = ask(subject, client, tokens=subject.long)
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
