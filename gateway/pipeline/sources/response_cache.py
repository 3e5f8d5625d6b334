"""The exact response cache as a source of answers: decides which turns may use it, replays stored answers, follows the
turn that makes an answer, and stores new ones."""

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
from engine.text.processor import SamplingDefaults
from gateway.access.identity.secret import derive
from gateway.billing.cost import picodollars
from gateway.config.settings import Settings
from gateway.errors import EngineFailed, NotCached
from gateway.pipeline.relay import Streamed
from gateway.pipeline.sources.cache_key import owner, parts
from gateway.pipeline.sources.repetition import Repetition
from gateway.pipeline.sources.single_flight import Flights, TakeOver
from gateway.pipeline.values import Admitted, Answered, CacheFindings, Prepared, Progress
from gateway.protocol.requests import Message
from gateway.protocol.stream import Replayed, Routed, TextDelta, TokenUsage
from gateway.safety.guard import LONG_TEXT, Guard
from gateway.storage.seal import Seal
from gateway.turns import Turn
from router.options import Options, read_options, write_options

MAX_LEADERS = 3
"""Most turns that one turn follows in vain before it asks an engine itself."""


class StoredAnswers:
    """Stored answers. `policy` is the digest of how tiers are chosen; answers stored under another one are misses.

    Redis holds digests keyed with a secret of the tenant: whoever reads them cannot tell what was asked.
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

    async def look_up(self, prepared: Prepared) -> CacheFindings:
        """Ask the exact response cache, if this request may.

        Raises:
            NotCached: the client wants a stored answer or none, and there is none.
        """
        turn = prepared.turn
        tenant, wish = turn.principal.tenant, turn.request.caching
        bypass = may_look_up(_question(prepared), enabled=self._settings.enabled)
        if bypass:
            self._statistics.add(tenant, f"exact_bypass.{bypass}")
            findings = CacheFindings(found=Lookup(LookupOutcome.MISS, bypass))
        else:
            scope = self._scope(turn)
            digest = response_digest(self._parts(prepared, scope, turn.conversation), self._secret(tenant))
            found = await self._ask(turn, digest)
            findings = CacheFindings(outcome="miss", found=found, digest=digest, scope=scope)
        if wish.only_if_cached and findings.found.outcome is not LookupOutcome.HIT:
            reason = findings.found.reason
            raise NotCached(f"no stored answer may be used ({reason}), and the request asks for nothing else")
        return findings

    def context(self, admitted: Admitted, more: dict[str, Any]) -> str:
        """Return the digest of all parts of the exact key but the last message, and of some more."""
        turn = admitted.turn
        found = self._parts(admitted, admitted.cache.scope, turn.conversation[:-1]) | {"similar": more}
        return response_digest(found, self._secret(turn.principal.tenant))

    def _parts(self, prepared: Prepared, scope: Scope, conversation: tuple[Message, ...]) -> dict[str, Any]:
        return parts(
            prepared.turn.request,
            conversation,
            owner=owner(scope, prepared.turn.principal),
            pools=[
                [
                    *(pool.name, pool.tier, pool.weight, pool.dialect),
                    *(pool.vocabulary, pool.revisions, pool.tools.name, pool.defaults),
                ]
                for pool in prepared.pools
            ],
            adapter=prepared.adapter.version if prepared.adapter else None,
            safety=prepared.safety,
            policy=self._policy,
            default_max_output_tokens=self._default_max_output_tokens,
        )

    async def answer(self, progress: Progress) -> Answered | None:
        """Answer with a stored answer, or by following the turn that makes it."""
        turn, digest = progress.admitted.turn, progress.admitted.cache.digest
        followed = 0
        while True:
            found = progress.admitted.cache.found
            if found.entry is not None:
                return self.replay(progress, found.entry)
            if found.leader is None or digest is None:
                return None
            ended = await self._follow(progress, found.leader)
            if isinstance(ended, Answered):
                return ended
            self._statistics.add(turn.principal.tenant, "exact_takeover")
            progress.found(outcome="miss")
            followed += 1
            if ended is TakeOver.ALONE or followed == MAX_LEADERS:
                # Nobody is to follow this turn, and nothing is stored: the leader's answer was not for others, or
                # leaders fail one after the other.
                progress.found(found=Lookup(LookupOutcome.MISS, "alone"))
                return None
            progress.found(found=await self._ask(turn, digest, failed=found.leader))

    def land(self, turn: Turn, answered: Answered | None) -> asyncio.Task[CachedAnswer | None] | None:
        """End a turn's single flight: store its answer, if the policy lets it, and let nobody wait any more.

        Returns the task that does it, if there is one; its result is what was stored.
        """
        if answered is None or answered.admitted.cache.digest is None or answered.cache == "hit":
            return self._flights.land(turn)
        refusal, entry = self._admission(answered)
        if refusal is not None:
            self._statistics.add(turn.principal.tenant, f"exact_reject.{refusal}")
            return self._flights.land(turn)
        return self._flights.land(turn, self._store(turn, answered.admitted.cache, entry))

    async def _ask(self, turn: Turn, digest: str, failed: str = "") -> Lookup:
        caching = turn.request.caching
        # Answers with calls are nobody else's, and whether there will be calls is known at the end only.
        shared = turn.request.tools is None or not turn.request.tools.active
        # Nobody is to wait behind a turn that everybody goes before.
        leads = shared and not caching.only_if_cached and turn.request.service_tier != "flex"
        wish = Wish(
            turn=turn.id if leads else "",
            refresh=caching.refresh,
            max_age=caching.max_age,
            follow=shared,
            failed=failed,
            tags=caching.tags,
        )
        found = await self._cache.get(turn.principal.tenant, digest, wish)
        if found.outcome is LookupOutcome.LEAD:
            self._flights.lead(turn, digest)
        if found.outcome in (LookupOutcome.LEAD, LookupOutcome.MISS) and not failed:
            self._statistics.add(turn.principal.tenant, "exact_miss")
            if found.reason != "absent":
                self._statistics.add(turn.principal.tenant, f"exact_miss.{found.reason}")
        return found

    def replay(
        self, progress: Progress, entry: CachedAnswer, *, counter: str = "exact_hit", reasons: tuple[str, ...] = ()
    ) -> Answered:
        """Answer with a stored answer."""
        turn = progress.admitted.turn
        shown = turn.log.text
        progress.found(outcome="hit")
        if not shown:
            known = f"the same request was answered by the {entry.tier} tier before: that answer is given again"
            self._announce(
                progress.admitted,
                tier=entry.tier,
                model=entry.model,
                input_tokens=entry.input_tokens,
                reasons=reasons or (known,),
                options=read_options(entry.options),
            )
            if entry.shape.lengths:
                turn.append(Replayed(entry.text, entry.shape.lengths, entry.shape.token_ids, entry.shape.token_counts))
        elif not entry.text.startswith(shown):
            return _hit(progress, diverged(turn))
        elif len(entry.text) > len(shown):
            turn.append(TextDelta(entry.text[len(shown) :]))
        self._statistics.add(turn.principal.tenant, counter)
        now = monotonic()
        usage = TokenUsage(entry.input_tokens, entry.input_tokens, entry.output_tokens)
        return self._saved(
            progress, Streamed(reason="stop", usage=usage, stop=entry.stop, first_token=now, last_token=now)
        )

    async def _follow(self, progress: Progress, leader: str) -> Answered | TakeOver:
        turn = progress.admitted.turn
        repetition = Repetition(turn.log.text, turn.append)

        def announce(routed: Routed) -> None:
            progress.found(outcome="hit")
            under_way = f"the same request is being answered by the {routed.tier} tier: that answer is given here too"
            self._announce(
                progress.admitted,
                tier=routed.tier,
                model=routed.model,
                input_tokens=routed.input_tokens,
                reasons=(under_way,),
                options=routed.options,
            )

        patience = self._settings.follow_seconds
        streamed = await self._flights.follow(
            turn, leader, announce=announce, append=repetition.append, patience=patience
        )
        if isinstance(streamed, TakeOver):
            return streamed
        if turn.log.routed is None:
            return TakeOver.AGAIN  # cancelled before there was anything to show; the engine's answer says so
        if repetition.diverged or (streamed.reason != "cancelled" and not repetition.whole):
            return _hit(progress, diverged(turn))
        self._statistics.add(turn.principal.tenant, "exact_join")
        return self._saved(progress, streamed)

    def _announce(
        self,
        admitted: Admitted,
        *,
        tier: str,
        model: str,
        input_tokens: int,
        reasons: tuple[str, ...],
        options: Options,
    ) -> None:
        if admitted.turn.log.items:
            return  # it was told before the first text
        base = admitted.adapter.model if admitted.adapter else None
        defaults = {pool.name: pool.defaults for pool in admitted.pools}
        admitted.turn.append(
            Routed(
                tier=tier,
                model=model,
                replica="cache",
                reason="cache",
                complexity=None,
                reasons=reasons,
                options=options,
                cache="hit",
                cache_reason=admitted.cache.found.reason,
                input_tokens=input_tokens,
                service_tier=admitted.share.tier,
                base_model=base,
                defaults=defaults.get(base or model, SamplingDefaults()),
            )
        )

    def _saved(self, progress: Progress, streamed: Streamed) -> Answered:
        """End a turn that needed no engine, and count what that saved."""
        answered = _hit(progress, streamed)
        tenant, usage = answered.admitted.turn.principal.tenant, streamed.usage
        self._statistics.add(tenant, "tokens_saved", usage.output_tokens)
        self._statistics.add(tenant, "prompt_tokens_saved", usage.input_tokens)
        price = answered.price
        if price is not None:
            saved = picodollars(price, usage.input_tokens, 0, usage.output_tokens) // 1_000_000
            self._statistics.add(tenant, "microdollars_saved", saved)
        return answered

    def _scope(self, turn: Turn) -> Scope:
        tenant = turn.principal.tenant
        configured = Scope(self._settings.tenant_scopes.get(tenant, self._settings.scope))
        if configured is Scope.USER:
            return configured
        said = _said(turn)
        personal = (
            turn.sensitive
            or is_personal(said)
            or self._guard.is_personal([said, turn.request.instructions or ""], turn.principal)
        )
        return scope_of(configured, personal=personal)

    def _admission(self, answered: Answered) -> tuple[Reject | None, CachedAnswer]:
        admitted, turn, streamed = answered.admitted, answered.admitted.turn, answered.streamed
        log, format = turn.log, turn.request.format
        text = log.text
        deltas = log.messages[0].since(0) if log.messages else None
        entry = CachedAnswer(
            text=text,
            shape=shape_of(deltas.lengths, deltas.token_counts, deltas.token_ids) if deltas else shape_of((), (), ()),
            model=answered.model,
            tier=answered.tier,
            input_tokens=streamed.usage.input_tokens,
            output_tokens=streamed.usage.output_tokens,
            stop=streamed.stop,
            scope=admitted.cache.scope,
            tags=turn.request.caching.tags,
            options=write_options(log.routed.options) if log.routed else "",
        )
        answer = AnswerTraits(
            finished=streamed.reason == "stop",
            blocked=streamed.reason == "content_filter",
            # A stop string ends an answer wherever its grammar happens to be.
            valid=format is None or (streamed.stop is None and format.holds(text)),
            calls=bool(log.calls),
            refusal=format is None and refuses(text),
            fallback=answered.fallback,
            canary=admitted.assigned is not None and admitted.assigned.canary,
            personal=turn.sensitive,
            scope=admitted.cache.scope,
            size=size_of(entry),
        )
        return may_store(answer, max_bytes=self._settings.max_entry_bytes), entry

    async def _store(self, turn: Turn, cache: CacheFindings, entry: CachedAnswer) -> CachedAnswer | None:
        tenant, digest = turn.principal.tenant, cache.digest
        assert digest is not None
        leads = turn.id if cache.found.outcome is LookupOutcome.LEAD else ""
        if cache.scope is not Scope.USER:
            look = partial(self._guard.is_personal, [entry.text], turn.principal)
            if await asyncio.to_thread(look) if len(entry.text) >= LONG_TEXT // 10 else look():
                self._statistics.add(tenant, f"exact_reject.{Reject.PERSONAL}")
                if leads:
                    await self._cache.release(tenant, digest, leads)
                return None
        evicted = await self._cache.put(tenant, digest, entry, cache.found, leads)
        if isinstance(evicted, Reject):
            self._statistics.add(tenant, f"exact_reject.{evicted}")
            return None
        self._statistics.add(tenant, "exact_store")
        if evicted:
            self._statistics.add(tenant, "exact_evict", evicted)
        return entry


def answer_seal(secret: bytes) -> Seal:
    """Return the seal of stored answers under the installation's secret."""
    return Seal(derive(secret, "stored answers"))


def diverged(turn: Turn) -> Streamed:
    """Return the failure of a turn whose answer does not fit what was shown of it, as models' numbers may depend on the
    batch."""
    error = EngineFailed("the answer that was begun cannot be continued; send the request again")
    return Streamed(reason="error", usage=turn.delivered(), error=error)


def _hit(progress: Progress, streamed: Streamed) -> Answered:
    routed = progress.admitted.turn.log.routed
    assert routed is not None
    progress.found(outcome="hit")
    return Answered(progress.admitted, streamed, routed.tier, routed.model)


def _question(prepared: Prepared) -> RequestTraits:
    turn, request = prepared.turn, prepared.turn.request
    said = _said(turn)
    return RequestTraits(
        deterministic=all(request.sampling.deterministic(pool.defaults) for pool in prepared.pools),
        no_store=request.caching.no_store,
        logprobs=request.sampling.logprobs is not None or request.sampling.prompt_logprobs is not None,
        generate=request.generate,
        several=request.caching.several,
        outputs=bool(turn.conversation) and turn.conversation[-1].role == "tool",
        chance=asks_for_chance(said),
        time=depends_on_time(said),
        trial=prepared.trial,
    )


def _said(turn: Turn) -> str:
    """Return all that the user has said: an answer may still be about what was said long ago."""
    request = turn.request
    said = [message.content for message in turn.conversation if message.role == "user"]
    return "\n".join([*said, request.prompt] if isinstance(request.prompt, str) else said)
