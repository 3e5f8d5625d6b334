"""Cache statistics and invalidation through the admin API."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from cache.questions.corrections import Corrections
from cache.semantic.evidence import Comparisons, Evidence
from cache.semantic.keys import answer_key, evidence_key
from gateway.config.settings import SemanticCacheSettings
from tests.gateway.admin.conftest import Administer, problem

pytestmark = pytest.mark.anyio


async def test_an_invalidated_answer_is_computed_again(administer: Administer) -> None:
    """And the statistics say what happened."""
    began = time.time()
    async with administer() as api:

        async def ask() -> str:
            choice: Any = {"format": {"type": "choice", "choices": ["yes"]}}
            raw = await api.served.client.responses.with_raw_response.create(
                model="small", input="hello", text=choice, max_output_tokens=400
            )
            await api.served.settle()
            return raw.headers["x-roundhouse-cache"]

        assert [await ask(), await ask()] == ["miss", "hit"]
        emptied = await api.operator.post("/tenants/demo/cache/invalidate")
        assert emptied.status_code == 204
        assert await ask() == "miss"
        statistics = (await api.operator.get("/tenants/demo/cache")).json()
        while statistics["counters"].get("exact_hit") != 1 or statistics["counters"].get("exact_miss") != 2:
            statistics = (await api.operator.get("/tenants/demo/cache")).json()
        assert statistics["exact_hit_rate"] == pytest.approx(1 / 3)
        assert (await api.operator.get("/cache")).json()["data"] == [statistics]
        by_hour = (await api.operator.get("/tenants/demo/cache/hours")).json()
        hours = by_hour["data"]
        assert sum(hour["counters"].get("exact_hit", 0) for hour in hours) == 1
        assert by_hour["total"] == {name: statistics[name] for name in by_hour["total"]}
        assert (await api.operator.get("/cache/hours")).json() == {**by_hour, "semantic": None}
        assert hours[0]["hour"] == time.strftime("%Y-%m-%dT%H", time.gmtime(began))
        nothing = (await api.acme.get("/tenants/acme/cache/hours")).json()
        assert (nothing["data"], nothing["total"]["exact_hit_rate"]) == ([], None)


async def test_a_stored_answer_tells_its_state_in_the_semantic_cache(administer: Administer) -> None:
    async with administer() as api:
        choice: Any = {"format": {"type": "choice", "choices": ["yes"]}}
        await api.served.client.responses.create(model="small", input="hello", text=choice, max_output_tokens=400)
        await api.served.settle()
        (stored,) = (await api.operator.get("/tenants/demo/cache/answers")).json()["data"]
        assert "semantic" not in stored
        await api.served.gateway.redis.hset(answer_key("demo", stored["digest"]), "state", "verified")
        (stored,) = (await api.operator.get("/tenants/demo/cache/answers")).json()["data"]
        assert stored["semantic"] == "verified"


async def test_a_repeated_invalidation_is_one_entry_in_the_audit_log(administer: Administer) -> None:
    """By its idempotency key."""
    async with administer() as api:
        for _ in range(3):
            headers = {"idempotency-key": "once"}
            assert (await api.acme.post("/tenants/acme/cache/invalidate", headers=headers)).status_code == 204
        (entry,) = (await api.acme.get("/tenants/acme/audit")).json()["data"]
        assert (entry["action"], entry["tenant"]) == ("cache.invalidate", "acme")
        problem(await api.acme.post("/tenants/demo/cache/invalidate"), 404, "not_found")


async def test_a_revoked_answer_is_named_by_itself_or_by_a_response(administer: Administer) -> None:
    """Within the tenant; the second naming changes nothing."""
    answer, response = "ab" * 16, f"resp_{'cd' * 24}"
    async with administer() as api:
        redis = api.served.gateway.redis
        await redis.hset(answer_key("acme", answer), "state", "verified")
        await Corrections(redis).note("acme", response, answer)
        path = "/tenants/acme/cache/revoke"
        problem(await api.other.post(path, params={"answer": answer}), 404, "not_found")
        problem(await api.other.post("/tenants/other/cache/revoke", params={"answer": response}), 404, "not_found")
        assert await redis.hget(answer_key("acme", answer), "state") == b"verified"
        assert (await api.acme.post(path, params={"answer": response})).status_code == 204
        assert await redis.hget(answer_key("acme", answer), "state") == b"revoked"
        chat = response.replace("resp_", "chatcmpl-")
        assert (await api.acme.post(path, params={"answer": chat})).status_code == 204
        assert (await api.operator.post(path, params={"answer": answer})).status_code == 204
        problem(await api.acme.post(path, params={"answer": "ab" * 15}), 400, "invalid_value")
        problem(await api.acme.post(path, params={"answer": f"resp_{'00' * 24}"}), 404, "not_found")
        statistics = (await api.acme.get("/tenants/acme/cache")).json()
        assert statistics["counters"]["semantic_revoked"] == 1


async def test_the_statistics_say_whether_similar_questions_are_answered(administer: Administer) -> None:
    """And why not; nothing where the semantic cache is off."""
    settings = SemanticCacheSettings(enabled=True, tenants={"other": 0.0})
    async with administer(semantic_cache=settings) as api:
        evidence = Evidence(bands=(Comparisons(500.0, 1.0),))
        await api.served.gateway.redis.hset(evidence_key("acme"), "state", msgspec.json.encode(evidence))
        bands = (await api.acme.get("/tenants/acme/cache")).json()["semantic"]
        assert [band["standing"] for band in bands] == ["unproven", "kept"]
        assert (bands[1]["compared"], bands[1]["wrong"], bands[1]["lacking"]) == (501, 1, 0)
        assert bands[0]["lacking"] > 200 and bands[0]["bound"] > bands[1]["bound"]
        assert (await api.acme.get("/tenants/acme/cache/hours")).json()["semantic"] == {"promise": 0.02, "bands": bands}
        for path, nothing in (("cache", []), ("cache/hours", None)):
            assert (await api.other.get(f"/tenants/other/{path}")).json()["semantic"] == nothing


async def test_single_answers_and_tags_are_forgotten(administer: Administer) -> None:
    """By digest, by tag; the list has no texts."""
    async with administer() as api:

        async def ask(tag: str) -> str:
            choice: Any = {"format": {"type": "choice", "choices": ["yes"]}}
            raw = await api.served.client.responses.with_raw_response.create(
                model="small",
                input="hello",
                text=choice,
                max_output_tokens=400,
                extra_headers={"x-roundhouse-cache-tags": tag},
            )
            return raw.headers["x-roundhouse-cache"]

        assert [await ask("faq"), await ask("news")] == ["miss", "miss"]
        listed = (await api.operator.get("/tenants/demo/cache/answers")).json()
        assert listed["entries"] == 2 and {tag for each in listed["data"] for tag in each["tags"]} == {"faq", "news"}
        assert "yes" not in str(listed)
        (digest,) = (each["digest"] for each in listed["data"] if each["tags"] == ["faq"])
        assert (await api.operator.delete(f"/tenants/demo/cache/answers/{digest}")).status_code == 204
        problem(await api.operator.delete(f"/tenants/demo/cache/answers/{digest}"), 404, "not_found")
        problem(await api.acme.delete(f"/tenants/demo/cache/answers/{digest}"), 404, "not_found")
        assert [await ask("faq"), await ask("news")] == ["miss", "hit"]
        assert (await api.operator.post("/tenants/demo/cache/invalidate?tag=news")).status_code == 204
        assert [await ask("faq"), await ask("news")] == ["hit", "miss"]
