"""Rules on the road of real turns: a real gateway, a real Redis, an engine that says what the test wants it to say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import redis.asyncio
from tokenizers import Tokenizer

from engine.wire import Generate
from gateway.config.safety import SafetyPolicy, SafetySettings
from gateway.safety.hook import Finding
from gateway.safety.stream import FilterRule, filter_text
from gateway.safety.violations import MAX_FINDINGS, Violation, Violations
from tests.conftest import redis_server
from tests.gateway.conftest import Serve, Served, eventually, receive, send, until_end
from tests.gateway.frame_engine import FrameEngine
from tests.gateway.recognisers.samples import PEM, RECOGNISERS

pytestmark = pytest.mark.anyio

REDACT = SafetySettings(output={"email": "redact", "card": "redact", "private_key": "redact"})
SECRET = "bob.smith@example.com"
ANSWER = f"Write to {SECRET}, or pay with 4111 1111 1111 1111. Bye"
SHOWN = "Write to [email], or pay with [card]. Bye"


class Speaker:
    """An engine that says one text, a token at a time, and remembers what it was asked."""

    def __init__(self, engine: FrameEngine, model: Path) -> None:
        self.engine = engine
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.text = ANSWER
        engine.finish = "stop"
        engine.script = self._steps

    def _steps(self, request: Generate) -> list[list[int]]:
        return [[token] for token in self.tokenizer.encode(self.text).ids]

    @property
    def asked(self) -> str:
        """The last prompt."""
        return str(self.tokenizer.decode(self.engine.generated[-1].prompt, skip_special_tokens=False))


@pytest.fixture
async def speaker(model: Path) -> AsyncIterator[Speaker]:
    with tempfile.TemporaryDirectory(prefix="rh-") as folder:  # socket paths are short
        async with FrameEngine(Path(folder) / "engine.sock", {}).serving() as engine:
            yield Speaker(engine, model)


@contextlib.asynccontextmanager
async def guarded(serve: Serve, speaker: Speaker, safety: SafetySettings = REDACT) -> AsyncIterator[Served]:
    async with serve(engines={"small": [speaker.engine.address]}, safety=safety) as served:
        yield served
        await served.settle()


class TestOutput:
    """Answers."""

    async def test_over_http(self, serve: Serve, speaker: Speaker) -> None:
        async with guarded(serve, speaker) as served:
            response = await served.client.responses.create(model="auto", input="hello")
            chat = await served.client.chat.completions.create(
                model="auto", messages=[{"role": "user", "content": "hello"}]
            )
            completion = await served.client.completions.create(model="auto", prompt="hello")
        assert response.output_text == SHOWN
        assert response.status == "completed"
        assert chat.choices[0].message.content == completion.choices[0].text == SHOWN
        assert chat.choices[0].finish_reason == "stop"

    async def test_over_sse_deltas_add_up_to_the_done_texts(self, serve: Serve, speaker: Speaker) -> None:
        async with guarded(serve, speaker) as served:
            stream = await served.client.responses.create(model="auto", input="hello", stream=True)
            events = [event async for event in stream]
            chunks = [
                chunk.choices[0].delta.content or ""
                async for chunk in await served.client.chat.completions.create(
                    model="auto", messages=[{"role": "user", "content": "hello"}], stream=True
                )
            ]
        assert [event.sequence_number for event in events if not event.type.startswith("roundhouse")] == sorted(
            event.sequence_number for event in events if not event.type.startswith("roundhouse")
        )
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        done = next(event.text for event in events if event.type == "response.output_text.done")
        completed = next(event.response for event in events if event.type == "response.completed")
        assert "".join(deltas) == done == completed.output_text == SHOWN
        assert len(deltas) > 5
        assert "".join(chunks) == SHOWN

    async def test_over_a_websocket_and_when_resumed(self, serve: Serve, speaker: Speaker) -> None:
        async with guarded(serve, speaker) as served, served.connect() as socket:
            await send(socket, type="response.create", model="auto", input="hello")
            events = await until_end(lambda: receive(socket))
            id = events[0]["response"]["id"]
            await send(socket, type="response.resume", response_id=id, starting_after=3)
            resumed = await until_end(lambda: receive(socket))
        for seen in (events, resumed):
            assert SECRET.split("@")[0] not in json.dumps(seen)
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == SHOWN
        assert resumed[-1] == events[-1]

    async def test_a_cancelled_answer_keeps_what_it_said_filtered(self, serve: Serve, speaker: Speaker) -> None:
        """Text that was held back is decided as if it ended there."""
        speaker.text = f"It is {SECRET}"
        speaker.engine.gate.clear()
        async with guarded(serve, speaker) as served:
            async with served.connect() as socket:
                await send(socket, type="response.create", model="auto", input="hello")
                created = await receive(socket)
                events = [created]
                turn = served.gateway.turns.get(created["response"]["id"])
                assert turn is not None
                await eventually(lambda: turn.log.text == "It is ")
                await send(socket, type="response.cancel", response_id=created["response"]["id"])
                events += await until_end(lambda: receive(socket))
            speaker.engine.gate.set()
        assert events[-1]["response"]["status"] == "cancelled"
        rules = [FilterRule("email", RECOGNISERS["email"], "[email]")]
        beginnings = (speaker.text[:length] for length in range(6, len(speaker.text) + 1))
        assert events[-1]["response"]["output"][0]["content"][0]["text"] in {
            filter_text(beginning, rules, lambda rule, text: None)[0] for beginning in beginnings
        }

    async def test_a_stalled_answer_is_not_held_back_for_ever(self, serve: Serve, speaker: Speaker) -> None:
        speaker.text = "The last word"
        speaker.engine.gate.clear()
        safety = SafetySettings(output={"email": "redact"}, hold_seconds=0.05)
        async with guarded(serve, speaker, safety) as served, served.connect() as socket:
            await send(socket, type="response.create", model="auto", input="hello")
            text = ""
            while text != "The last word":  # although the engine has not ended
                event = await receive(socket)
                text += event.get("delta", "")
            speaker.engine.gate.set()
            assert (await until_end(lambda: receive(socket)))[-1]["response"]["status"] == "completed"

    async def test_a_blocking_rule_ends_the_answer(self, serve: Serve, speaker: Speaker) -> None:
        """In OpenAI's words; the engine is told to stop."""
        safety = SafetySettings(output={"email": "redact", "card": "block"})
        async with guarded(serve, speaker, safety) as served:
            response = await served.client.responses.create(model="auto", input="hello")
            chat = await served.client.chat.completions.create(
                model="auto", messages=[{"role": "user", "content": "hello"}]
            )
            page = await served.client.with_options(base_url=served.url).get("/metrics", cast_to=str)
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "content_filter"
        assert response.output_text == chat.choices[0].message.content == "Write to [email], or pay with "
        assert chat.choices[0].finish_reason == "content_filter"
        assert 'roundhouse_turns_total{outcome="blocked",tier="small"} 2.0' in page
        assert 'roundhouse_safety_findings_total{action="block",direction="output",rule="card"} 2.0' in page

    async def test_arguments_of_calls_stay_json(self, serve: Serve, speaker: Speaker) -> None:
        arguments = {"to": SECRET, "card": 4111111111111111, "note": f'"{PEM}"', "n": [1, True]}
        call = json.dumps({"name": "mail", "arguments": arguments})
        speaker.text = f"<tool_call>\n{call}\n</tool_call>"
        tool: Any = {"type": "function", "name": "mail", "parameters": {"type": "object"}}
        async with serve(
            engines={"small": [speaker.engine.address]}, safety=REDACT, pool={"tool_parser": "hermes"}
        ) as served:
            stream = await served.client.responses.create(model="auto", input="hello", tools=[tool], stream=True)
            events = [event async for event in stream]
        deltas = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
        done = next(event.arguments for event in events if event.type == "response.function_call_arguments.done")
        assert deltas == done
        assert json.loads(done) == {"to": "[email]", "card": "[card]", "note": '"[private_key]"', "n": [1, True]}
        assert events[-1].type == "response.completed"

    async def test_structured_output_stays_valid(self, serve: Serve, speaker: Speaker) -> None:
        speaker.text = json.dumps({"mail": SECRET, "quoted": f'say "{SECRET}"'}, ensure_ascii=True)
        format: Any = {"type": "json_object"}
        async with guarded(serve, speaker) as served:
            response = await served.client.responses.create(model="auto", input="json", text={"format": format})
        assert json.loads(response.output_text) == {"mail": "[email]", "quoted": 'say "[email]"'}

    async def test_structured_output_that_cannot_stay_valid_fails(self, serve: Serve, speaker: Speaker) -> None:
        speaker.text = '{"a": -4111111111111111}'
        format: Any = {"type": "json_object"}
        async with guarded(serve, speaker) as served:
            with pytest.raises(openai.InternalServerError, match="not in the wanted format") as caught:
                await served.client.responses.create(model="auto", input="json", text={"format": format})
        assert caught.value.code == "answer_redacted"
        assert "4111" not in caught.value.response.text

    async def test_log_probabilities_are_refused(self, serve: Serve, speaker: Speaker) -> None:
        """They hold the text of tokens, alternatives included."""
        async with guarded(serve, speaker) as served:
            with pytest.raises(openai.BadRequestError, match="logprobs: not available"):
                await served.client.chat.completions.create(
                    model="auto", messages=[{"role": "user", "content": "hello"}], logprobs=True
                )

    async def test_the_cache_holds_filtered_text_under_the_rules_that_filtered_it(
        self, serve: Serve, speaker: Speaker
    ) -> None:
        asked: Any = {"model": "auto", "input": "hello", "temperature": 0}
        async with guarded(serve, speaker) as served:
            first = await served.client.responses.create(**asked)
            second = await served.client.responses.create(**asked)
            assert len(speaker.engine.generated) == 1
            for key in await served.gateway.redis.keys("rh1:resp:*"):
                found = await served.gateway.response_cache.get("demo", key.decode().rpartition(":")[2])
                assert found.entry is not None and found.entry.text == SHOWN
        assert first.output_text == second.output_text == SHOWN
        async with guarded(serve, speaker, SafetySettings(output={"email": "redact"})) as served:
            other = await served.client.responses.create(**asked)
        assert other.output_text == "Write to [email], or pay with 4111 1111 1111 1111. Bye"

    async def test_a_tenant_may_have_rules_of_its_own(self, serve: Serve, speaker: Speaker) -> None:
        safety = SafetySettings(output={"email": "redact"}, tenants={"demo": SafetyPolicy()})
        async with guarded(serve, speaker, safety) as served:
            assert (await served.client.responses.create(model="auto", input="hello")).output_text == ANSWER


class TestInput:
    """What clients send."""

    async def test_redacted_input_reaches_no_engine_and_is_not_kept(self, serve: Serve, speaker: Speaker) -> None:
        speaker.text = "Yes"
        safety = SafetySettings(input={"email": "redact"})
        async with guarded(serve, speaker, safety) as served:
            first = await served.client.responses.create(
                model="auto", input=f"I am {SECRET}", instructions=f"Serve {SECRET}"
            )
            assert "I am [email]" in speaker.asked
            assert "Serve [email]" in speaker.asked
            await served.client.responses.create(model="auto", input="again", previous_response_id=first.id)
            assert SECRET not in speaker.asked
            assert "I am [email]" in speaker.asked
            await served.client.completions.create(model="auto", prompt=f"I am {SECRET}")
            assert speaker.asked == "I am [email]"
        assert first.instructions == "Serve [email]"

    async def test_calls_and_their_outputs_are_checked_too(self, serve: Serve, speaker: Speaker) -> None:
        messages: Any = [
            {"role": "user", "content": "mail him"},
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": SECRET})}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": f"sent to {SECRET}"},
        ]
        async with guarded(serve, speaker, SafetySettings(input={"email": "redact"})) as served:
            await served.client.chat.completions.create(model="auto", messages=messages)
        assert "bob" not in speaker.asked
        assert "sent to [email]" in speaker.asked

    async def test_descriptions_of_tools_are_redacted(self, serve: Serve, speaker: Speaker) -> None:
        """At any depth; the response repeats what the model has read."""
        speaker.text = "Yes"
        described = {"type": "string", "description": f"Ask {SECRET}", "default": SECRET}
        nested = {"type": "object", "properties": {"list": {"type": "array", "items": described}}}
        tool: Any = {"type": "function", "name": "mail", "description": f"For {SECRET}", "parameters": nested}
        async with guarded(serve, speaker, SafetySettings(input={"email": "redact"})) as served:
            response = await served.client.responses.create(model="auto", input="hello", tools=[tool])
        assert "bob" not in speaker.asked
        assert "For [email]" in speaker.asked
        assert "Ask [email]" in speaker.asked
        assert SECRET not in response.to_json()

    @pytest.mark.parametrize("action", ["redact", "block"])
    @pytest.mark.parametrize(
        ("change", "param"),
        [
            ({"name": "AKIAIOSFODNN7EXAMPLE"}, "tools[0].name"),
            ({"parameters": {"properties": {SECRET: {}}}}, "tools[0].parameters"),
            ({"parameters": {"properties": {"a": {"items": {"enum": [SECRET]}}}}}, "tools[0].parameters"),
        ],
        ids=["name", "key", "value"],
    )
    async def test_names_and_schemas_are_refused_where_they_cannot_be_redacted(
        self, serve: Serve, speaker: Speaker, action: Any, change: dict[str, Any], param: str
    ) -> None:
        """A call with another name or argument would be of no use to the client."""
        tool: Any = {"type": "function", "name": "mail", **change}
        async with guarded(serve, speaker, SafetySettings(input={"email": action, "api_key": action})) as served:
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.responses.create(model="auto", input="hello", tools=[tool])
        assert (caught.value.code, caught.value.param) == ("content_blocked", param)
        assert "bob" not in caught.value.message and "AKIA" not in caught.value.message
        assert not speaker.engine.generated

    async def test_what_an_answer_has_to_say_is_checked(self, serve: Serve, speaker: Speaker) -> None:
        """A model that can say nothing else would put it into the prompt of the next turn."""
        async with guarded(serve, speaker, SafetySettings(input={"email": "block"})) as served:
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.chat.completions.create(
                    model="auto",
                    messages=[{"role": "user", "content": "who?"}],
                    extra_body={"structured_outputs": {"choice": ["nobody", SECRET]}},
                )
        assert (caught.value.code, caught.value.param) == ("content_blocked", "structured_outputs.choice")

    async def test_names_and_ids_of_replayed_calls_are_checked(self, serve: Serve, speaker: Speaker) -> None:
        """An id that is found is replaced for the call and its output alike; a name is refused."""

        def said(id: str, name: str) -> Any:
            call = {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}
            return [
                {"role": "user", "content": "mail him"},
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": id, "content": "sent"},
            ]

        async with guarded(serve, speaker, SafetySettings(input={"email": "block", "api_key": "redact"})) as served:
            stream = await served.client.chat.completions.create(
                model="auto", messages=said(SECRET, "mail"), stream=True
            )
            assert [chunk async for chunk in stream]
            kept = next(iter(served.gateway.turns._turns.values()))
            call, output = kept.conversation[1].calls[0], kept.conversation[2]
            assert call.id == output.answers
            assert call.id.startswith("call_")
            with pytest.raises(openai.BadRequestError, match="does not accept"):
                await served.client.chat.completions.create(model="auto", messages=said("c", "AKIAIOSFODNN7EXAMPLE"))

    async def test_blocked_input_is_refused_and_costs_nothing(self, serve: Serve, speaker: Speaker) -> None:
        async with guarded(serve, speaker, SafetySettings(input={"api_key": "block"})) as served:
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.responses.create(model="auto", input="my key is AKIAIOSFODNN7EXAMPLE")
        assert caught.value.code == "content_blocked"
        assert "api_key" in caught.value.message
        assert "AKIA" not in caught.value.message
        assert not speaker.engine.generated

    async def test_token_ids_cannot_be_checked(self, serve: Serve, speaker: Speaker) -> None:
        async with guarded(serve, speaker, SafetySettings(input={"email": "flag"})) as served:
            with pytest.raises(openai.BadRequestError, match="token ids cannot be checked"):
                await served.client.completions.create(model="auto", prompt=[5, 6, 7])

    async def test_a_long_input_is_checked_beside_the_event_loop(self, serve: Serve, speaker: Speaker) -> None:
        async with guarded(serve, speaker, SafetySettings(input={"email": "block"})) as served:
            with pytest.raises(openai.BadRequestError, match="does not accept"):
                await served.client.responses.create(model="auto", input="word " * 20_000 + SECRET)


class TestFindings:
    """What is written down."""

    async def test_digests_only(self, serve: Serve, speaker: Speaker, redis_url: str) -> None:
        """Equal texts have equal digests; the texts are nowhere in Redis."""
        safety = SafetySettings(input={"email": "flag"}, output={"email": "flag"})
        async with guarded(serve, speaker, safety) as served:
            response = await served.client.responses.create(model="auto", input=f"I am {SECRET}, not a@b.com")
        assert response.output_text == ANSWER
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            entries = [fields for _, fields in await client.xrange("rh1:safety:{demo}")]
            assert 0 < await client.ttl("rh1:safety:{demo}") <= 30 * 24 * 3600
            for key in await client.keys("rh1:safety:*"):
                assert SECRET.encode() not in await client.dump(key)
        assert [(entry[b"rule"], entry[b"direction"], entry[b"action"]) for entry in entries] == [
            (b"email", b"input", b"flag"),
            (b"email", b"input", b"flag"),
            (b"email", b"output", b"flag"),
        ]
        assert entries[0][b"digest"] == entries[2][b"digest"] != entries[1][b"digest"]
        assert entries[0][b"response"] == response.id.encode()

    async def test_the_stream_is_capped(self, serve: Serve, speaker: Speaker, redis_url: str) -> None:
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            violations = Violations(client)
            for _ in range(3):
                for index in range(4500):
                    violations.add(Violation(Finding("email", "flag", "input", f"{index:032x}"), "cap", "k", "r"))
                await violations.flush()
            assert MAX_FINDINGS <= await client.xlen("rh1:safety:{cap}") < MAX_FINDINGS + 500
        assert violations.lost == 0

    async def test_an_anomalous_prompt_can_be_refused(self, serve: Serve, speaker: Speaker) -> None:
        async with guarded(serve, speaker, SafetySettings(anomalies="block")) as served:
            for _ in range(25):
                await served.client.responses.create(model="auto", input="hello there", max_output_tokens=1)
            with pytest.raises(openai.RateLimitError) as caught:
                await served.client.responses.create(model="auto", input="hello there " * 1000)
        assert caught.value.code == "anomalous_request"
        assert "retry-after" in caught.value.response.headers

    async def test_turns_go_on_without_redis(self, serve: Serve, speaker: Speaker) -> None:
        engines = {"small": [speaker.engine.address]}
        with (server := redis_server()) as url:
            async with serve(engines=engines, safety=REDACT, redis_options={"url": url}) as served:
                await asyncio.to_thread(server.stop)
                assert (await served.client.responses.create(model="auto", input="hello")).output_text == SHOWN
