"""Waits until replicas of Redis have what was written, so that the loss of its primary loses nothing of it.

Redis replicates after it has answered: a primary that is killed may take its last second with it. Only what may not be
lost waits (`WAIT`): changes of the directory, and usage.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from redis.asyncio.client import Pipeline


class Replicas(Struct, frozen=True):
    """How many replicas must have something, and how long that may take."""

    number: int = 0
    seconds: float = 1.0

    async def execute(self, pipeline: Pipeline, seconds: float | None = None) -> tuple[list[Any], bool]:
        """Execute a pipeline; return its answers, and whether the replicas have what it wrote. `seconds`: to wait for
        that instead.

        Raises:
            RedisError, OSError: as the pipeline does.
        """
        if not self.number:
            return await pipeline.execute(), True
        pipeline.execute_command("WAIT", self.number, int(1000 * (self.seconds if seconds is None else seconds)))
        *answers, having = await pipeline.execute()
        return answers, having >= self.number
