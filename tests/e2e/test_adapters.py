"""The shipped model's adapters, from `roundhouse serve` to the answers: real processes, real weights."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import openai
import pytest

from tests.e2e.conftest import KEY, Installation

pytestmark = pytest.mark.anyio

NAMES = ("json", "pirate", "small")
QUESTION = "What is a prefix cache?"


async def answer(client: openai.AsyncOpenAI, name: str) -> str:
    """The greedy answer, computed."""
    response = await client.responses.create(
        model=name, input=QUESTION, temperature=0, extra_body={"roundhouse": {"cache": "no-store"}}
    )
    assert response.model == ("roundhouse-demo-2m" if name == "small" else name)
    return response.output_text


def adapter(roundhouse: Installation, *words: str) -> str:
    """`roundhouse adapter ...` as an operator types it."""
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", "adapter", *words],
        env={**os.environ, "ROUNDHOUSE_REDIS_DATA": str(roundhouse.folder / "data")},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


async def test_every_adapter_answers_in_its_own_way(roundhouse: Installation) -> None:
    """All of them and their base at the same time as alone."""
    async with openai.AsyncOpenAI(base_url=roundhouse.api, api_key=KEY) as client:
        alone = {name: await answer(client, name) for name in NAMES}
        together = await asyncio.gather(*(answer(client, name) for name in NAMES * 4))
        parents = {model.id: model.to_dict().get("parent") for model in (await client.models.list()).data}
    assert together == [alone[name] for name in NAMES * 4]
    assert "th'" in alone["pirate"]
    assert alone["json"].startswith('{"answer": "')
    assert not alone["small"].startswith("{") and "th'" not in alone["small"]
    assert {parents[name] for name in NAMES[:2]} == {"roundhouse-demo-2m"}


async def test_a_name_swapped_under_load_answers_wholly_old_or_wholly_new(roundhouse: Installation) -> None:
    async with asyncio.timeout(90), openai.AsyncOpenAI(base_url=roundhouse.api, api_key=KEY) as client:
        old, new = await answer(client, "pirate"), await answer(client, "json")
        version = adapter(roundhouse, "show", "json").partition("version ")[2][:12]
        stop = asyncio.Event()

        async def ask() -> list[str]:
            answers = []
            while not stop.is_set():
                answers.append(await answer(client, "pirate"))
            return answers

        clients = [asyncio.create_task(ask()) for _ in range(4)]
        said = await asyncio.to_thread(adapter, roundhouse, "swap", "pirate", version)
        back = said.split("back: roundhouse adapter ")[1]
        while await answer(client, "pirate") != new:
            pass
        stop.set()
        answers = [text for task in clients for text in await task]
        assert set(answers) <= {old, new}
        adapter(roundhouse, *back.split())
        while await answer(client, "pirate") != old:
            pass
