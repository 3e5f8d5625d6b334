"""`background: true` as the `openai` package sees it."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponsesServerEvent
from pydantic import TypeAdapter

from gateway.turns import turns as turns_module
from tests.gateway.conftest import Serve, Served, eventually, receive
from tests.gateway.pipeline.sources.conftest import TEXT, Speaker, speaker, speaking
from tests.gateway.sockets import assert_error, create
from tests.gateway.turns.test_across_gateways import two

__all__ = ["speaker"]

pytestmark = pytest.mark.anyio

ADAPTER: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
ASKED: dict[str, Any] = {"model": "auto", "input": "hello", "background": True}
IMPATIENT: dict[str, Any] = {"turns": {"orphan_timeout": 0.01}}
"""Settings under which any other turn without a viewer is cancelled at once."""


async def ended(served: Served, id: str) -> Response:
    """Poll as the documentation of OpenAI says."""
    async with asyncio.timeout(20):
        while (response := await served.client.responses.retrieve(id)).status in ("queued", "in_progress"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return response


async def test_it_is_answered_at_once_and_goes_on_alone(serve: Serve, speaker: Speaker) -> None:
    """Polled here and at another gateway; it is not cancelled as an orphan."""
    speaker.engine.gate.clear()
    async with two(serve, engines={"small": [speaker.engine.address]}, **IMPATIENT) as (one, other):
        raw = await one.client.responses.with_raw_response.create(**ASKED)
        made = Response.model_validate_json(raw.http_response.content, strict=True)
        assert (made.status, made.background, made.output_text) == ("in_progress", True, "")
        await eventually(lambda: one.gateway.turns.viewers == 0)
        for served in (one, other):
            while (response := await served.client.responses.retrieve(made.id)).output_text != TEXT:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert response.status == "in_progress"
        speaker.engine.gate.set()
        responses = [await ended(served, made.id) for served in (one, other)]
        assert [(response.status, response.output_text) for response in responses] == [("completed", TEXT)] * 2
        assert (await one.client.responses.create(**{**ASKED, "background": False, "input": "x"})).background is False


async def test_it_can_be_cancelled(serve: Serve, speaker: Speaker) -> None:
    """Also by another gateway; again it changes nothing."""
    speaker.engine.gate.clear()
    async with two(serve, engines={"small": [speaker.engine.address]}) as (one, other):
        for number, served in enumerate((one, other)):
            made = await one.client.responses.create(**{**ASKED, "input": f"{number}"})
            assert (await served.client.responses.cancel(made.id)).status == "cancelled"
            assert (await served.client.responses.cancel(made.id)).status == "cancelled"
        await one.settle()


async def test_a_stream_can_be_left_and_taken_up_again(serve: Serve, speaker: Speaker) -> None:
    """`starting_after`: what follows, without a gap."""
    speaker.engine.gate.clear()
    async with speaking(serve, speaker, **IMPATIENT) as served:
        stream = await served.client.responses.create(**ASKED, stream=True)
        seen = []
        async for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        await eventually(lambda: served.gateway.turns.viewers == 0)
        id, last = seen[0].response.id, seen[-1].sequence_number
        rest = await served.client.responses.retrieve(id, stream=True, starting_after=last)
        speaker.engine.gate.set()
        later = [event async for event in rest]
        assert [event.sequence_number for event in later] == list(range(last + 1, last + 1 + len(later)))
        assert later[-1].type == "response.completed"
        assert "".join(event.delta for event in (*seen, *later) if event.type.endswith("text.delta")) == TEXT
        async with served.client.responses.stream(response_id=id, starting_after=last) as helper:
            assert (await helper.get_final_response()).output_text == TEXT


async def test_one_that_waits_is_queued(serve: Serve, speaker: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is routed; here and at another gateway, which can cancel it."""
    monkeypatch.setattr(turns_module, "QUEUED", 0.05)
    gate = asyncio.Event()
    async with two(serve, engines={"small": [speaker.engine.address]}, **IMPATIENT) as (one, other):
        prepare = one.gateway.turns._pipeline._prepare  # type: ignore[attr-defined]

        async def slow(*arguments: Any) -> Any:
            await gate.wait()
            return await prepare(*arguments)

        monkeypatch.setattr(one.gateway.turns._pipeline, "_prepare", slow)
        made = await one.client.responses.create(**ASKED)
        assert made.status == "queued"
        assert (await other.client.responses.retrieve(made.id)).status == "queued"
        lost = await one.client.responses.create(**{**ASKED, "input": "long " * 5000})
        gate.set()
        assert (await ended(other, made.id)).output_text == TEXT
        failed = await ended(one, lost.id)
        assert failed.status == "failed" and failed.error is not None
        assert failed.error.code == "invalid_prompt"


@pytest.mark.parametrize("routed", [True, False])
async def test_its_stream_begins_with_the_queue(
    serve: Serve, speaker: Speaker, routed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As OpenAI's does: every event of its type, numbered without gaps, the same when it is read again at another
    gateway. One that is refused in the queue was never in progress."""
    monkeypatch.setattr(turns_module, "QUEUED", 0.0)
    asked = ASKED if routed else {**ASKED, "input": "long " * 5000}
    async with two(serve, engines={"small": [speaker.engine.address]}) as (one, other):
        events = [event async for event in await one.client.responses.create(**asked, stream=True)]
        again = [event async for event in await other.client.responses.retrieve(events[0].response.id, stream=True)]
        for event in (*events, *again):
            ADAPTER.validate_python(event.to_dict(), strict=True)
        begin = ["response.created", "response.queued", *(["response.in_progress"] if routed else ["response.failed"])]
        assert [event.type for event in events][:3] == begin
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [event.response.status for event in events[:2]] == ["queued", "queued"]
        assert [(event.type, event.sequence_number) for event in again] == [
            (event.type, event.sequence_number) for event in events
        ]
        await one.settle()


async def test_what_is_refused_at_once_has_its_own_status(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "QUEUED", 3600.0)  # "at once" is sooner than this, on a busy machine too
    async with serve() as served, served.connect() as socket:
        with pytest.raises(openai.NotFoundError):
            await served.client.responses.create(**{**ASKED, "model": "none"})
        with pytest.raises(openai.BadRequestError) as caught:
            await served.client.responses.create(**ASKED, store=False)
        assert caught.value.param == "background"
        await create(socket, background=True)
        assert_error(await receive(socket), 400, "unsupported_parameter", "background")
        await served.settle(connections=1)


async def test_in_a_conversation(serve: Serve, speaker: Speaker) -> None:
    """Its items are there when it has completed."""
    async with speaking(serve, speaker) as served:
        conversation = await served.client.conversations.create()
        made = await served.client.responses.create(**ASKED, conversation=conversation.id)
        assert (await ended(served, made.id)).status == "completed"
        items = [item async for item in served.client.conversations.items.list(conversation.id, order="asc")]
        assert [item.content[0].text for item in items] == ["hello", TEXT]  # type: ignore[union-attr]
