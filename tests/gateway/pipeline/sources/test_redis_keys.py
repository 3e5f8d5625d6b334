"""docs/redis-keys.md against what a gateway really writes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.gateway.batches.use import begun, line
from tests.gateway.conftest import KEY, Serve
from tests.gateway.limits.use import STILL
from tests.gateway.pipeline.sources.conftest import TEXT, Speaker, ask, request, run, said, speaking

pytestmark = pytest.mark.anyio

ROW = re.compile(r"^\| `(rh1:[^`]+)` \| (\w+) \| (.*) \| ([^|]+) \|$", re.MULTILINE)
LIMITS = ("rh1:limit:", "rh1:limit-held:", "rh1:limit-lease:", "rh1:limit-tenants")
WITHOUT_TTL = ("rh1:{directory}:", "rh1:usage", "rh1:{batches}:queue", "rh1:gateways", *LIMITS)
"""Keys that Redis must never drop to make room: they have caps, or gateways delete them."""


def documented() -> list[tuple[re.Pattern[str], str, str]]:
    """Pattern of the key, its type, what it holds."""
    page = Path("docs/redis-keys.md").read_text("utf-8")
    assert "\n\n| `" not in page, "a row without a table's head is shown as text"
    rows = ROW.findall(page)
    assert len(rows) > 30
    return [(re.compile(_pattern(key)), kind.lower(), holds) for key, kind, holds, _ in rows]


def _pattern(key: str) -> str:
    return re.sub(r"<[^>]+>", r"[^{}]+", re.escape(key).replace(r"\<", "<").replace(r"\>", ">"))


async def test_every_key_that_is_written_is_documented_and_bounded(serve: Serve, speaker: Speaker) -> None:
    """By turns that miss, hit, follow, are invalidated, kept, limited, counted and billed; by tickets, the audit, and a
    batch.
    """
    rows, seen = documented(), set()
    async with speaking(serve, speaker, limits=STILL) as served:
        redis = served.gateway.redis
        await run(served)
        await run(served)
        await served.gateway.response_cache.invalidate("demo", "faq")
        await served.client.conversations.create(items=[{"role": "user", "content": TEXT}])
        await served.client.post("/tickets", cast_to=object, body={}, options={"headers": {"Origin": served.url}})
        speaker.engine.gate.clear()
        await begun(served.client, [line("a"), line("b")], extra_headers={"Idempotency-Key": "once"})
        running = ask(served, request("something else"))
        await said(running, TEXT)
        wanted = {"rh1:resp:", "rh1:flight:", "rh1:epochs:", "rh1:stat:", "rh1:usage:", "rh1:turn:", "rh1:limit:"}
        wanted |= {"rh1:file:", "rh1:file-bytes:", "rh1:batch:", "rh1:batch-index:", "rh1:{batches}:"}
        wanted |= {"rh1:conversation:", "rh1:conversation-index:", "rh1:conversation-bytes:", "rh1:batch-once:"}
        found: list[str] = []

        async def read() -> bool:
            found[:] = [key.decode() for key in await redis.keys("*")]
            return all(any(key.startswith(start) for key in found) for start in wanted)

        while not await read():  # noqa: ASYNC110  only Redis knows
            await asyncio.sleep(0.05)
        for key in found:
            matching = {kind: holds for pattern, kind, holds in rows if pattern.fullmatch(key)}
            kind = (await redis.type(key)).decode()
            assert kind in matching, f"{key}, a {kind}, is not documented"
            lives = await redis.pttl(key)
            assert lives == -1 if key.startswith(LIMITS) else key.startswith(WITHOUT_TTL) or lives > 0, key
            if key.startswith("rh1:resp:"):
                fields = {field.decode() for field in await redis.hkeys(key)}
                assert fields == set(re.findall(r"`([a-z_]+)`", matching[kind]))
            seen.add(kind)
        speaker.engine.gate.set()
        await running.ended()
    assert seen == {"hash", "string", "zset", "stream"}
    assert KEY not in str(found)
