"""What turns continue, for tests that make their turns themselves."""

from __future__ import annotations

from redis.asyncio import Redis

from gateway.config.settings import TurnSettings
from gateway.storage.seal import Seal
from gateway.turns.compaction import Compactions
from gateway.turns.context import Context
from gateway.turns.conversations import Conversations


def context(redis: Redis | None = None) -> Context:
    """Conversations in this Redis; without one they cannot be reached."""
    seal = Seal(bytes(32))
    nowhere = Redis(host="127.0.0.1", port=1)
    return Context(Conversations(redis or nowhere, seal, TurnSettings()), Compactions(seal))
