"""The embedder under `roundhouse serve`: starts after the chat, comes back when it dies, ends with the rest.

Each of its starts takes a core for eight seconds.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import openai
import pytest

from tests.e2e.conftest import DEADLINE, KEY, installation


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_embeddings_come_after_the_chat_and_come_back(killed: bool, engine: str) -> None:
    """A chat never waits for them. What has died is started again as an engine is, of which `test_serve` kills one."""
    with (
        installation(tiers=(), served={"small": engine}, ROUNDHOUSE_EMBEDDER_ENABLED="true") as running,
        openai.OpenAI(base_url=running.api, api_key=KEY, max_retries=0) as client,
    ):
        chat = client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "What is Roundhouse?"}], max_tokens=4
        )
        assert chat.choices[0].message.content
        until(lambda: embeds(client))
        if killed:
            [before] = running.pids("cache.embedder")
            os.kill(before, signal.SIGKILL)
            until(lambda: running.pids("cache.embedder") not in ([], [before]))
            until(lambda: embeds(client))
        assert running.stop() == 0
        assert not running.pids("cache.embedder")


def test_a_model_that_cannot_be_loaded_costs_embeddings_only(engine: str) -> None:
    """It is said on the terminal; the chat goes on."""
    with installation(
        tiers=(),
        served={"small": engine},
        ROUNDHOUSE_EMBEDDER_ENABLED="true",
        ROUNDHOUSE_EMBEDDER_MODEL="/nowhere",
    ) as running:
        assert running.process.stdout
        assert any(b"without embeddings" in line for line in running.process.stdout)
        with openai.OpenAI(base_url=running.api, api_key=KEY, max_retries=0) as client:
            assert not embeds(client)
            assert client.chat.completions.create(
                model="small", messages=[{"role": "user", "content": "hello"}], max_tokens=1
            ).choices


def embeds(client: openai.OpenAI) -> bool:
    try:
        return len(client.embeddings.create(model="all-MiniLM-L6-v2", input="hello").data[0].embedding) == 384
    except openai.InternalServerError as error:
        assert error.status_code == 503
        return False
