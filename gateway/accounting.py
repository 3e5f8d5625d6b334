"""What is kept of a turn that has ended: metrics, statistics per tenant, and one log line."""

from __future__ import annotations

import logging
from time import monotonic

from cache.statistics import CacheStatistics
from gateway.job import End, Job
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.tracing import Tracing

logger = logging.getLogger("roundhouse.turns")

OUTCOMES = {
    "stop": "completed",
    "length": "incomplete",
    "content_filter": "blocked",
    "cancelled": "cancelled",
    "error": "failed",
}
"""How a turn ended, in the words of metrics and logs."""


class Accounts:
    """Keeps the books of this process."""

    def __init__(self, statistics: CacheStatistics, metrics: Metrics, tracing: Tracing | None = None) -> None:
        self._statistics = statistics
        self._metrics = metrics
        self._tracing = tracing

    def close(self, job: Job, end: End) -> None:
        """Metrics, statistics and one log line for a turn that has ended."""
        streamed, usage, metrics = end.streamed, end.streamed.usage, self._metrics
        metrics.cache(end.cache)
        if self._tracing is not None:
            self._tracing.answered(job, end)
        if streamed.error:
            metrics.error(streamed.error.code)
        if streamed.first_token is not None and streamed.last_token is not None:
            seconds = streamed.first_token - job.began
            metrics.first_token(end.tier, end.cache, seconds, job.turn.trace.exemplar)
            if usage.output_tokens > 1 and end.cache != "hit":
                gaps = usage.output_tokens - 1
                metrics.inter_token(end.tier, (streamed.last_token - streamed.first_token) / gaps)
        if end.cache != "hit":
            metrics.queued(end.tier, streamed.queue_seconds)
            # Not the adapter: its name may tell whose it is, and there may be thousands.
            model = job.adapter.model if job.adapter else end.model
            metrics.tokens(model, input=usage.input_tokens, cached=usage.cached_tokens, output=usage.output_tokens)
            tenant = job.turn.principal.tenant
            self._statistics.add(tenant, "prompt_tokens", usage.input_tokens)
            self._statistics.add(tenant, "prefix_tokens_hit", usage.cached_tokens)
        logger.info(
            "turn ended",
            extra={
                "response_id": job.turn.id,
                "tenant": job.turn.principal.tenant,
                "key": job.turn.principal.key,
                "tier": end.tier,
                "model": end.model,
                "outcome": OUTCOMES[streamed.reason],
                "code": streamed.error.code if streamed.error else None,
                "cache": end.cache,
                "input_tokens": usage.input_tokens,
                "cached_tokens": usage.cached_tokens,
                "output_tokens": usage.output_tokens,
                "seconds": round(monotonic() - job.began, 4),
            },
        )
