"""What Redis keeps of shared conversations. Who may read them is tested with the endpoints."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from gateway.errors import Gone, Unavailable
from gateway.turns.chats import Owner
from gateway.turns.shares import Shares

pytestmark = pytest.mark.anyio


async def test_a_revocation_that_fails_can_be_repeated(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the owner sees that the conversation is shared."""

    def broken(**_: object) -> None:
        raise ConnectionError

    async with Redis.from_url(redis_url) as client:
        shares, owner = Shares(client), Owner("demo", "ann")
        share = await shares.create(owner, b"sealed", 60)
        with monkeypatch.context() as patch:
            patch.setattr(client, "pipeline", broken)
            with pytest.raises(Unavailable):
                await shares.revoke(owner, share.id)
        assert await shares.shared_by(owner) == [share]
        await shares.revoke(owner, share.id)
        with pytest.raises(Gone):
            await shares.read(share.id, "demo")
        assert await shares.shared_by(owner) == []
