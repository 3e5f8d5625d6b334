"""`/v1/responses/input_tokens` and `/v1/responses/compact` as the `openai` package sees them."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types.responses import CompactedResponse, InputTokenCountResponse

from gateway.config.safety import SafetySettings
from gateway.turns.compaction import SUMMARISE
from tests.gateway.conftest import Serve
from tests.gateway.engines.test_adapters import OTHER_KEY, TENANTS
from tests.gateway.http.test_conversations import SAID, SHORT, raw, text_of, texts
from tests.gateway.pipeline.sources.conftest import TEXT, Speaker, speaker, speaking

__all__ = ["speaker"]

pytestmark = pytest.mark.anyio

TOOL: Any = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"properties": {}}}


class TestInputTokens:
    """`client.responses.input_tokens.count()`."""

    @pytest.mark.parametrize(
        "body",
        [
            {"input": "hello"},
            {"input": SAID, "instructions": "be kind"},
            {"input": "hello", "tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False},
            {"input": [{"role": "user", "content": "long " * 700}] * 4, "truncation": "auto"},
        ],
        ids=["text", "items", "tools", "truncated"],
    )
    async def test_are_those_of_the_turn(self, serve: Serve, body: dict[str, Any]) -> None:
        """As its usage says."""
        async with serve() as served:
            counted = await served.client.responses.input_tokens.count(model="small", **body)
            answered = await served.client.responses.create(model="small", max_output_tokens=1, **body)
            assert answered.usage is not None
            assert counted.input_tokens == answered.usage.input_tokens
            sent = await raw(served, "POST", "responses/input_tokens", model="small", **body)
            assert InputTokenCountResponse.model_validate_json(sent, strict=True) == counted

    async def test_of_what_is_continued(self, serve: Serve) -> None:
        """Responses and conversations; no turn is made, and nothing is added."""
        async with serve() as served:
            first = await served.client.responses.create(input="one", **SHORT)
            conversation = await served.client.conversations.create(items=SAID)
            for before in ({"previous_response_id": first.id}, {"conversation": conversation.id}):
                asked: dict[str, Any] = {"model": "small", "input": "two", **before}
                counted = await served.client.responses.input_tokens.count(**asked)
                answered = await served.client.responses.create(**asked, max_output_tokens=1)
                assert answered.usage is not None
                assert counted.input_tokens == answered.usage.input_tokens
            assert len(await texts(served, conversation.id)) == len(SAID) + 2

    @pytest.mark.parametrize(
        ("body", "param"), [({}, "input"), ({"personality": "friendly"}, "personality"), ({"x": 1}, "x")]
    )
    async def test_what_is_wrong_is_refused_by_name(self, serve: Serve, body: dict[str, Any], param: str) -> None:
        async with serve() as served:
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.post("/responses/input_tokens", cast_to=object, body=body)
        assert caught.value.param == param


class TestCompact:
    """`client.responses.compact()`: the engine's one text is the summary."""

    async def test_a_summary_stands_for_the_conversation(self, serve: Serve, speaker: Speaker) -> None:
        """In the input of later turns, at any gateway; system messages stay as they were."""
        async with speaking(serve, speaker) as served, serve(engines={"small": [speaker.engine.address]}) as other:
            sent = await raw(served, "POST", "responses/compact", model="small", input=SAID)
            compacted = CompactedResponse.model_validate_json(sent, strict=True)
            assert "let me see" in speaker.asked_last and SUMMARISE in speaker.asked_last
            assert compacted.usage.output_tokens > 0
            (item,) = compacted.output
            assert item.type == "compaction" and TEXT not in sent.decode()
            next: Any = {"role": "user", "content": "thanks"}
            whole: list[Any] = [
                SAID[0],
                {"role": "user", "content": SUMMARISE},
                {"role": "assistant", "content": TEXT},
                next,
            ]
            for client in (served.client, other.client):
                short = await client.responses.create(model="small", input=[item.to_dict(), next])
                asked = speaker.asked_last
                await client.responses.create(
                    model="small", input=whole, extra_body={"roundhouse": {"cache": "no-store"}}
                )
                assert asked == speaker.asked_last
                assert short.output_text == TEXT
            again = await served.client.responses.compact(model="small", input=[item.to_dict(), next])
            assert len(again.output) == 1

    async def test_of_a_response(self, serve: Serve, speaker: Speaker) -> None:
        """`previous_response_id`, as the Agents SDK sends it."""
        async with speaking(serve, speaker) as served:
            first = await served.client.responses.create(model="small", input="umbrella")
            compacted = await served.client.responses.compact(model="small", previous_response_id=first.id)
            assert "umbrella" in speaker.asked_last
            assert compacted.output[0].type == "compaction"

    async def test_in_a_conversation(self, serve: Serve, speaker: Speaker) -> None:
        """It is an item like others, and is read in its place."""
        async with speaking(serve, speaker) as served:
            compacted = await served.client.responses.compact(model="small", input="umbrella")
            item: Any = compacted.output[0].to_dict()
            made = await served.client.conversations.create(items=[item])
            listed = [each async for each in served.client.conversations.items.list(made.id)]
            assert [each.type for each in listed] == ["compaction"]
            await served.client.responses.create(model="small", input="more", conversation=made.id)
            assert SUMMARISE in speaker.asked_last
            assert [each.type async for each in served.client.conversations.items.list(made.id, order="asc")] == [
                "compaction",
                "message",
                "message",
            ]

    async def test_belongs_to_its_tenant(self, serve: Serve, speaker: Speaker) -> None:
        """Another one's, a changed and an invented one are refused."""
        async with speaking(serve, speaker, tenants=TENANTS) as served:
            compacted = await served.client.responses.compact(model="small", input="umbrella")
            item: Any = compacted.output[0].to_dict()
            content = item["encrypted_content"]
            for client, changed in (
                (served.client.with_options(api_key=OTHER_KEY), content),
                (served.client, content[:-8] + "AAAAAAAA"),
                (served.client, "gAAAA"),
                (served.client, "\N{SNOWMAN}"),
                (served.client, ""),
            ):
                with pytest.raises(openai.BadRequestError) as caught:
                    await client.responses.create(
                        model="small", input=[{**item, "encrypted_content": changed}, {"role": "user", "content": "x"}]
                    )
                assert (caught.value.code, caught.value.param) == ("invalid_value", "input")

    async def test_passes_the_safety_rules(self, serve: Serve, speaker: Speaker) -> None:
        """What a client says, and what the model makes of it."""
        speaker.text = "Bob is bob@example.com."
        async with speaking(serve, speaker, safety=SafetySettings(output={"email": "redact"})) as served:
            compacted = await served.client.responses.compact(model="small", input="umbrella")
            item: Any = compacted.output[0].to_dict()
            response = await served.client.responses.create(
                model="small", input=[item, {"role": "user", "content": "x"}]
            )
            items = [text_of(each) async for each in served.client.responses.input_items.list(response.id, order="asc")]
            assert items == [SUMMARISE, "Bob is [email].", "x"]

    async def test_without_a_summary_fails(self, serve: Serve, speaker: Speaker) -> None:
        """Rather than to lose the conversation."""
        speaker.text = "\n"
        async with speaking(serve, speaker) as served:
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.responses.compact(model="small", input="umbrella")
            assert caught.value.param == "model"

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({}, "input"),
            ({"input": "x", "stream": True}, "stream"),
            ({"input": "x", "image": {}}, "image"),
            ({"input": "x", "tools": []}, "tools"),
            ({"input": "long " * 5000}, "input"),
        ],
    )
    async def test_what_is_wrong_is_refused_by_name(self, serve: Serve, body: dict[str, Any], param: str) -> None:
        """Also what does not fit: nothing is left out of a summary unseen."""
        async with serve() as served:
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.post("/responses/compact", cast_to=object, body={"model": "small", **body})
        assert caught.value.param == param


async def test_these_paths_are_no_ids(serve: Serve) -> None:
    """Of responses that are read."""
    async with serve() as served:
        for name in ("compact", "input_tokens"):
            with pytest.raises(openai.NotFoundError):
                await served.client.responses.retrieve(name)
