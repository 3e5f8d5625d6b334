"""The exact response cache on a turn's road: which turns may use it, replaying what it has, following who makes it,
admitting what is new."""

from __future__ import annotations

import asyncio
from functools import lru_cache, partial
from time import monotonic
from typing import Any

from cache.keys import response_digest
from cache.policy import AnswerTraits, Reject, RequestTraits, Scope, may_look_up, may_store, scope_of
from cache.response import CachedAnswer, Lookup, LookupOutcome, ResponseCache, Wish, size_of
from cache.shape import shape_of
from cache.statistics import CacheCounter
from cache.wording import asks_for_chance, depends_on_time, is_personal, refuses
from gateway.access.identity.secret import derive
from gateway.billing.cost import picodollars
from gateway.config.settings import Settings
from gateway.errors import EngineFailed, NotCached
from gateway.pipeline.job import End, Job
from gateway.pipeline.relay import Streamed
from gateway.pipeline.sources.cache_key import owner, parts
from gateway.pipeline.sources.repetition import Repetition
from gateway.pipeline.sources.single_flight import Flights, TakeOver
from gateway.protocol.requests import Message
from gateway.protocol.stream import Replayed, Routed, TextDelta, TokenUsage
from gateway.safety.guard import LONG_TEXT, Guard

MAX_LEADERS = 3
"""Turns that one turn follows in vain before it makes its answer alone."""


class StoredAnswers:
    """Answers given before. `policy` is the digest of how tiers are picked; under another one they are misses.

    What Redis holds are digests keyed with a secret of the tenant: whoever reads them cannot tell what was asked.
    """

    def __init__(
        self,
        cache: ResponseCache,
        statistics: CacheCounter,
        flights: Flights,
        guard: Guard,
        settings: Settings,
        policy: str,
        secret: bytes,
    ) -> None:
        self._cache = cache
        self._statistics = statistics
        self._flights = flights
        self._guard = guard
        self._settings = settings.cache
        self._default_max_output_tokens = settings.turns.default_max_output_tokens
        self._policy = policy
        self._secret = lru_cache(maxsize=10_000)(lambda tenant: derive(secret, f"response cache of {tenant}"))

    async def look_up(self, job: Job) -> None:
        """Ask the exact response cache, if this request may: `job.found` is what it said.

        Raises:
            NotCached: the client wants a stored answer or none, and there is none.
        """
        turn = job.turn
        tenant, wish = turn.principal.tenant, turn.request.caching
        bypass = may_look_up(_question(job), enabled=self._settings.enabled)
        if bypass:
            self._statistics.add(tenant, f"exact_bypass.{bypass}")
            job.found = Lookup(LookupOutcome.MISS, bypass)
        else:
            job.outcome = "miss"
            job.scope = self._scope(job)
            job.digest = response_digest(self._parts(job, turn.conversation), self._secret(tenant))
            await self._ask(job)
        if wish.only_if_cached and job.found.outcome is not LookupOutcome.HIT:
            raise NotCached(f"no stored answer may be used ({job.found.reason}), and the request asks for nothing else")

    def context(self, job: Job, more: dict[str, Any]) -> str:
        """Digest of everything but the last message that may change the answer, in the words of the exact key."""
        found = self._parts(job, job.turn.conversation[:-1]) | {"similar": more}
        return response_digest(found, self._secret(job.turn.principal.tenant))

    def _parts(self, job: Job, conversation: tuple[Message, ...]) -> dict[str, Any]:
        return parts(
            job.turn.request,
            conversation,
            owner=owner(job.scope, job.turn.principal),
            pools=[
                [pool.name, pool.tier, pool.vocabulary, pool.revisions, pool.tools.name, pool.text.defaults]
                for pool in job.pools
            ],
            adapter=job.adapter.version if job.adapter else None,
            safety=job.safety,
            policy=self._policy,
            default_max_output_tokens=self._default_max_output_tokens,
        )

    async def give(self, job: Job) -> End | None:
        """Answer with a stored answer or along with another turn; None: an engine has to answer."""
        followed = 0
        while True:
            found = job.found
            if found.entry is not None:
                return self.replay(job, found.entry)
            if found.leader is None:
                return None
            ended = await self._follow(job, found.leader)
            if isinstance(ended, End):
                return ended
            self._statistics.add(job.turn.principal.tenant, "exact_takeover")
            job.outcome = "miss"
            followed += 1
            if ended is TakeOver.ALONE or followed == MAX_LEADERS:
                # Nobody follows it, and nothing is stored: it is no answer for others, or one engine after the other
                # fails.
                job.found = Lookup(LookupOutcome.MISS, "alone")
                return None
            await self._ask(job, failed=found.leader)

    def land(self, job: Job, end: End | None) -> asyncio.Task[None] | None:
        """The turn has ended, or failed: admit its answer, if the policy lets it, and let nobody wait any more.

        Returns what is being done, if anything is.
        """
        if job.digest is None or end is None or end.cache == "hit":
            return self._flights.land(job.turn)
        refusal, entry = self._admission(job, end)
        if refusal is not None:
            self._statistics.add(job.turn.principal.tenant, f"exact_reject.{refusal}")
            return self._flights.land(job.turn)
        return self._flights.land(job.turn, self._store(job, job.digest, entry))

    async def _ask(self, job: Job, failed: str = "") -> None:
        turn = job.turn
        assert job.digest is not None
        caching = turn.request.caching
        # Answers with calls are nobody else's, and whether there will be calls is known at the end only.
        shared = turn.request.tools is None or not turn.request.tools.active
        wish = Wish(
            turn=turn.id if shared and not caching.only_if_cached else "",
            refresh=caching.refresh,
            max_age=caching.max_age,
            follow=shared,
            failed=failed,
            tags=caching.tags,
        )
        found = job.found = await self._cache.get(turn.principal.tenant, job.digest, wish)
        if found.outcome is LookupOutcome.LEAD:
            self._flights.lead(turn, job.digest)
        if found.outcome in (LookupOutcome.LEAD, LookupOutcome.MISS) and not failed:
            self._statistics.add(turn.principal.tenant, "exact_miss")
            if found.reason != "absent":
                self._statistics.add(turn.principal.tenant, f"exact_miss.{found.reason}")

    def replay(
        self, job: Job, entry: CachedAnswer, *, counter: str = "exact_hit", reasons: tuple[str, ...] = ()
    ) -> End:
        """Answer with a stored answer."""
        turn = job.turn
        shown = turn.log.text
        job.outcome = "hit"
        if not shown:
            self._announce(job, entry.tier, entry.model, entry.input_tokens, reasons)
            if entry.shape.lengths:
                turn.append(Replayed(entry.text, entry.shape.lengths, entry.shape.token_ids, entry.shape.token_counts))
        elif not entry.text.startswith(shown):
            return self._diverged(job)
        elif len(entry.text) > len(shown):
            turn.append(TextDelta(entry.text[len(shown) :]))
        self._statistics.add(turn.principal.tenant, counter)
        now = monotonic()
        usage = TokenUsage(entry.input_tokens, entry.input_tokens, entry.output_tokens)
        return self._hit(job, Streamed(reason="stop", usage=usage, first_token=now, last_token=now))

    async def _follow(self, job: Job, leader: str) -> End | TakeOver:
        turn = job.turn
        repetition = Repetition(turn.log.text, turn.append)

        def announce(routed: Routed) -> None:
            job.outcome = "hit"
            self._announce(job, routed.tier, routed.model, routed.input_tokens)

        patience = self._settings.follow_seconds
        streamed = await self._flights.follow(
            turn, leader, announce=announce, append=repetition.append, patience=patience
        )
        if isinstance(streamed, TakeOver):
            return streamed
        if turn.log.routed is None:
            return TakeOver.AGAIN  # cancelled before there was anything to show; the engine's road tells it
        if repetition.diverged or (streamed.reason != "cancelled" and not repetition.whole):
            return self._diverged(job)
        self._statistics.add(turn.principal.tenant, "exact_join")
        return self._hit(job, streamed)

    def _announce(self, job: Job, tier: str, model: str, input_tokens: int, reasons: tuple[str, ...] = ()) -> None:
        if job.turn.log.items:
            return  # it was told before the first text
        job.turn.append(
            Routed(
                tier=tier,
                model=model,
                replica="cache",
                reason="cache",
                complexity=None,
                reasons=reasons,
                cache="hit",
                cache_reason=job.found.reason,
                input_tokens=input_tokens,
                service_tier=job.share.tier,
            )
        )

    def _hit(self, job: Job, streamed: Streamed) -> End:
        routed = job.turn.log.routed
        assert routed is not None
        end = End(streamed, routed.tier, routed.model, "hit")
        tenant, usage = job.turn.principal.tenant, streamed.usage
        self._statistics.add(tenant, "tokens_saved", usage.output_tokens)
        self._statistics.add(tenant, "prompt_tokens_saved", usage.input_tokens)
        price = job.price(end)
        if price is not None:
            saved = picodollars(price, usage.input_tokens, 0, usage.output_tokens) // 1_000_000
            self._statistics.add(tenant, "microdollars_saved", saved)
        return end

    def _diverged(self, job: Job) -> End:
        """The rest of an answer does not fit what was shown of it: models whose numbers depend on the batch."""
        routed = job.turn.log.routed
        assert routed is not None
        return End(diverged(job), routed.tier, routed.model, "hit")

    def _scope(self, job: Job) -> Scope:
        tenant = job.turn.principal.tenant
        configured = Scope(self._settings.tenant_scopes.get(tenant, self._settings.scope))
        if configured is Scope.USER:
            return configured
        said = _said(job)
        personal = (
            job.turn.sensitive
            or is_personal(said)
            or self._guard.is_personal([said, job.turn.request.instructions or ""], job.turn.principal)
        )
        return scope_of(configured, personal=personal)

    def _admission(self, job: Job, end: End) -> tuple[Reject | None, CachedAnswer]:
        log, usage, format = job.turn.log, end.streamed.usage, job.turn.request.format
        text = log.text
        deltas = log.messages[0].since(0) if log.messages else None
        entry = CachedAnswer(
            text=text,
            shape=shape_of(deltas.lengths, deltas.token_counts, deltas.token_ids) if deltas else shape_of((), (), ()),
            model=end.model,
            tier=end.tier,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            scope=job.scope,
            tags=job.turn.request.caching.tags,
        )
        answer = AnswerTraits(
            finished=end.streamed.reason == "stop",
            blocked=end.streamed.reason == "content_filter",
            # A stop string ends an answer wherever its grammar happens to be.
            valid=format is None or (end.streamed.stop is None and format.holds(text)),
            calls=bool(log.calls),
            refusal=format is None and refuses(text),
            fallback=end.fallback,
            canary=end.canary,
            personal=job.turn.sensitive,
            scope=job.scope,
            size=size_of(entry),
        )
        return may_store(answer, max_bytes=self._settings.max_entry_bytes), entry

    async def _store(self, job: Job, digest: str, entry: CachedAnswer) -> None:
        turn, tenant = job.turn, job.turn.principal.tenant
        leads = turn.id if job.found.outcome is LookupOutcome.LEAD else ""
        if job.scope is not Scope.USER:
            look = partial(self._guard.is_personal, [entry.text], turn.principal)
            if await asyncio.to_thread(look) if len(entry.text) >= LONG_TEXT // 10 else look():
                self._statistics.add(tenant, f"exact_reject.{Reject.PERSONAL}")
                if leads:
                    await self._cache.release(tenant, digest, leads)
                return
        evicted = await self._cache.put(tenant, digest, entry, job.found, leads)
        if isinstance(evicted, Reject):
            self._statistics.add(tenant, f"exact_reject.{evicted}")
            return
        job.admitted = entry
        self._statistics.add(tenant, "exact_store")
        if evicted:
            self._statistics.add(tenant, "exact_evict", evicted)


def diverged(job: Job) -> Streamed:
    """How a turn ends whose answer cannot be gone on with."""
    error = EngineFailed("the answer that was begun cannot be continued; send the request again")
    return Streamed(reason="error", usage=job.turn.delivered(), error=error)


def _question(job: Job) -> RequestTraits:
    turn, request = job.turn, job.turn.request
    said = _said(job)
    return RequestTraits(
        deterministic=all(request.sampling.deterministic(pool.text.defaults) for pool in job.pools),
        no_store=request.caching.no_store,
        logprobs=request.sampling.logprobs is not None or request.sampling.prompt_logprobs is not None,
        generate=request.generate,
        several=request.caching.several,
        outputs=bool(turn.conversation) and turn.conversation[-1].role == "tool",
        chance=asks_for_chance(said),
        time=depends_on_time(said),
        trial=job.trial,
    )


def _said(job: Job) -> str:
    """What the user has said: what came long ago may still be what an answer is about."""
    request = job.turn.request
    said = [message.content for message in job.turn.conversation if message.role == "user"]
    return "\n".join([*said, request.prompt] if isinstance(request.prompt, str) else said)
