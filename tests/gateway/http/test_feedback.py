"""Feedback on responses: reasons of a thumb down, comments, and one answer preferred over others."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import redis.asyncio
from click.testing import CliRunner

from gateway.access.identity import Principal
from gateway.cli.root import main
from gateway.config.chat import ChatSettings
from gateway.config.settings import RouterSettings
from gateway.errors import Conflict, Unavailable
from gateway.pipeline.routing.decisions import Compared, preferences, read, read_feedback
from gateway.protocol.caching import Caching
from gateway.turns.comments import Comment
from router.tier import TIERS
from tests.gateway.conftest import KEY, EngineThread, Serve, Served
from tests.gateway.pipeline.routing.learnt import configuration, learnt_from
from tests.gateway.pipeline.routing.test_tiers import EXAM
from tests.gateway.pipeline.turns import DEMO, OTHER, request

pytestmark = pytest.mark.anyio

NO_STORE = Caching(no_store=True)


@pytest.fixture
def tiers(engine: EngineThread) -> dict[str, list[str]]:
    return {tier: [engine.address] for tier in TIERS}


async def answered(served: Served, text: str = EXAM, principal: Principal = DEMO, **fields: Any) -> str:
    """Return the id of an answered response."""
    with await served.gateway.turns.start(request(text, caching=NO_STORE, **fields), principal) as viewer:
        async for _ in viewer.entries():
            pass
        return viewer.turn.id


async def rate(served: Served, response: str, body: dict[str, Any]) -> httpx2.Response:
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as client:
        return await client.post(f"{served.base_url}/responses/{response}/feedback", json=body)


async def test_a_preference_reaches_the_refit(serve: Serve, tiers: Any, redis_url: str, tmp_path: Path) -> None:
    """With the tiers that have answered, on both sides; it does not count as a rating of one response."""
    file = learnt_from(tmp_path)
    async with serve(engines=tiers, router=RouterSettings(model=file)) as served:
        routed = await answered(served)
        small, large = [await answered(served, model=tier) for tier in ("small", "large")]
        said = await rate(served, large, {"rating": "preferred", "over": [routed, small, routed]})
        assert (said.status_code, said.json()) == (
            200,
            {
                "object": "response.feedback",
                "response_id": large,
                "rating": "preferred",
                "reason": None,
                "over": [routed, small],
                "comment": None,
            },
        )
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        (decision,), (noted,) = await read(client, "demo", 10), await read_feedback(client, "demo", 10)
    assert (noted.response, noted.signal, noted.tier) == (large, "preferred", "large")
    assert noted.over == (Compared(routed, decision.tier), Compared(small, "small"))
    found = preferences([decision], [noted], decision.model)
    assert [(each.better, each.worse) for each in found] == [
        ("large", tier) for tier in (decision.tier, "small") if tier != "large"
    ]
    runner = CliRunner(env={"ROUNDHOUSE_REDIS_URL": redis_url, "ROUNDHOUSE_CONFIG": configuration(tmp_path, file)})
    words = ["route", "refit", "--tenant", "demo", "--output", str(tmp_path / "model")]
    result = await asyncio.to_thread(runner.invoke, main, words)
    assert f"0 opinions, {len(found)} comparisons" in result.output


async def test_what_cannot_be_compared_is_refused_by_name(serve: Serve, tiers: Any) -> None:
    """Other questions, the response itself, those of other users and tenants, and nothing at all."""
    async with serve(engines=tiers) as served:
        one = await answered(served)
        another = await answered(served, "another question")
        of_ann = await answered(served, principal=Principal("demo", "demo", "ann"))
        of_others = await answered(served, principal=OTHER)
        for over, status in (
            ([another], 400),
            ([one], 400),
            ([of_ann], 404),
            ([of_others], 404),
            (["resp_unknown"], 404),
            ([], 400),
            (["resp_1"] * 9, 400),
        ):
            refused = await rate(served, one, {"rating": "preferred", "over": over})
            assert refused.status_code == status, (over, refused.text)
        refused = await rate(served, of_ann, {"rating": "preferred", "over": [one]})
        assert refused.status_code == 404
        await served.gateway.decisions.flush()
        assert await read_feedback(served.gateway.redis, "demo", 10) == []


async def test_a_thumb_down_may_have_a_reason(serve: Serve, tiers: Any) -> None:
    """One of a list, and only a thumb down."""
    async with serve(engines=tiers) as served:
        response = await answered(served)
        said = await rate(served, response, {"rating": "down", "reason": "off_format"})
        assert (said.status_code, said.json()["reason"]) == (200, "off_format")
        for body, param in (
            ({"rating": "up", "reason": "wrong"}, "reason"),
            ({"rating": "down", "reason": "dull"}, "reason"),
            ({"rating": "down", "over": [response]}, "over"),
        ):
            refused = await rate(served, response, body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        await served.gateway.decisions.flush()
        noted = await read_feedback(served.gateway.redis, "demo", 10)
    assert [(each.signal, each.reason) for each in noted] == [("down", "off_format")]


async def test_a_comment_is_deleted_with_its_response(
    serve: Serve, tiers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that fails half-way, and is repeated; not while the response stays, as it is still written."""

    async def away(*_: object) -> None:
        raise Unavailable("comments cannot be reached")

    async def busy(*_: object) -> None:
        raise Conflict("this response is still in progress", code="response_in_progress")

    async with serve(engines=tiers, chat=ChatSettings(comments=True)) as served:
        one, other, kept = await answered(served), await answered(served), served.gateway.comments
        for response in (one, other):
            await rate(served, response, {"rating": "up", "comment": "Right."})
        with monkeypatch.context() as patched:
            patched.setattr(served.gateway.turns, "delete", busy)
            with pytest.raises(openai.ConflictError):
                await served.client.responses.delete(one)
        assert await kept.find("demo", one) is not None
        await served.client.responses.delete(one)
        assert [comment.response for comment in await kept.of_tenant("demo")] == [other]
        with monkeypatch.context() as patched:
            patched.setattr(kept, "remove", away)
            with pytest.raises(openai.InternalServerError):
                await served.client.responses.delete(other)
        with pytest.raises(openai.NotFoundError):
            await served.client.responses.delete(other)
        assert await kept.of_tenant("demo") == []


async def test_a_comment_stands_beside_a_rating_where_it_may(serve: Serve, tiers: Any) -> None:
    """Of the last one: a rating without a comment takes it away. Elsewhere it is refused, and rating works as well."""
    chat = ChatSettings(comments=True, tenant_comments={"elsewhere": False})
    async with serve(engines=tiers, chat=chat) as served:
        response, kept = await answered(served), served.gateway.comments
        said = await rate(served, response, {"rating": "down", "reason": "wrong", "comment": "It is 1969."})
        assert (said.status_code, said.json()["comment"]) == (200, "It is 1969.")
        found = await kept.find("demo", response)
        assert found is not None and (found.rating, found.reason, found.text) == ("down", "wrong", "It is 1969.")
        for rating in ("up", None):
            await rate(served, response, {"rating": "up", "comment": "Now it is right."})
            assert await kept.find("demo", response) is not None
            assert (await rate(served, response, {"rating": rating})).json()["comment"] is None
            assert await kept.find("demo", response) is None
        for body in (
            {"rating": None, "comment": "a"},
            {"rating": "up", "comment": ""},
            {"rating": "up", "comment": 1001 * "a"},
        ):
            refused = await rate(served, response, body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "comment")
        assert not chat.comments_of("elsewhere")
    async with serve(engines=tiers) as served:
        response = await answered(served)
        refused = await rate(served, response, {"rating": "up", "comment": "a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "comments_off")
        await served.gateway.comments.write("demo", Comment(response, time.time_ns() // 1_000_000, "down", None, "a"))
        assert (await rate(served, response, {"rating": "up"})).status_code == 200
        assert await served.gateway.comments.find("demo", response) is None
