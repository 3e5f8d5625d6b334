"""Functions and fixtures that tests of stored questions share."""

from __future__ import annotations

import numpy as np
from redis.asyncio import Redis

from cache.questions.index import Vector
from cache.questions.store import Check
from cache.response import CachedAnswer, Lookup, ResponseCache
from cache.semantic.model import FEATURES, VERSION, CorrectnessModel
from cache.shape import shape_of
from gateway.storage.seal import Seal

DIMENSIONS = 8

MODEL = CorrectnessModel(
    version=VERSION,
    embedder="all-MiniLM-L6-v2",
    features=FEATURES,
    means=(0.75,) + (0.0,) * (len(FEATURES) - 1),
    scales=(0.05,) + (1.0,) * (len(FEATURES) - 1),
    bias=0.0,
    weights=(3.0,) + (0.0,) * (len(FEATURES) - 1),
    covariance=((0.0,) * (len(FEATURES) + 1),) * (len(FEATURES) + 1),
    sigma=0.5,
    z=1.0,
    floor=0.5,
    served_from=0.8,
    bands=(0.5, 0.9),
    pairs=1,
    data="",
)
"""A model that is sure from a similarity of about 0.8."""


SEAL = Seal(b"secret")


def check(correct: bool = True, *, answer: str = "d1", logit: float = 1.0, band: int | None = 0) -> Check:
    """Return a check of an answer."""
    return Check(answer=answer, correct=correct, logit=logit, band=band, basis="embedder:2", promise=0.02)


def vector(*leading: float) -> Vector:
    """Return a vector of length 1 with these first numbers."""
    made = np.zeros(DIMENSIONS, dtype=np.float32)
    made[: len(leading)] = leading
    normal: Vector = made / np.linalg.norm(made)
    return normal


async def answer(cache: ResponseCache, tenant: str, digest: str, text: str = "42") -> Lookup:
    """Have the exact cache hold an answer; returns the look-up that began it."""
    shape = shape_of((len(text),), (0,), ())
    entry = CachedAnswer(text=text, shape=shape, model="m", tier="small", input_tokens=3, output_tokens=2)
    found = await cache.get(tenant, digest)
    assert await cache.put(tenant, digest, entry, found) is not None
    return found


def responses(redis: Redis, ttl: float = 60) -> ResponseCache:
    return ResponseCache(redis, SEAL, ttl=ttl, max_entries=1000)
