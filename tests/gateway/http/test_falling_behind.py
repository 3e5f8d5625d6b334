"""A client that does not keep up with an answer gets OpenAI's stream all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from tests.gateway.conftest import Serve, Served, eventually, text_of
from tests.gateway.pipeline.sources.conftest import TEXT, Speaker, speaker, speaking
from tests.gateway.sockets import ask

__all__ = ["speaker"]

pytestmark = pytest.mark.anyio

ADAPTER: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
LONG = TEXT * 40
WAITING = 300
ASKED: dict[str, Any] = {"model": "auto", "input": "hello"}


async def by_http(served: Served, *, events: bool) -> list[dict[str, Any]]:
    headers = {"idempotency-key": "once", "x-roundhouse-events": str(events).lower()}
    stream = await served.client.responses.create(**ASKED, stream=True, extra_headers=headers)
    return [event.to_dict() async for event in stream]


async def by_socket(served: Served, *, events: bool) -> list[dict[str, Any]]:
    async with served.connect(events=events) as socket:
        return await ask(socket, ASKED["input"], model=ASKED["model"], idempotency_key="once")


@pytest.mark.parametrize("door", [by_http, by_socket])
async def test_every_event_is_openais_and_numbered_without_a_gap(serve: Serve, speaker: Speaker, door: Any) -> None:
    """More tokens wait for it than are read at once. In a stream with events of ours they are merged."""
    watched = asyncio.Event()
    steps = 0

    async def pace() -> None:
        nonlocal steps
        steps += 1
        await (watched.wait() if steps == WAITING else asyncio.sleep(0))

    speaker.text, speaker.engine.pace = LONG, pace
    async with speaking(serve, speaker) as served:
        first = asyncio.create_task(served.client.responses.create(**ASKED, extra_headers={"idempotency-key": "once"}))
        await eventually(lambda: steps == WAITING)
        watching = [asyncio.create_task(door(served, events=events)) for events in (False, True)]
        await eventually(lambda: served.gateway.turns.viewers == 3)
        watched.set()
        plain, ours = await asyncio.gather(*watching)
        whole = (await first).output_text
    for event in plain:
        ADAPTER.validate_python(event, strict=True)
    assert [event["sequence_number"] for event in plain] == list(range(len(plain)))
    assert text_of(plain) == text_of(ours) == whole == LONG
    numbers = [event["sequence_number"] for event in ours]
    assert numbers == sorted(set(numbers)) and len(ours) < len(plain) < numbers[-1]
