"""Stored responses as the `openai` package sees them: their input items, deletion, branches."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseItemList

from gateway.protocol.input_items import ItemsPage, item_messages, items_page
from gateway.protocol.requests import Message, ToolCall
from tests.gateway.conftest import KEY, Serve, eventually
from tests.gateway.engines.test_adapters import OTHER_KEY, TENANTS

pytestmark = pytest.mark.anyio

CONVERSATION = (
    Message("system", "be brief"),
    Message("user", "weather?"),
    Message("assistant", "let me see", (ToolCall("call_1", "look", "{}"), ToolCall("call_2", "look", "{}"))),
    Message("tool", "rain", answers="call_1"),
    Message("tool", "sun", answers="call_2"),
    Message("assistant", "both"),
    Message("user", "thanks"),
)


class TestInputItems:
    """`client.responses.input_items.list()`."""

    def test_every_item_is_valid_in_openais_types(self) -> None:
        """Strictly; ids differ, and the order is as asked."""
        items = item_messages("resp_1", CONVERSATION)
        page = items_page(items, ItemsPage(limit=100, order="asc"))
        listed = ResponseItemList.model_validate(page, strict=True)
        assert [item.type for item in listed.data] == [
            "message",
            "message",
            "message",
            "function_call",
            "function_call",
            "function_call_output",
            "function_call_output",
            "message",
            "message",
        ]
        assert len({item.id for item in listed.data}) == 9
        assert not listed.has_more
        newest = items_page(items, ItemsPage(limit=100))
        assert newest["data"] == page["data"][::-1]

    @pytest.mark.parametrize("limit", [1, 2, 5, 100])
    async def test_pages_follow_one_another(self, serve: Serve, limit: int) -> None:
        """The client's own iteration sees every item once; history of earlier turns is in it."""
        async with serve() as served:
            first = await served.client.responses.create(model="auto", input="one", max_output_tokens=2)
            second = await served.client.responses.create(
                model="auto",
                input=[{"role": "user", "content": "two"}, {"role": "user", "content": "three"}],
                previous_response_id=first.id,
                max_output_tokens=2,
            )
            page = served.client.responses.input_items.list(second.id, limit=limit, order="asc")
            items: list[Any] = [item async for item in page]
        assert [item.content[0].text for item in items] == ["one", first.output_text, "two", "three"]

    @pytest.mark.parametrize(
        ("query", "param"),
        [("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=msg_x", "after"), ("x=1", "x")],
    )
    async def test_what_is_no_page_is_refused(self, serve: Serve, query: str, param: str) -> None:
        """By name."""
        async with serve() as served:
            response = await served.client.responses.create(model="auto", input="one", max_output_tokens=1)
            with pytest.raises(openai.BadRequestError) as refused:
                await served.client.get(f"/responses/{response.id}/input_items?{query}", cast_to=object)
        assert refused.value.param == param


async def test_a_deleted_response_is_gone(serve: Serve) -> None:
    """The client's `delete`; what continued it stays."""
    async with serve() as served:
        first = await served.client.responses.create(model="auto", input="one", max_output_tokens=1)
        second = await served.client.responses.create(
            model="auto", input="two", previous_response_id=first.id, max_output_tokens=1
        )
        deleted = await served.client.delete(f"/responses/{first.id}", cast_to=object)
        assert deleted == {"id": first.id, "object": "response", "deleted": True}
        with pytest.raises(openai.NotFoundError):
            await served.client.responses.delete(first.id)
        assert await served.client.responses.retrieve(second.id)


class TestIdempotentCreate:
    """The header `Idempotency-Key`, which the client sends if it is told to."""

    async def test_the_same_key_and_body_is_the_same_response(self, serve: Serve) -> None:
        """On either of two gateways, streamed or not; the engine answers once."""
        asked: dict[str, Any] = {"model": "auto", "input": "hello", "max_output_tokens": 3}
        headers = {"Idempotency-Key": "once"}
        async with serve() as one, serve() as other:
            responses = [
                await served.client.responses.create(**asked, extra_headers=headers) for served in (one, one, other)
            ]
            async with await other.client.responses.create(**asked, stream=True, extra_headers=headers) as stream:
                events = [event async for event in stream]
            assert {response.id for response in responses} == {events[-1].response.id}  # type: ignore[union-attr]
            assert await one.client.responses.create(**asked) != responses[0]

    async def test_many_at_the_same_time_are_one(self, serve: Serve) -> None:
        """On two gateways, and the engine is asked once."""
        async with serve() as one, serve() as other:
            responses = await asyncio.gather(
                *(
                    served.client.responses.create(
                        model="auto", input="hello", max_output_tokens=30, extra_headers={"Idempotency-Key": "race"}
                    )
                    for served in (one, other) * 8
                )
            )
            assert len({response.id for response in responses}) == 1
            assert one.gateway.turns.retained + other.gateway.turns.retained == 1
            await one.settle()
            await other.settle()

    async def test_one_that_is_still_looking_for_its_previous_response_is_waited_for(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The key is taken, the turn has not begun: neither gateway begins a second one."""
        async with serve() as one, serve() as other:
            first = await one.client.responses.create(model="auto", input="hello", max_output_tokens=1)
            gate, looking = asyncio.Event(), asyncio.Event()
            context = one.gateway.turns.context
            unhindered = context.complete

            async def hindered(*arguments: Any) -> Any:
                looking.set()
                await gate.wait()
                return await unhindered(*arguments)

            monkeypatch.setattr(context, "complete", hindered)
            asked: dict[str, Any] = {"model": "auto", "input": "on", "previous_response_id": first.id}
            asked |= {"max_output_tokens": 2, "extra_headers": {"Idempotency-Key": "slow"}}
            creates = [asyncio.create_task(one.client.responses.create(**asked))]
            await looking.wait()
            creates.append(asyncio.create_task(other.client.responses.create(**asked)))
            await eventually(lambda: one.gateway.turns.shared["feeds"] == 1)  # which it waits for
            with monkeypatch.context() as patch:
                look, looked = one.gateway.turns._find, asyncio.Event()

                def found(*arguments: Any) -> Any:
                    looked.set()
                    return look(*arguments)

                patch.setattr(one.gateway.turns, "_find", found)
                creates.append(asyncio.create_task(one.client.responses.create(**asked)))
                await looked.wait()
            gate.set()
            assert len({response.id for response in await asyncio.gather(*creates)}) == 1
            assert one.gateway.turns.retained == 2
            await other.settle()

    async def test_the_same_key_with_another_body_is_refused(self, serve: Serve) -> None:
        """On either gateway."""
        async with serve() as one, serve() as other:
            headers = {"Idempotency-Key": "once"}
            await one.client.responses.create(model="auto", input="hello", max_output_tokens=1, extra_headers=headers)
            for served in (one, other):
                with pytest.raises(openai.ConflictError) as refused:
                    await served.client.responses.create(model="auto", input="other", extra_headers=headers)
                assert refused.value.code == "idempotency_key_reused"

    async def test_a_refused_or_deleted_turn_gives_its_key_back(self, serve: Serve) -> None:
        """It may be tried again."""
        headers = {"Idempotency-Key": "once"}
        async with serve() as served:
            with pytest.raises(openai.NotFoundError):
                await served.client.responses.create(model="unknown", input="hello", extra_headers=headers)
            made = await served.client.responses.create(
                model="auto", input="hello", max_output_tokens=1, extra_headers=headers
            )
            await served.client.responses.delete(made.id)
            again = await served.client.responses.create(
                model="auto", input="hello", max_output_tokens=1, extra_headers=headers
            )
            assert again.id != made.id

    async def test_chat_completions_have_it_too(self, serve: Serve) -> None:
        """With several answers."""
        asked: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "hi"}], "n": 2, "seed": 1}
        async with serve() as served, served.client.with_options(api_key=KEY) as client:
            completions = [
                await client.chat.completions.create(
                    **asked, max_tokens=3, temperature=1, extra_headers={"Idempotency-Key": "chat"}
                )
                for _ in range(2)
            ]
        assert completions[0].id == completions[1].id
        assert completions[0].choices == completions[1].choices

    @pytest.mark.parametrize("key", ["", "x" * 256])
    async def test_a_key_has_a_size(self, serve: Serve, key: str) -> None:
        """1 to 255 characters."""
        async with serve() as served:
            with pytest.raises(openai.BadRequestError) as refused:
                await served.client.responses.create(
                    model="auto", input="hello", extra_headers={"Idempotency-Key": key}
                )
        assert refused.value.param == "idempotency_key"


class TestReferences:
    """`item_reference`: what Vercel's AI SDK sends for each item of earlier answers."""

    async def test_stand_for_the_items_of_answers_and_inputs(self, serve: Serve) -> None:
        """The prompt is that of the whole conversation, also on another gateway."""
        short: dict[str, Any] = {"model": "auto", "max_output_tokens": 6, "extra_body": {"ignore_eos": True}}
        async with serve() as one, serve() as other:
            first = await one.client.responses.create(input="one", **short)
            whole = [
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": first.output_text},
                {"role": "user", "content": "two"},
            ]
            expected = await one.client.responses.create(input=whole, **short)
            asked = [item async for item in one.client.responses.input_items.list(first.id)]
            references = [{"type": "item_reference", "id": asked[0].id}, {"id": first.output[0].id}, whole[2]]
            for served in (one, other):
                again = await served.client.responses.create(input=references, **short)
                assert again.usage is not None and expected.usage is not None
                assert again.usage.input_tokens == expected.usage.input_tokens
                assert again.output_text == expected.output_text
                items = [item async for item in served.client.responses.input_items.list(again.id, order="asc")]
                assert len(items) == 3

    async def test_calls_can_be_answered(self, serve: Serve) -> None:
        tool: Any = {"type": "function", "name": "f", "parameters": {"properties": {"a": {"enum": [1]}}}}
        async with serve() as served:
            first = await served.client.responses.create(
                input="hi", model="auto", tools=[tool], tool_choice={"type": "function", "name": "f"}
            )
            (call,) = first.output
            assert call.type == "function_call" and call.id is not None
            output = {"type": "function_call_output", "call_id": call.call_id, "output": "5"}
            asked = {"role": "user", "content": "hi"}
            short: dict[str, Any] = {"model": "auto", "max_output_tokens": 1}
            by_id = await served.client.responses.create(input=[asked, {"id": call.id}, output], **short)
            whole = await served.client.responses.create(input=[asked, call.to_dict(), output], **short)
            assert by_id.usage is not None and whole.usage is not None
            assert by_id.usage.input_tokens == whole.usage.input_tokens
            with pytest.raises(openai.BadRequestError, match="no call with id"):
                await served.client.responses.create(input=[{"id": call.id}, {**output, "call_id": "other"}], **short)

    async def test_name_items_of_the_same_tenant_that_are_kept(self, serve: Serve) -> None:
        """Others do not exist."""
        async with serve(tenants=TENANTS) as served:
            first = await served.client.responses.create(input="one", model="auto", max_output_tokens=1)
            known = first.output[0].id
            assert known is not None
            stranger = served.client.with_options(api_key=OTHER_KEY)
            for client, id in (
                (stranger, known),
                (served.client, f"{known}_9"),
                (served.client, "m"),
                (stranger, "a_b"),
            ):
                with pytest.raises(openai.NotFoundError) as caught:
                    await client.responses.create(input=[{"type": "item_reference", "id": id}], model="auto")
                assert (caught.value.code, caught.value.param) == ("item_not_found", "input")
            await served.settle()
