"""`/v1/models`, driven by the real `openai` client."""

from __future__ import annotations

import openai
import pytest

from gateway.config.settings import PriceSettings
from tests.gateway.conftest import CONTEXT, EngineThread, Serve

pytestmark = pytest.mark.anyio


async def test_names_are_auto_tiers_and_models(serve: Serve, engine: EngineThread) -> None:
    """Each with its tier and context length; every one of them can be asked."""
    async with serve(engines={"small": [engine.address], "large": [engine.address]}) as served:
        models = [model async for model in served.client.models.list()]
        answered = [
            (await served.client.completions.create(model=model.id, prompt="hello", max_tokens=1)).model
            for model in models
        ]
    assert [model.id for model in models] == ["auto", "small", "large", "tiny-small", "tiny-large"]
    assert [model.to_dict()["tier"] for model in models] == [None, "small", "large", "small", "large"]
    assert {model.to_dict()["context_length"] for model in models} == {CONTEXT}
    assert {model.to_dict()["type"] for model in models} == {"chat"}
    assert all(model.object == "model" and model.created > 0 and model.owned_by for model in models)
    assert answered[0] in ("tiny-small", "tiny-large")
    assert answered[1:] == ["tiny-small", "tiny-large", "tiny-small", "tiny-large"]


async def test_prices_are_told_where_it_is_known_who_answers(serve: Serve, engine: EngineThread) -> None:
    """In micro-dollars per million tokens; without a price of its own for cached input, that of input."""
    prices = [
        PriceSettings(name="tiny-small", input=100, output=400),
        PriceSettings(name="tiny-large", input=900, cached_input=90, output=2000),
    ]
    async with serve(
        engines={tier: [engine.address] for tier in ("small", "medium", "large")}, prices=prices
    ) as served:
        told = {model.id: model.to_dict()["price"] async for model in served.client.models.list()}
    small = {"input": 100, "cached_input": 100, "output": 400}
    large = {"input": 900, "cached_input": 90, "output": 2000}
    assert told == {
        "auto": None,
        "small": small,
        "medium": None,
        "large": large,
        "tiny-small": small,
        "tiny-medium": None,
        "tiny-large": large,
    }


async def test_a_model_that_is_called_like_its_tier_is_there_once(serve: Serve) -> None:
    async with serve(pool={"name": "small"}) as served:
        models = [model.id async for model in served.client.models.list()]
    assert models == ["auto", "small"]


async def test_one_name_can_be_looked_up(serve: Serve) -> None:
    """And an unknown one is OpenAI's 404; no name at all is the list."""
    async with serve() as served:
        assert await served.client.get("/models/", cast_to=object) == await served.client.get("/models", cast_to=object)
        model = await served.client.models.retrieve("tiny-small")
        with pytest.raises(openai.NotFoundError) as caught:
            await served.client.models.retrieve("org/other")
    assert model.id == "tiny-small"
    assert caught.value.code == "model_not_found"


async def test_names_are_only_for_those_with_a_key(serve: Serve) -> None:
    """401 without one."""
    async with serve() as served:
        stranger = served.client.with_options(api_key="wrong")
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()
