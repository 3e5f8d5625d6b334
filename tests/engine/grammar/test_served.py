"""Grammars over the wire: what a client of an engine process sees."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.client.answer_stream import GenerationResult
from engine.client.engine_client import EngineClient
from engine.client.generation import RequestFailed, RequestInvalid
from engine.server.host import EngineServer
from engine.wire import Grammar, SamplingParams
from tests.engine.grammar import engines
from tests.engine.grammar.conftest import Model
from tests.engine.grammar.engines import TIMEOUT, Engine
from tests.engine.grammar.test_constrained import CHOICE, COLOURS, DATE, PROMPT, is_date

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(model: Model, tmp_path: Path) -> AsyncIterator[tuple[Engine, EngineClient]]:
    with engines.engine(model()) as engine:
        async with (
            asyncio.timeout(TIMEOUT),
            EngineServer(engine.core).listening(f"unix://{tmp_path}/socket") as address,
            EngineClient(address) as client,
        ):
            await client.wait_connected()
            yield engine, client


async def answer(served: tuple[Engine, EngineClient], grammar: Grammar, seed: int = 0) -> tuple[str, GenerationResult]:
    engine, client = served
    sampling = SamplingParams(max_tokens=100, seed=seed)
    async with client.generate(PROMPT, sampling, text=engine.text, grammar=grammar) as generation:
        text = "".join([delta.text async for delta in generation])
    return text, generation.result


async def test_an_idle_engine_wakes_up_when_the_grammar_is_compiled(served: tuple[Engine, EngineClient]) -> None:
    text, result = await answer(served, DATE)
    assert is_date(text)
    assert result.finish_reason == "stop"


async def test_the_last_token_of_a_complete_answer_is_shown_and_an_end_of_sequence_token_is_not(
    served: tuple[Engine, EngineClient],
) -> None:
    answers = await asyncio.gather(*(answer(served, CHOICE, seed) for seed in range(6)))
    answers += await asyncio.gather(*(answer(served, Grammar("regex", "(a|b)+"), seed) for seed in range(6)))
    assert all(text in COLOURS for text, _ in answers[:6])
    assert all(text and set(text) <= {"a", "b"} for text, result in answers[6:] if result.finish_reason == "stop")


async def test_a_bad_grammar_is_refused(served: tuple[Engine, EngineClient]) -> None:
    with pytest.raises(RequestFailed, match="grammar: invalid regex") as caught:
        await answer(served, Grammar("regex", "("))
    assert isinstance(caught.value, RequestInvalid)
    assert (caught.value.field, caught.value.started) == ("grammar", False)


async def test_a_grammar_that_is_too_large_is_refused_at_once(served: tuple[Engine, EngineClient]) -> None:
    with pytest.raises(RequestFailed, match="grammar: more than 131072 bytes"):
        await answer(served, Grammar("choice", json.dumps(["x" * 140_000])))
    assert served[0].compiler.compilations == 0
