"""What is kept of a turn that has ended: metrics, statistics per tenant, and one log line."""

from __future__ import annotations

import logging
import time
from functools import partial
from time import monotonic

from cache.statistics import CacheCounter
from gateway.billing.entry import LedgerEntry, Outcome
from gateway.billing.ledger import Ledger
from gateway.pipeline.job import Billed, End, Job
from gateway.pipeline.tracing import Tracing
from gateway.protocol.stream import Earlier, EndReason, TokenUsage
from gateway.telemetry.metrics.process import Metrics

logger = logging.getLogger("roundhouse.turns")

OUTCOMES: dict[EndReason, Outcome] = {
    "stop": "completed",
    "length": "incomplete",
    "content_filter": "blocked",
    "cancelled": "cancelled",
    "error": "failed",
}
"""How a turn ended, in the words of metrics and logs."""


class Accounts:
    """Keeps the books of this process."""

    def __init__(
        self, statistics: CacheCounter, ledger: Ledger, metrics: Metrics, tracing: Tracing | None = None
    ) -> None:
        self._statistics = statistics
        self._ledger = ledger
        self._metrics = metrics
        self._tracing = tracing

    def open(self, job: Job) -> None:
        """A turn has been admitted; exactly one of `close` and `refuse` follows."""
        self._ledger.open(job.turn.id, partial(_if_lost, job))

    def refuse(self, job: Job) -> None:
        """Nothing came of the turn, and nobody was shown anything."""
        self._ledger.close(job.turn.id, None)

    def close(self, job: Job, end: End) -> None:
        """Ledger, metrics, statistics and one log line for a turn that has ended."""
        self._ledger.close(job.turn.id, entry(job, end, OUTCOMES[end.streamed.reason]))
        streamed, usage, metrics = end.streamed, end.streamed.usage, self._metrics
        metrics.turns.cache(end.cache)
        if self._tracing is not None:
            self._tracing.answered(job, end)
        tokens = (usage.input_tokens, usage.cached_tokens, usage.output_tokens)
        metrics.activity.answered(job.turn.principal.tenant, end.cache, tokens, monotonic())
        if streamed.error:
            metrics.turns.error(streamed.error.code)
        if streamed.first_token is not None and streamed.last_token is not None:
            seconds = streamed.first_token - job.began
            metrics.answers.first_token(end.tier, end.cache, seconds, job.turn.trace.exemplar)
            if usage.output_tokens > 1 and end.cache != "hit":
                gaps = usage.output_tokens - 1
                metrics.answers.inter_token(end.tier, (streamed.last_token - streamed.first_token) / gaps)
        if end.cache != "hit":
            metrics.answers.queued(end.tier, streamed.queue_seconds)
            # Not the adapter: its name may tell whose it is, and there may be thousands.
            self._computed(job, job.base_model(end), usage)
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

    def escalated(self, job: Job, earlier: Earlier) -> None:
        """An answer is given up for another one: it has an entry of its own."""
        billed = Billed(earlier, job.prices.get(earlier.model))
        self._ledger.close(f"{job.turn.id}:escalated", _given_up(job, billed))
        self._computed(job, earlier.model, earlier.usage)

    def _computed(self, job: Job, model: str, usage: TokenUsage) -> None:
        self._metrics.answers.tokens(
            model, input=usage.input_tokens, cached=usage.cached_tokens, output=usage.output_tokens
        )
        tenant = job.turn.principal.tenant
        self._statistics.add(tenant, "prompt_tokens", usage.input_tokens)
        self._statistics.add(tenant, "prefix_tokens_hit", usage.cached_tokens)


def entry(job: Job, end: End, outcome: Outcome) -> LedgerEntry:
    """A turn's entry in the usage ledger."""
    usage, principal = end.streamed.usage, job.turn.principal
    return LedgerEntry(
        turn=job.turn.id,
        at=int(time.time() * 1000),
        tenant=principal.tenant,
        key=principal.key,
        user=principal.user,
        model=job.base_model(end),
        adapter=job.adapter.name if job.adapter else None,
        tier=end.tier,
        outcome=outcome,
        cache=end.cache,
        input=usage.input_tokens,
        cached=usage.cached_tokens,
        output=usage.output_tokens,
        picodollars=end.picodollars,
    )


def _given_up(job: Job, billed: Billed) -> LedgerEntry:
    answer, principal = billed.answer, job.turn.principal
    return LedgerEntry(
        turn=f"{job.turn.id}:escalated",
        at=int(time.time() * 1000),
        tenant=principal.tenant,
        key=principal.key,
        user=principal.user,
        model=answer.model,
        tier=answer.tier,
        outcome="escalated",
        cache=job.outcome,
        input=answer.usage.input_tokens,
        cached=answer.usage.cached_tokens,
        output=answer.usage.output_tokens,
        picodollars=billed.picodollars,
    )


def _if_lost(job: Job) -> LedgerEntry | None:
    """The entry of a running turn whose gateway dies now."""
    end = job.cut_off()
    return None if end is None else entry(job, job.billed(end), "lost")
