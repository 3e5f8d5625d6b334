"""What a turn is charged for: its limits, and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engine.client.encoder import ConversationEncoder
from gateway.config.safety import SafetySettings
from gateway.config.settings import PriceSettings
from gateway.protocol.requests import Sampling
from gateway.protocol.stream import LimitState, TextDelta
from gateway.safety.guard import Guard
from gateway.tools.answer import AnswerReader
from tests.gateway.conftest import Serve
from tests.gateway.limits.use import STILL
from tests.gateway.limits.use import used as used_by
from tests.gateway.pipeline.turns import DEMO, code_of, request, routes, run, stopping, text

pytestmark = pytest.mark.anyio


class TestLimits:
    """Reserve and settle."""

    async def test_a_turn_is_charged_for_what_it_used(self, serve: Serve) -> None:
        """Reserved was more."""
        async with serve(limits=STILL) as served:
            events = await run(served, request(max_output_tokens=4))
            (state,) = (event for event in events if isinstance(event, LimitState))
            used = await used_by(served)
            assert used["output_tokens_per_minute"] == 4
            assert used["input_tokens_per_minute"] == events[-1].usage.input_tokens
            assert {each.name: each.limit - each.remaining for each in state.readings} == used
            refused = await code_of(served, request("no such model", model="nope"))
            assert refused == "model_not_found"
            assert await used_by(served) == used
            await served.settle()

    @pytest.mark.parametrize("limit", ["requests_per_minute", "concurrent_turns"])
    async def test_cheap_limits_come_before_work(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch, limit: str
    ) -> None:
        """Nothing reads the text of who has sent too many requests: no rule, no template, no tokenizer."""
        read: list[str] = []

        def note(owner: type, name: str) -> None:
            real = getattr(owner, name)

            def called(*arguments: Any, **options: Any) -> Any:
                read.append(name)
                return real(*arguments, **options)

            monkeypatch.setattr(owner, name, called)

        note(Guard, "admit")
        note(ConversationEncoder, "encode")
        safety = SafetySettings(input={"email": "redact"})
        async with serve(limits={limit: 1, "burst_seconds": 1}, safety=safety) as served:
            with await served.gateway.turns.start(request(max_output_tokens=3000), DEMO) as viewer:
                async for entry in viewer.entries():
                    if isinstance(entry.event, TextDelta):
                        break
                assert read == ["admit", "encode"]
                for text in ("second", "long " * 1000):
                    assert await code_of(served, request(text)) == "rate_limit_exceeded"
                assert read == ["admit", "encode"]
                viewer.turn.cancel()
            await served.settle()

    async def test_a_request_that_is_refused_for_its_text_or_size_is_one_request_and_nothing_else(
        self, serve: Serve
    ) -> None:
        """What it had taken beside that comes back."""
        limits = {**STILL, "requests_per_minute": 10, "concurrent_turns": 1}
        async with serve(limits=limits, safety=SafetySettings(input={"email": "block"})) as served:
            before = await used_by(served)
            assert await code_of(served, request("write to a@example.com " + "long " * 500)) == "content_blocked"
            assert await code_of(served, request("long " * 2000)) == "request_exceeds_limit"
            after = await used_by(served)
            assert {name: after[name] - before[name] for name in after} == {
                **dict.fromkeys(after, 0), "requests_per_minute": 2,
            }  # fmt: skip
            await served.settle()

    async def test_what_was_not_used_comes_back_when_a_turn_is_cancelled(self, serve: Serve) -> None:
        """Only the tokens that were computed count."""
        async with serve(limits=STILL) as served:
            with await served.gateway.turns.start(request(max_output_tokens=3000), DEMO) as viewer:
                async for entry in viewer.entries():
                    if isinstance(entry.event, TextDelta):
                        viewer.turn.cancel()
            finished = viewer.turn.log.finished
            assert finished is not None and finished.reason == "cancelled"
            used = await used_by(served)
            assert used["output_tokens_per_minute"] == finished.usage.output_tokens < 3000
            assert used["input_tokens_per_minute"] == finished.usage.input_tokens
            await served.settle()

    async def test_the_mode_expected_reserves_what_answers_mostly_need(self, serve: Serve) -> None:
        """The output limit as long as little is known."""
        limits = {"output_tokens_per_minute": 100, "mode": "expected"}
        async with serve(limits=limits, turns={"default_max_output_tokens": 50}) as served:
            assert await code_of(served, request(max_output_tokens=101)) == "request_exceeds_limit"
            for _ in range(100):
                served.gateway.limiter.expectations.observe("demo", "auto", 3)
            events = await run(served, request(max_output_tokens=101, sampling=Sampling(ignore_eos=True)))
            assert events[-1].usage.output_tokens == 101
            assert await code_of(served, request(max_output_tokens=101)) == "rate_limit_exceeded"
            await served.settle()

    async def test_a_warm_up_is_charged_for_its_prompt(self, serve: Serve) -> None:
        """Nothing was generated for anybody."""
        async with serve() as served:
            events = await run(served, request("warm " * 50, generate=False))
        assert events[-1].reason == "stop"
        assert events[-1].usage.output_tokens == 0 < events[-1].usage.input_tokens
        assert not text(events)


class TestCost:
    """What a turn costs, told at its end."""

    PRICE = PriceSettings(name="tiny-small", input=1_000_000, output=3_000_000)

    async def test_a_turn_costs_its_tokens_and_a_stored_answer_nothing(self, serve: Serve) -> None:
        """Here a micro-dollar per token of input and three per token of output."""
        async with serve(prices=[self.PRICE]) as served:
            asked = await stopping(served)
            first, again = await run(served, asked), await run(served, asked)
            await served.settle()
        assert first[-1].cost == first[-1].usage.input_tokens + 3 * first[-1].usage.output_tokens > 0
        assert (routes(again)[0].cache, again[-1].cost) == ("hit", 0)

    async def test_clients_are_told(self, serve: Serve) -> None:
        """In the response and a header; nothing is told of a model without a price."""
        async with serve(prices=[self.PRICE]) as served:
            raw = await served.client.responses.with_raw_response.create(input="hello", max_output_tokens=3)
            answer = await served.client.chat.completions.with_raw_response.create(
                model="auto", messages=[{"role": "user", "content": "hello"}], max_tokens=3, n=2
            )
            response: Any = raw.parse()
            stored: Any = await served.client.responses.retrieve(response.id)
        owed = response.usage.input_tokens + 3 * response.usage.output_tokens
        assert response.roundhouse == stored.roundhouse == {"cost_microdollars": owed}
        assert raw.headers["x-roundhouse-cost-microdollars"] == str(owed)
        # Two answers are two turns, each with its prompt.
        usage = answer.parse().usage
        assert usage is not None
        assert int(answer.headers["x-roundhouse-cost-microdollars"]) == (
            2 * usage.prompt_tokens + 3 * usage.completion_tokens
        )
        async with serve() as served:
            raw = await served.client.responses.with_raw_response.create(input="hello", max_output_tokens=3)
        assert "roundhouse" not in raw.parse().to_dict()
        assert "x-roundhouse-cost-microdollars" not in raw.headers

    async def test_what_was_delivered_is_owed_when_the_gateway_itself_fails(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Told, charged, and no reservation is left behind."""
        broken = AnswerReader.read
        seen: list[int] = []

        def read(reader: AnswerReader, text: str, tokens: Sequence[int], logprobs: Any) -> Any:
            if len(seen) > 20:
                raise RuntimeError("a fault of ours")
            seen.extend(tokens)
            return broken(reader, text, tokens, logprobs)

        monkeypatch.setattr(AnswerReader, "read", read)
        async with serve(prices=[self.PRICE], limits=STILL) as served:
            events = await run(served, request(max_output_tokens=2000))
            used = await used_by(served)
            await served.settle()
        finished = events[-1]
        assert finished.reason == "error" and finished.error.status == 500
        # With the last delta may have come the first bytes of a character, which are not shown yet.
        assert len(seen) <= finished.usage.output_tokens <= len(seen) + 3
        assert used["output_tokens_per_minute"] == finished.usage.output_tokens
        assert finished.cost == finished.usage.input_tokens + 3 * finished.usage.output_tokens
