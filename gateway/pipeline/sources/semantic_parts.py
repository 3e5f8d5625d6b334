"""Builds the semantic cache of a gateway, if it has one."""

from __future__ import annotations

import logging

from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache.embedding.client import EmbedderClient
from cache.embedding.store import Embeddings
from cache.questions.corrections import Corrections
from cache.questions.hints import Hints, IndexedHints, VectorSetHints, has_vector_sets
from cache.questions.store import SemanticStore
from cache.semantic.model import InvalidModel, shipped
from cache.statistics import CacheCounter
from gateway.background import failure_reporter
from gateway.config.settings import Settings
from gateway.pipeline.sources.response_cache import answer_seal
from gateway.pipeline.sources.semantic_cache import SimilarAnswers
from gateway.telemetry.metrics.semantic import SemanticMetrics

log = logging.getLogger("roundhouse.cache")


async def semantic_cache(
    settings: Settings,
    embedder: EmbedderClient | None,
    redis: Redis,
    reader: Redis,
    statistics: CacheCounter,
    metrics: SemanticMetrics,
    secret: bytes,
) -> SimilarAnswers | None:
    """Return the semantic cache, not started; None if it is switched off or a part is missing.

    Args:
        reader: a client of Redis whose reads may wait.
    """
    wanted = settings.semantic_cache
    if embedder is None or not wanted.enabled or not settings.cache.enabled:
        return None
    try:
        model = shipped()
    except (InvalidModel, OSError) as error:
        log.error("the semantic cache is off: its model cannot be read", extra={"error": str(error)})
        return None
    hints: Hints = IndexedHints(redis, reader, on_fault=failure_reporter("semantic index"))
    try:
        if await has_vector_sets(redis):
            hints = VectorSetHints(redis, ttl=settings.cache.ttl)
    except (RedisError, OSError):
        pass  # every Redis can do without
    embeddings = Embeddings(
        embedder,
        redis,
        ttl=wanted.embedding_ttl,
        max_bytes=wanted.max_embedding_bytes_per_tenant,
        on_fault=failure_reporter("embeddings"),
    )
    store = SemanticStore(redis, answer_seal(secret), max_questions=wanted.max_questions_per_tenant)
    return SimilarAnswers(embeddings, hints, store, Corrections(redis), model, statistics, metrics, secret)
