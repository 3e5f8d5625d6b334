"""The demo's adapters, from `roundhouse serve` to the answers: real processes, real weights."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import openai
import pytest

from tests.e2e.conftest import KEY, Installation, installation

pytestmark = pytest.mark.anyio

NAMES = ("formal", "handbook", "json", "pirate", "medium")
QUESTION = "What is a prefix cache?"


@pytest.fixture(scope="module")
def own() -> Iterator[Installation]:
    """One whose registry these tests may change."""
    with installation() as running:
        yield running


async def answer(client: openai.AsyncOpenAI, name: str) -> str:
    """The greedy answer, computed."""
    response = await client.responses.create(
        model=name, input=QUESTION, temperature=0, extra_body={"roundhouse": {"cache": "no-store"}}
    )
    assert response.model == ("roundhouse-demo-6m" if name == "medium" else name)
    return response.output_text


def adapter(own: Installation, *words: str) -> str:
    """`roundhouse adapter ...` as an operator types it."""
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", "adapter", *words],
        env={**os.environ, "ROUNDHOUSE_REDIS_DATA": str(own.folder / "data")},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


async def test_every_adapter_answers_in_its_own_way(own: Installation) -> None:
    """All of them and their base at the same time as alone."""
    async with openai.AsyncOpenAI(base_url=own.api, api_key=KEY) as client:
        alone = {name: await answer(client, name) for name in NAMES}
        together = await asyncio.gather(*(answer(client, name) for name in NAMES * 4))
        parents = {model.id: model.to_dict().get("parent") for model in (await client.models.list()).data}
    assert together == [alone[name] for name in NAMES * 4]
    assert alone["pirate"] != alone["formal"] != alone["medium"]
    assert "th'" in alone["pirate"]
    assert alone["json"].startswith('{"answer": "')
    assert {parents[name] for name in NAMES[:4]} == {"roundhouse-demo-6m"}


async def test_a_name_swapped_under_load_answers_wholly_old_or_wholly_new(own: Installation) -> None:
    async with asyncio.timeout(90), openai.AsyncOpenAI(base_url=own.api, api_key=KEY) as client:
        old, new = await answer(client, "pirate"), await answer(client, "formal")
        version = adapter(own, "show", "formal").partition("version ")[2][:12]
        stop = asyncio.Event()

        async def ask() -> list[str]:
            answers = []
            while not stop.is_set():
                answers.append(await answer(client, "pirate"))
            return answers

        clients = [asyncio.create_task(ask()) for _ in range(4)]
        back = (await asyncio.to_thread(adapter, own, "swap", "pirate", version)).split("back: roundhouse adapter ")[1]
        while await answer(client, "pirate") != new:
            pass
        stop.set()
        answers = [text for task in clients for text in await task]
        assert set(answers) <= {old, new}
        adapter(own, *back.split())
        while await answer(client, "pirate") != old:
            pass
