"""`/v1/conversations`, and turns in a conversation, as the `openai` package sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItem, ConversationItemList
from openai.types.responses import Response
from pydantic import TypeAdapter

from gateway.config.safety import SafetySettings
from gateway.turns import conversations as kept
from gateway.turns.conversations import CONVERSATION_KEY
from tests.gateway.conftest import Serve, Served, receive, until_end
from tests.gateway.pipeline.sources.conftest import TEXT, Speaker, speaker, speaking
from tests.gateway.sockets import ask, assert_error, create
from tests.gateway.turns.test_across_gateways import two

__all__ = ["speaker"]

pytestmark = pytest.mark.anyio

ITEM: TypeAdapter[Any] = TypeAdapter(ConversationItem)
SHORT: dict[str, Any] = {"model": "small", "max_output_tokens": 3, "extra_body": {"ignore_eos": True}}
SAID: list[Any] = [
    {"role": "developer", "content": "be brief"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
    {"role": "assistant", "content": "let me see", "id": "msg_1", "status": "completed", "type": "message"},
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}", "created_by": None, "async": None},
    {"type": "function_call_output", "call_id": "c", "output": "rain"},
]


async def texts(served: Served, id: str) -> list[str]:
    """What is said in a conversation."""
    return [text_of(item) async for item in served.client.conversations.items.list(id, order="asc")]


def text_of(item: Any) -> str:
    match item.type:
        case "message":
            return str(item.content[0].text)
        case "function_call":
            return f"{item.name}{item.arguments}"
        case _:
            return str(item.output)


async def raw(served: Served, method: str, path: str, **body: Any) -> bytes:
    """Return the body as it was sent, for a strict validation, which the client itself does not do."""
    url = f"{served.base_url}/{path}"
    response = await served.client._client.request(
        method, url, json=body or None, headers=served.client.auth_headers, timeout=20
    )
    assert response.status_code == 200, response.text
    return response.content


class TestConversations:
    """Without a turn."""

    async def test_are_made_read_changed_and_deleted(self, serve: Serve) -> None:
        """Each body is OpenAI's, strictly."""
        async with serve() as served:
            made = Conversation.model_validate_json(
                await raw(served, "POST", "conversations", metadata={"a": "b"}), strict=True
            )
            path = f"conversations/{made.id}"
            assert made.metadata == {"a": "b"}
            assert Conversation.model_validate_json(await raw(served, "GET", path), strict=True) == made
            changed = await raw(served, "POST", path, metadata={"c": "d"})
            assert Conversation.model_validate_json(changed, strict=True).metadata == {"c": "d"}
            assert (await served.client.conversations.retrieve(made.id)).metadata == {"c": "d"}
            listed = ConversationItemList.model_validate_json(await raw(served, "GET", f"{path}/items"), strict=True)
            assert (listed.data, listed.has_more) == ([], False)
            deleted = await raw(served, "DELETE", path)
            assert ConversationDeletedResource.model_validate_json(deleted, strict=True).deleted
            with pytest.raises(openai.NotFoundError) as caught:
                await served.client.conversations.retrieve(made.id)
            assert (caught.value.code, caught.value.param) == ("conversation_not_found", "conversation")

    async def test_hold_items_of_every_kind(self, serve: Serve) -> None:
        """Made with the conversation or later; listed, read and deleted one by one, also by another gateway."""
        async with serve() as served, serve() as other:
            made = await served.client.conversations.create(items=SAID[:2])
            path = f"conversations/{made.id}/items"
            added = ConversationItemList.model_validate_json(
                await raw(served, "POST", path, items=SAID[2:]), strict=True
            )
            assert [item.type for item in added.data] == ["message", "function_call", "function_call_output"]
            assert await texts(other, made.id) == ["be brief", "weather?", "let me see", "look{}", "rain"]
            for item in added.data:
                one = ITEM.validate_json(await raw(other, "GET", f"{path}/{item.id}"), strict=True)
                assert one == item
            gone = await other.client.conversations.items.delete(added.first_id, conversation_id=made.id)
            assert gone == made
            assert await texts(served, made.id) == ["be brief", "weather?", "look{}", "rain"]
            with pytest.raises(openai.NotFoundError) as caught:
                await served.client.conversations.items.retrieve(added.first_id, conversation_id=made.id)
            assert (caught.value.code, caught.value.param) == ("item_not_found", "item_id")

    @pytest.mark.parametrize("order", ["asc", "desc"])
    async def test_pages_follow_one_another(self, serve: Serve, order: Any) -> None:
        """Every item once, in the order in which they came."""
        said = [str(number) for number in range(23)]
        async with serve() as served:
            made = await served.client.conversations.create()
            for first in range(0, 23, 20):
                items: Any = [{"role": "user", "content": text} for text in said[first : first + 20]]
                await served.client.conversations.items.create(made.id, items=items)
            page = served.client.conversations.items.list(
                made.id, limit=5, order=order, include=["message.output_text.logprobs"]
            )
            assert [text_of(item) async for item in page] == (said if order == "asc" else said[::-1])

    async def test_items_may_be_named_by_their_id_in_a_response(self, serve: Serve) -> None:
        """They are copied, and stay when the response goes."""
        async with serve() as served:
            response = await served.client.responses.create(input="one", **SHORT)
            made = await served.client.conversations.create(
                items=[{"type": "item_reference", "id": str(response.output[0].id)}]
            )
            await served.client.responses.delete(response.id)
            assert await texts(served, made.id) == [response.output_text]

    @pytest.mark.parametrize(
        ("body", "code", "param"),
        [
            ({"items": SAID * 5}, "invalid_value", "items"),
            ({"items": [{"role": "user", "content": [{"type": "input_image"}]}]}, "unsupported_parameter", None),
            ({"items": [{"role": "robot", "content": "x"}]}, "invalid_value", "items[0].role"),
            ({"metadata": {"a": 1}}, "invalid_value", "metadata.a"),
            ({"title": "x"}, "unknown_parameter", "title"),
        ],
    )
    async def test_what_is_wrong_is_refused_by_name(
        self, serve: Serve, body: dict[str, Any], code: str, param: str | None
    ) -> None:
        async with serve() as served:
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.post("/conversations", cast_to=object, body=body)
            assert caught.value.code == code
            assert caught.value.param == (param or "items[0].content[0].type")

    async def test_a_full_one_takes_no_more(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither items nor turns; what is there can be read."""
        monkeypatch.setattr(kept, "MAX_ITEMS", 2)
        async with serve() as served:
            made = await served.client.conversations.create(items=SAID[:2])
            with pytest.raises(openai.ConflictError) as caught:
                await served.client.conversations.items.create(made.id, items=SAID[:1])
            assert caught.value.code == "conversation_full"
            with pytest.raises(openai.ConflictError):
                await served.client.responses.create(input="more", conversation=made.id, **SHORT)
            assert len(await texts(served, made.id)) == 2

    async def test_their_text_is_sealed_in_redis(self, serve: Serve) -> None:
        async with serve() as served:
            made = await served.client.conversations.create(items=SAID[:2], metadata={"topic": "umbrella"})
            fields = await served.gateway.redis.hgetall(CONVERSATION_KEY.format(tenant="demo", id=made.id))  # type: ignore[misc]
            assert len(fields) == 4
            for word in (b"weather", b"umbrella", b"brief"):
                assert not any(word in value for value in fields.values())

    async def test_items_pass_the_safety_rules_when_they_come(self, serve: Serve) -> None:
        """Later turns check only what is new."""
        secret: Any = [{"role": "user", "content": "I am bob@example.com"}]
        async with serve(safety=SafetySettings(input={"email": "redact"})) as served:
            made = await served.client.conversations.create(items=secret)
            assert await texts(served, made.id) == ["I am [email]"]
        async with serve(safety=SafetySettings(input={"email": "block"})) as served:
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.conversations.items.create(made.id, items=secret)
            assert caught.value.code == "content_blocked"


class TestTurns:
    """`conversation` in a request."""

    @pytest.mark.parametrize("named", [lambda id: id, lambda id: {"id": id}], ids=["id", "object"])
    async def test_earlier_items_come_first_and_new_ones_are_added(self, serve: Serve, named: Any) -> None:
        """The prompt is that of the whole conversation, and so is the next one's, at another gateway."""
        async with serve() as one, serve() as other:
            made = await one.client.conversations.create(items=SAID)
            body = {"model": "small", "max_output_tokens": 3, "ignore_eos": True}
            sent = await raw(one, "POST", "responses", input="and now?", conversation=named(made.id), **body)
            first = Response.model_validate_json(sent, strict=True)
            assert first.conversation is not None and first.conversation.id == made.id
            asked: Any = [{"role": "user", "content": "and now?"}]
            stateless = await one.client.responses.create(input=[*SAID, *asked], **SHORT)
            assert first.usage is not None and stateless.usage is not None
            assert first.usage.input_tokens == stateless.usage.input_tokens
            assert first.output_text == stateless.output_text
            second = await other.client.responses.create(input="thanks", conversation=named(made.id), **SHORT)
            said = await texts(one, made.id)
            assert said[5:] == ["and now?", first.output_text, "thanks", second.output_text]
            items = [item async for item in one.client.responses.input_items.list(second.id, order="asc", limit=100)]
            assert [text_of(item) for item in items] == said[:-1]
            by_id = await one.client.responses.create(input=[{"type": "item_reference", "id": items[-1].id}], **SHORT)
            assert by_id.status == "incomplete"

    async def test_streamed_over_http_and_a_websocket(self, serve: Serve) -> None:
        """The last event comes when the items are there."""
        async with serve() as served, served.connect() as socket:
            made = await served.client.conversations.create()
            stream = await served.client.responses.create(input="one", conversation=made.id, stream=True, **SHORT)
            answers = []
            async for event in stream:
                if event.type == "response.incomplete":
                    answers.append(event.response.output_text)
                    assert await texts(served, made.id) == ["one", *answers]
            events = await ask(socket, "two", conversation={"id": made.id}, max_output_tokens=3, ignore_eos=True)
            response = Response.model_validate(events[-1]["response"])
            assert response.conversation is not None and response.conversation.id == made.id
            assert await texts(served, made.id) == ["one", *answers, "two", response.output_text]
            await create(socket, "x", conversation="conv_unknown")
            assert_error(await receive(socket), 404, "conversation_not_found", "conversation")

    async def test_two_at_once_lose_nothing(self, serve: Serve, speaker: Speaker) -> None:
        """At two gateways: both see what was there before, and each adds its question with its answer."""
        speaker.engine.gate.clear()
        async with two(serve, engines={"small": [speaker.engine.address]}) as gateways:
            made = await gateways[0].client.conversations.create(items=SAID[:1])
            turns = [
                asyncio.create_task(
                    served.client.responses.create(input=f"{number}", model="auto", conversation=made.id)
                )
                for number, served in enumerate(gateways * 4)
            ]
            while speaker.asked < 8:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            speaker.engine.gate.set()
            await asyncio.gather(*turns)
            said = await texts(gateways[1], made.id)
        assert said[0] == "be brief"
        pairs = list(zip(said[1::2], said[2::2], strict=True))
        assert sorted(pairs) == [(str(number), TEXT) for number in range(8)]

    async def test_calls_are_answered_in_the_next_turn(self, serve: Serve) -> None:
        tool: Any = {"type": "function", "name": "f", "parameters": {"properties": {"a": {"enum": [1]}}}}
        async with serve() as served:
            made = await served.client.conversations.create()
            first = await served.client.responses.create(
                input="hi",
                model="auto",
                tools=[tool],
                tool_choice={"type": "function", "name": "f"},
                conversation=made.id,
            )
            (call,) = first.output
            assert call.type == "function_call"
            output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "5"}
            with pytest.raises(openai.BadRequestError, match="no call with id"):
                await served.client.responses.create(
                    input=[{**output, "call_id": "other"}], conversation=made.id, **SHORT
                )
            second = await served.client.responses.create(input=[output], conversation=made.id, **SHORT)
            assert await texts(served, made.id) == ["hi", f"f{call.arguments}", "5", second.output_text]

    async def test_a_cancelled_or_refused_turn_adds_nothing(self, serve: Serve, speaker: Speaker) -> None:
        speaker.engine.gate.clear()
        async with speaking(serve, speaker) as served, served.connect() as socket:
            made = await served.client.conversations.create(items=SAID[:2])
            await create(socket, "one", conversation=made.id)
            id = (await receive(socket))["response"]["id"]
            assert (await served.client.responses.cancel(id)).status == "cancelled"
            await until_end(lambda: receive(socket))
            with pytest.raises(openai.NotFoundError):
                await served.client.responses.create(input="two", model="none", conversation=made.id)
            speaker.engine.gate.set()
            await served.client.responses.create(
                input="warm", model="auto", conversation=made.id, extra_body={"generate": False}
            )
            assert await texts(served, made.id) == ["be brief", "weather?"]

    async def test_one_deleted_meanwhile_stays_so(self, serve: Serve, speaker: Speaker) -> None:
        """The answer is the client's all the same."""
        speaker.engine.gate.clear()
        async with speaking(serve, speaker) as served:
            made = await served.client.conversations.create(items=SAID[:2])
            turn = asyncio.create_task(served.client.responses.create(input="one", model="auto", conversation=made.id))
            while not speaker.asked:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await served.client.conversations.delete(made.id)
            speaker.engine.gate.set()
            assert (await turn).output_text == TEXT
            with pytest.raises(openai.NotFoundError):
                await texts(served, made.id)
            assert [key async for key in keys(served, made.id)] == []

    @pytest.mark.parametrize(
        ("body", "status", "code", "param"),
        [
            ({"previous_response_id": "resp_1"}, 400, "invalid_value", "conversation"),
            ({"conversation": {"name": "x"}}, 400, "unknown_parameter", "conversation.name"),
            ({"conversation": {}}, 400, "missing_required_parameter", "conversation.id"),
            ({"conversation": "conv_" + 48 * "0"}, 404, "conversation_not_found", "conversation"),
            ({"input": None}, 400, "missing_required_parameter", "input"),
        ],
        ids=str,
    )
    async def test_what_is_wrong_is_refused_by_name(
        self, serve: Serve, body: dict[str, Any], status: int, code: str, param: str
    ) -> None:
        async with serve() as served:
            made = await served.client.conversations.create()
            with pytest.raises(openai.APIStatusError) as caught:
                await served.client.post(
                    "/responses", cast_to=object, body={"input": "hi", "conversation": made.id, **body}
                )
            assert (caught.value.status_code, caught.value.code, caught.value.param) == (status, code, param)


async def keys(served: Served, id: str) -> AsyncIterator[bytes]:
    async for key in served.gateway.redis.scan_iter(match=f"*{id}"):
        yield key
