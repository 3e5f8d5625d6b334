"""What a tenant can learn of another from how long an answer takes: nothing, as the same work is done."""

from __future__ import annotations

import asyncio
import re

import pytest

from gateway.access.identity import Principal
from tests.gateway.conftest import Serve, Served
from tests.gateway.pipeline.sources.conftest import Speaker, ask, outcome, request, said, speaking

pytestmark = pytest.mark.anyio

QUESTION = request("Is the merger off?")
SHOWN = "the whole text is shown"
BY_TIME = ("rh1:stat:", "rh1:usage", "rh1:presence")
"""Written now and then, not by the turn."""


async def work(served: Served, speaker: Speaker, tenant: str, *, expected: str) -> list[str]:
    """The keys that one turn of a tenant touches in Redis until its text is shown; what is random left out."""
    touched: list[str] = []
    redis = served.gateway.redis
    async with redis.monitor() as monitor:  # type: ignore[no-untyped-call]

        async def listen() -> None:
            async for each in monitor.listen():
                command = each["command"]
                if SHOWN in command:
                    return
                keys = [key for key in re.findall(r"rh1:[^\s\"]+", command) if not key.startswith(BY_TIME)]
                if any(f"{{{tenant}}}" in key for key in keys):
                    shown = [re.sub(r"[0-9a-f]{16,}|[A-Za-z0-9_-]{22,}", "_", key) for key in keys]
                    touched.append(" ".join([command.split()[0], *shown]).replace(tenant, "<tenant>"))

        listening = asyncio.create_task(listen())
        speaker.engine.gate.clear()
        asked = ask(served, QUESTION, Principal(tenant, "key"))
        await said(asked)
        await redis.echo(SHOWN)
        async with asyncio.timeout(10):
            await listening
        speaker.engine.gate.set()
    assert outcome(await asked.ended())[0] == expected
    return sorted(touched)


async def test_what_others_have_stored_makes_no_difference(serve: Serve, speaker: Speaker) -> None:
    """A question that another tenant has asked costs the same commands as one that it has not asked."""
    async with speaking(serve, speaker) as served:
        await work(served, speaker, "omega", expected="miss")  # Redis learns the scripts
        first = await work(served, speaker, "alpha", expected="miss")
        again = await work(served, speaker, "alpha", expected="hit")
        stranger = await work(served, speaker, "gamma", expected="miss")
    assert stranger == first
    assert again != first  # so the comparison can see a difference
    assert any("rh1:resp:" in each for each in first)
