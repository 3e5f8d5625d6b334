"""Turns that other gateways run, while they take long to be shown."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import Unavailable
from gateway.turns import following as following_module
from gateway.turns.following import Followings, Mirror
from gateway.turns.messages import FollowRefused, FollowTurn, GatewayMessage

pytestmark = pytest.mark.anyio


async def test_who_has_waited_in_vain_takes_nothing_from_those_who_came_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share the question, and each waits for the answer as long as any caller does."""
    asked: list[GatewayMessage] = []

    async def send(gateway: str, message: GatewayMessage) -> None:
        asked.append(message)

    async def lost(mirror: Mirror) -> None:
        raise AssertionError("nobody is lost")

    followings = Followings("here", send, lost)

    async def follow(seconds: float) -> asyncio.Task[Mirror | None]:
        """Begin to follow the turn, with so many seconds for the answer."""
        monkeypatch.setattr(following_module, "ANSWER_TIMEOUT", seconds)
        task = asyncio.create_task(followings.follow("resp_1", "acme", "there"))
        await asyncio.sleep(0)
        return task

    async with asyncio.timeout(10):
        first, second = await follow(0.01), await follow(60)
        with pytest.raises(Unavailable):
            await first
        [question] = asked
        assert isinstance(question, FollowTurn)
        followings.on_refused(FollowRefused(question.turn, question.tenant, question.feed, None))
        assert await second is None
        last = await follow(0.01)
        with pytest.raises(Unavailable):
            await last
    assert followings.mirrors == 0
    await followings.aclose()
