"""Records turns that have ended: ledger, metrics, statistics per tenant, and one log line."""

from __future__ import annotations

import logging
import time
from functools import partial
from time import monotonic

from cache.statistics import CacheCounter
from gateway.billing.entry import LedgerEntry, Outcome
from gateway.billing.ledger import Ledger
from gateway.pipeline.relay import Streamed
from gateway.pipeline.tracing import Tracing
from gateway.pipeline.values import Answered, Progress
from gateway.protocol.stream import EndReason
from gateway.records.quota import Amounts, Charge
from gateway.telemetry.metrics.process import Metrics
from gateway.turns import Turn

logger = logging.getLogger("roundhouse.turns")

_OUTCOMES: dict[EndReason, Outcome] = {
    "stop": "completed",
    "length": "incomplete",
    "content_filter": "blocked",
    "cancelled": "cancelled",
    "error": "failed",
}


def outcome_of(streamed: Streamed) -> Outcome:
    """Return how a turn ended, in the words of metrics and logs. A request that was at fault itself was refused."""
    if streamed.error is not None and streamed.error.status < 500:
        return "refused"
    return _OUTCOMES[streamed.reason]


class Metering:
    """Records this process's turns in the ledger, metrics, statistics and log."""

    def __init__(
        self, statistics: CacheCounter, ledger: Ledger, metrics: Metrics, tracing: Tracing | None = None
    ) -> None:
        self._statistics = statistics
        self._ledger = ledger
        self._metrics = metrics
        self._tracing = tracing

    def open(self, progress: Progress) -> None:
        """Open the ledger entry of an admitted turn; exactly one of `close` and `refuse` follows."""
        self._ledger.open(progress.admitted.turn.id, partial(_if_lost, progress), partial(_charges, progress))

    def refuse(self, turn: Turn) -> None:
        """Drop the ledger entry of a turn that ended without an answer and before anybody was shown anything."""
        self._ledger.close(turn.id, None)

    def close(self, answered: Answered) -> None:
        """Record a turn that has ended: ledger, metrics, statistics and one log line."""
        turn, outcome = answered.admitted.turn, outcome_of(answered.streamed)
        charges = answered.admitted.reservation.charges(answered.charged, ended=True)
        self._ledger.close(turn.id, entry(answered, outcome), charges)
        streamed, usage, metrics = answered.streamed, answered.streamed.usage, self._metrics
        began, cached = turn.trace.began, answered.cache == "hit"
        metrics.turns.cache(answered.cache)
        if self._tracing is not None:
            self._tracing.answered(answered)
        tokens = (usage.input_tokens, usage.cached_tokens, usage.output_tokens)
        metrics.activity.answered(turn.principal.tenant, answered.cache, tokens, monotonic())
        if streamed.error:
            metrics.turns.error(streamed.error.code)
        if streamed.first_token is not None and streamed.last_token is not None:
            metrics.answers.first_token(
                answered.tier, answered.cache, streamed.first_token - began, turn.trace.exemplar
            )
            if usage.output_tokens > 1 and not cached:
                gaps = usage.output_tokens - 1
                metrics.answers.inter_token(answered.tier, (streamed.last_token - streamed.first_token) / gaps)
        if not cached:
            metrics.answers.queued(answered.tier, streamed.queue_seconds)
            # Not the adapter: its name may tell whose it is, and there may be thousands.
            metrics.answers.tokens(
                answered.base_model, input=usage.input_tokens, cached=usage.cached_tokens, output=usage.output_tokens
            )
            self._statistics.add(turn.principal.tenant, "prompt_tokens", usage.input_tokens)
            self._statistics.add(turn.principal.tenant, "prefix_tokens_hit", usage.cached_tokens)
        logger.info(
            "turn ended",
            extra={
                "response_id": turn.id,
                "tenant": turn.principal.tenant,
                "key": turn.principal.key,
                "tier": answered.tier,
                "model": answered.model,
                "outcome": outcome,
                "code": streamed.error.code if streamed.error else None,
                "cache": answered.cache,
                "input_tokens": usage.input_tokens,
                "cached_tokens": usage.cached_tokens,
                "output_tokens": usage.output_tokens,
                "seconds": round(monotonic() - began, 4),
            },
        )


def entry(answered: Answered, outcome: Outcome) -> LedgerEntry:
    """Return a turn's entry in the usage ledger."""
    admitted, streamed, usage = answered.admitted, answered.streamed, answered.streamed.usage
    began, routed = admitted.turn.trace.began, admitted.turn.log.routed
    computed = streamed.first_token is not None and answered.cache != "hit"
    return LedgerEntry(
        turn=admitted.turn.id,
        at=int(time.time() * 1000),
        tenant=admitted.turn.principal.tenant,
        key=admitted.turn.principal.key,
        user=admitted.turn.principal.user,
        model=answered.base_model,
        adapter=admitted.adapter.name if admitted.adapter else None,
        tier=answered.tier,
        outcome=outcome,
        cache=answered.cache,
        input=usage.input_tokens,
        cached=usage.cached_tokens,
        output=usage.output_tokens,
        picodollars=answered.picodollars,
        cache_reason=routed.cache_reason if routed else "",
        milliseconds=round(1000 * (monotonic() - began)),
        first_token_ms=None if streamed.first_token is None else round(1000 * (streamed.first_token - began)),
        queue_ms=round(1000 * streamed.queue_seconds) if computed else None,
    )


def _if_lost(progress: Progress) -> LedgerEntry | None:
    """Return a running turn's entry for the case that its gateway dies now."""
    answered = progress.cut_off()
    return None if answered is None else entry(answered, "lost")


def _charges(progress: Progress) -> list[Charge]:
    """Return what the limits of a running turn are to be charged for the case that its gateway dies now."""
    answered = progress.cut_off()
    return progress.admitted.reservation.charges(answered.charged if answered else Amounts())
