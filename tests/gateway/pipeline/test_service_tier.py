"""Service tiers on their way from a request to the engine and back, and answers that cannot be given."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import openai
import pytest

from engine.text.detokenizer import IncrementalDetokenizer
from gateway.errors import InvalidRequest
from gateway.pipeline.service_tier import share_of
from gateway.records.directory import Tenant
from tests.gateway.conftest import EngineThread, Serve

PREMIUM = Tenant(name="gold", weight=3.0, service="premium", services=["standard", "batch"])
PLAIN = Tenant(name="plain")


@pytest.mark.parametrize(
    ("tenant", "asked", "service", "told"),
    [
        (PLAIN, "auto", "standard", "default"),
        (PLAIN, "default", "standard", "default"),
        (PLAIN, "flex", "batch", "flex"),
        (PREMIUM, "auto", "premium", "priority"),
        (PREMIUM, "fast", "premium", "priority"),
        (PREMIUM, "ultrafast", "premium", "priority"),
        (PREMIUM, "flex", "batch", "flex"),
    ],
)
def test_what_a_tier_means_for_a_tenant(tenant: Tenant, asked: str, service: str, told: str) -> None:
    share = share_of(tenant, asked)  # type: ignore[arg-type]
    assert (share.service, share.tier, share.weight) == (service, told, tenant.weight)


@pytest.mark.parametrize("asked", ["priority", "fast"])
def test_a_tier_that_a_tenant_may_not_have_is_refused_by_name(asked: str) -> None:
    with pytest.raises(InvalidRequest, match=r"service_tier.*use one of auto, default, flex") as caught:
        share_of(PLAIN, asked)  # type: ignore[arg-type]
    assert caught.value.param == "service_tier"


def test_engines_are_not_told_the_tenant_s_name() -> None:
    assert "plain" not in share_of(PLAIN, "auto").tenant
    assert share_of(PLAIN, "auto").tenant == share_of(PLAIN, "flex").tenant != share_of(PREMIUM, "auto").tenant


@pytest.mark.anyio
async def test_answers_say_which_tier_they_were_served_in(serve: Serve) -> None:
    """With unchanged clients, in all formats."""
    async with serve() as served:
        client = served.client
        response = await client.responses.create(model="small", input="hi", max_output_tokens=3, service_tier="flex")
        assert response.service_tier == "flex"
        whole = await client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "hi"}], max_tokens=3
        )
        assert whole.service_tier == "default"
        stream = await client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "hi"}], max_tokens=3, service_tier="flex", stream=True
        )
        assert {chunk.service_tier async for chunk in stream} == {"flex"}
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="small", input="hi", service_tier="priority")
        assert (caught.value.param, caught.value.code) == ("service_tier", "invalid_value")
        await served.settle()


@pytest.mark.anyio
async def test_a_queue_that_is_too_long_is_a_503_that_says_when_to_come_back(serve: Serve, model: Path) -> None:
    async def ask(client: openai.AsyncOpenAI, number: int) -> openai.APIStatusError | None:
        try:
            await client.chat.completions.create(
                model="small",
                messages=[{"role": "user", "content": f"hi {number}"}],  # the same would share one answer
                max_tokens=400,
                extra_body={"ignore_eos": True},
            )
        except openai.APIStatusError as error:
            return error
        return None

    with EngineThread(model, max_running=1) as narrow:
        async with serve(engines={"small": [narrow.address]}, turns={"queue_timeout": 0.05}) as served:
            answers = await asyncio.gather(*(ask(served.client, number) for number in range(4)))
            errors = [error for error in answers if error is not None]
            assert errors, "one row cannot serve four requests within 0.05 s"
            for error in errors:
                assert (error.status_code, error.code) == (503, "overloaded")
                assert int(error.response.headers["retry-after"]) >= 1
            await served.settle()


@pytest.mark.anyio
async def test_an_answer_that_cannot_be_read_costs_itself_only(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often: the engine is not to blame for it, so that its breaker stays as it is."""
    push = IncrementalDetokenizer.push
    texts = []

    def clumsy(self: IncrementalDetokenizer, token: int) -> str:
        texts.append(push(self, token))
        if len(texts) > 3:
            raise IndexError("no such piece")
        return texts[-1]

    async with serve() as served:
        ask = partial(served.client.chat.completions.create, model="small", max_tokens=20)
        monkeypatch.setattr(IncrementalDetokenizer, "push", clumsy)
        for number in range(2 * served.gateway.settings.router.breaker_failures):
            with pytest.raises(openai.APIStatusError) as caught:
                await ask(messages=[{"role": "user", "content": f"hi {number}"}], extra_body={"ignore_eos": True})
            assert (caught.value.status_code, caught.value.code) == (502, "engine_failed")
            assert "could not be turned into text" in str(caught.value)
        monkeypatch.undo()
        answer = await ask(messages=[{"role": "user", "content": "hi"}])
        assert answer.choices[0].message.content
        await served.settle()
