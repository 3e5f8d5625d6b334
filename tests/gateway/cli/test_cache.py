"""`roundhouse cache`: it reads and writes the keys that gateways use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
import pytest
from click.testing import CliRunner, Result
from redis.asyncio import Redis

from cache.keys import response_key
from cache.questions.corrections import Corrections
from cache.response import CachedAnswer, ResponseCache, Wish
from cache.semantic.evidence import Comparisons, Evidence, lacking
from cache.semantic.keys import answer_key, evidence_key
from cache.shape import DeltaShape
from cache.statistics import CacheCounter
from gateway.cli.root import main
from gateway.pipeline.sources.response_cache import answer_seal

T = TypeVar("T")
SECRET = bytes(32)
ENTRY = CachedAnswer(
    text="[red]Grüße", shape=DeltaShape((10,), (1,), (7,)), model="m", tier="small", input_tokens=5, output_tokens=1
)


def on(redis_url: str, act: Callable[[Redis], Coroutine[Any, Any, T]]) -> T:
    async def run_it() -> T:
        async with Redis.from_url(redis_url) as redis:
            return await act(redis)

    return asyncio.run(run_it())


@pytest.fixture
def run(redis_url: str) -> Callable[..., Result]:
    on(redis_url, lambda redis: redis.flushall())
    return lambda *arguments: CliRunner().invoke(
        main, ["cache", *arguments], env={"REDIS_URL": redis_url, "ROUNDHOUSE_SECRET": SECRET.hex()}
    )


def store(redis_url: str, digest: str, *tags: str) -> None:
    async def put(redis: Redis) -> None:
        cache = ResponseCache(redis, answer_seal(SECRET), ttl=60, max_entries=9)
        found = await cache.get("acme", digest, Wish(tags=tags))
        assert await cache.put("acme", digest, CachedAnswer(**{**_fields(), "tags": tags}), found) == 0

    on(redis_url, put)


def served(redis_url: str, digest: str) -> bool:
    """Whether a gateway would give it."""

    async def get(redis: Redis) -> bool:
        return (
            await ResponseCache(redis, answer_seal(SECRET), ttl=60, max_entries=9).get("acme", digest)
        ).entry is not None

    return on(redis_url, get)


def _fields() -> dict[str, Any]:
    return {name: getattr(ENTRY, name) for name in ENTRY.__struct_fields__}


def test_stats_shows_what_was_counted(run: Callable[..., Result], redis_url: str) -> None:
    async def count(redis: Redis) -> None:
        statistics = CacheCounter(redis)
        statistics.add("acme", "exact_hit", 3)
        statistics.add("acme", "exact_reject.canary")
        await statistics.flush()

    on(redis_url, count)
    assert json.loads(run("stats", "--tenant", "acme", "--json").output) == {
        "acme": {"exact_hit": 3, "exact_reject.canary": 1}
    }
    shown = run("stats").output
    assert "answers served" in shown and "not stored" in " ".join(shown.split())
    assert "nothing has been counted" in run("stats", "--tenant", "globex").output


def test_stats_says_whether_similar_questions_are_answered_and_why(
    run: Callable[..., Result], redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def count(redis: Redis) -> None:
        statistics = CacheCounter(redis)
        for tenant in ("acme", "globex", "off"):
            statistics.add(tenant, "semantic_miss")
        await statistics.flush()
        for tenant, bands in {
            "acme": (Comparisons(50.0, 50.0), Comparisons(500.0, 1.0)),
            "globex": (Comparisons(100.0, 0.0),),
        }.items():
            await redis.hset(evidence_key(tenant), "state", msgspec.json.encode(Evidence(bands=bands)))

    on(redis_url, count)
    assert "acme: the semantic cache is off" in run("stats").output
    monkeypatch.setenv("ROUNDHOUSE_SEMANTIC_CACHE_ENABLED", "true")
    monkeypatch.setenv("ROUNDHOUSE_SEMANTIC_CACHE_TENANTS", "off=0")
    shown = " ".join(run("stats").output.split())
    assert "acme: answers to similar questions are given; at most 2.0% of them may be wrong" in shown
    assert "by the model: given; 1 of 501 compared were wrong (0.2%" in shown
    assert f"not given until {lacking(Comparisons(100.0), 0.02)} more in a row are right; 0 of 100 compared" in shown
    assert "not given, too many are wrong; 50 of 100 compared were wrong (50.0%" in shown
    assert "globex: answers to similar questions are not given" in shown
    assert "off: the semantic cache is off" in shown
    told = json.loads(run("stats", "--json").output)
    assert [band["standing"] for band in told["acme"]["semantic_cache"]] == ["kept", "broken"]
    assert [band["standing"] for band in told["globex"]["semantic_cache"]] == ["unproven", "unproven"]
    assert told["off"] == {"semantic_miss": 1}


def test_ls_lists_what_is_stored(run: Callable[..., Result], redis_url: str) -> None:
    assert "nothing is stored of acme" in run("ls", "acme").output
    store(redis_url, "d1", "faq", "v:1")
    store(redis_url, "d2")
    listed = json.loads(run("ls", "acme", "--json").output)
    assert listed["entries"] == 2 and listed["bytes"] == sum(each["bytes"] for each in listed["data"])
    assert {each["digest"]: each["tags"] for each in listed["data"]} == {"d1": ["faq", "v:1"], "d2": []}
    assert all(each["valid"] and "text" not in each for each in listed["data"])
    assert len(json.loads(run("ls", "acme", "--json", "--limit", "1").output)["data"]) == 1
    assert "faq" in run("ls", "acme").output
    digest = "0123456789abcdef" * 2
    store(redis_url, digest, "a-tag-that-is-long", "and-another-one-that-is-longer")
    assert digest in run("ls", "acme").output  # in 80 columns: `show` and `rm` take it whole


def test_show_shows_one_answer(run: Callable[..., Result], redis_url: str) -> None:
    store(redis_url, "d1", "faq")
    shown = json.loads(run("show", "acme", "d1", "--json").output)
    assert (shown["text"], shown["model"], shown["tags"], shown["valid"]) == (ENTRY.text, "m", ["faq"], True)
    assert 0 < shown["expires"] - shown["created"] <= 61
    assert "[red]Grüße" in run("show", "acme", "d1").output  # as it is, not as rich's markup
    on(redis_url, lambda redis: redis.hset(response_key("acme", "d1"), "answer", "sealed by somebody else"))
    assert json.loads(run("show", "acme", "d1", "--json").output)["model"] == "m"
    broken = run("show", "acme", "d1")
    assert broken.exit_code == 1 and "cannot be opened: it was sealed with another secret" in broken.output
    missing = run("show", "acme", "d2")
    assert missing.exit_code == 1 and "roundhouse cache ls acme" in missing.output


def test_rm_forgets_single_answers(run: Callable[..., Result], redis_url: str) -> None:
    for digest in ("d1", "d2", "d3"):
        store(redis_url, digest)
    assert "2 forgotten" in run("rm", "acme", "d1", "d2").output
    assert [served(redis_url, digest) for digest in ("d1", "d2", "d3")] == [False, False, True]
    again = run("rm", "acme", "d1")
    assert again.exit_code == 1 and "no stored answer d1" in again.output


def test_invalidate_forgets_a_tag_or_all(run: Callable[..., Result], redis_url: str) -> None:
    store(redis_url, "d1", "faq")
    store(redis_url, "d2", "news")
    store(redis_url, "d3")
    said = run("invalidate", "acme", "--tag", "faq").output
    assert "with faq" in said and "none" not in said
    assert "none were stored" in run("invalidate", "amce").output
    assert [served(redis_url, digest) for digest in ("d1", "d2", "d3")] == [False, True, True]
    valid = {each["digest"]: each["valid"] for each in json.loads(run("ls", "acme", "--json").output)["data"]}
    assert valid == {"d1": False, "d2": True, "d3": True}
    run("invalidate", "acme")
    assert not any(served(redis_url, digest) for digest in ("d1", "d2", "d3"))
    refused = run("invalidate", "acme", "--tag", "*")
    assert refused.exit_code == 1 and "1 to 64 letters" in refused.output


def test_revoke_takes_answers_back_from_other_questions(run: Callable[..., Result], redis_url: str) -> None:
    """By digest or response; their own questions keep them."""
    for digest in ("d1", "d2"):
        store(redis_url, digest)

    async def known(redis: Redis) -> None:
        for digest in ("d1", "d2"):
            await redis.hset(answer_key("acme", digest), "state", "probation")
        for response in ("resp_1", "resp_3"):
            await Corrections(redis).note("acme", response, "d2")

    async def states(redis: Redis) -> list[bytes | None]:
        return [await redis.hget(answer_key("acme", digest), "state") for digest in ("d1", "d2")]

    on(redis_url, known)
    assert "1 revoked" in run("revoke", "acme", "d1").output
    assert on(redis_url, states) == [b"revoked", b"probation"]
    unknown = run("revoke", "acme", "resp_1", "resp_2", "d3")
    assert unknown.exit_code == 1 and "1 revoked" in unknown.output and "resp_2, d3" in unknown.output
    assert on(redis_url, states) == [b"revoked", b"revoked"]
    assert "2 revoked" in run("revoke", "acme", "chatcmpl-1", "cmpl-3").output  # as clients of these endpoints know it
    assert served(redis_url, "d1") and served(redis_url, "d2")
