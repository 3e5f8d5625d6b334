"""The road of one turn, in order: limits, exact cache, route, engine, settlement, cache admission, metrics.

`Pipeline.run` is the whole of it; each step is one of the methods or rooms that it names. Limits are reserved before
anything is spent and settled to what was used, whatever happens in between. Another engine takes over only before the
first token: afterwards it would repeat or contradict what the client has already read.
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

import msgspec
from msgspec import Struct

from cache.keys import response_digest
from cache.policy import Answer, Question, may_look_up, may_store
from cache.response import Entry, Lookup, ResponseCache
from cache.statistics import CacheStatistics
from gateway.adapters import Adapter, Adapters
from gateway.engines import Engine, Engines, Pool
from gateway.errors import ApiError, ContextLengthExceeded, InvalidRequest, ModelNotFound, RateLimited, Unavailable
from gateway.limits.limiter import Limiter
from gateway.prompts import tokenise
from gateway.protocol.stream import CacheOutcome, Finished, Routed, TextDelta, Usage
from gateway.relay import Streamed, TryNext, relay
from gateway.service import Share, share_of
from gateway.settings import Settings, Tenant
from gateway.telemetry.metrics import Metrics
from gateway.turns import Turn, TurnState
from router import features
from router.complexity import score
from router.route import Decision, NoRoute, Policy, Refusal, RouteRequest, Why, route

logger = logging.getLogger("roundhouse.turns")


@dataclass(slots=True)
class Job:
    """What one turn needs on its road."""

    turn: Turn
    pools: list[Pool]
    """Those that may answer."""
    prompts: dict[str, list[int]]
    """Token ids by pool name."""
    began: float
    share: Share
    adapter: Adapter | None = None
    """What the request's name led to when it arrived."""
    seed: int = field(default_factory=lambda: random.getrandbits(63))
    digest: str | None = None
    """Key of the response cache; None if it may not be used."""

    @property
    def outcome(self) -> CacheOutcome:
        """Of the response cache, for a turn that an engine answers."""
        return "bypass" if self.digest is None else "miss"

    def model(self, engine: Engine) -> str:
        """Public name of what answers on this engine."""
        return self.adapter.name if self.adapter else engine.pool.name


class End(Struct, frozen=True):
    """How a turn ended, and who answered."""

    streamed: Streamed
    tier: str
    model: str
    cache: CacheOutcome
    fallback: bool = False

    @property
    def charged(self) -> int:
        """Tokens that count against the tenant's limit: those that were computed for it."""
        return 0 if self.cache == "hit" else self.streamed.usage.total_tokens


class Pipeline:
    """Carries turns from request to answer."""

    def __init__(
        self,
        settings: Settings,
        engines: Engines,
        adapters: Adapters,
        limiter: Limiter,
        cache: ResponseCache,
        statistics: CacheStatistics,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._engines = engines
        self._adapters = adapters
        self._limiter = limiter
        self._cache = cache
        self._statistics = statistics
        self._metrics = metrics
        self._policy = Policy(medium_from=settings.router.medium_from, large_from=settings.router.large_from)
        self._secret = _cache_secret(settings)
        self._tenants = {tenant.name: tenant for tenant in settings.tenants}

    async def run(self, turn: Turn) -> None:
        """See `gateway.turns.Road`. Measures what `_drive` does."""
        began = monotonic()
        tier, outcome = "", "failed"
        self._metrics.turn_started()
        try:
            end = await self._drive(turn, began)
            tier, outcome = end.tier, _OUTCOMES[end.streamed.reason]
        except ApiError as error:
            outcome = "refused"
            self._metrics.error(error.code)
            if isinstance(error, RateLimited):
                self._metrics.limited()
            raise
        finally:
            self._metrics.turn_finished(tier, outcome, monotonic() - began)

    async def _drive(self, turn: Turn, began: float) -> End:
        job = await self._prepare(turn, began)
        reservation = await self._limiter.reserve(turn.principal.tenant, turn.id, self._most_tokens(job))
        end: End | None = None
        try:
            found = await self._look_up(job)
            end = self._replay(job, found.entry) if found.entry else await self._generate(job)
        finally:
            limits = await self._limiter.settle(reservation, end.charged if end else 0)
        turn.append(limits)
        await self._store(job, found, end)
        self._count(job, end)
        turn.append(Finished(end.streamed.reason, end.streamed.usage, end.streamed.error))
        return end

    async def _prepare(self, turn: Turn, began: float) -> Job:
        """Resolve the name of an adapter, and tokenise the prompt for every pool that may answer."""
        request = turn.request
        if request.max_output_tokens is not None and request.sampling.min_tokens > request.max_output_tokens:
            raise InvalidRequest("min_tokens: above the output limit; lower it", param="min_tokens")
        name = turn.principal.tenant
        share = share_of(self._tenants.get(name) or Tenant(name=name), request.service_tier)
        adapter = self._adapters.resolve(request.model, turn.principal.tenant)
        if adapter is None:
            pools = self._engines.pools_for(request.model)
        else:
            pools = [self._engines.pool(adapter.model)]
            pools[0].announce(adapter.version)
        return Job(turn, pools, await tokenise(turn, pools), began, share, adapter)

    def _most_tokens(self, job: Job) -> int:
        """What the turn may use at most, to be reserved."""
        prompt = max(len(ids) for ids in job.prompts.values())
        room = max((engine.context for pool in job.pools for engine in pool.engines), default=0) - prompt
        return prompt + self._output_limit(job, room)

    def _output_limit(self, job: Job, room: int) -> int:
        """Output tokens for an engine with `room` beside the prompt; the router has checked an explicit limit."""
        request = job.turn.request
        if not request.generate:
            return 1  # an engine has to run the whole prompt before it can sample the one token that is thrown away
        return request.max_output_tokens or max(1, min(self._settings.turns.default_max_output_tokens, room))

    async def _look_up(self, job: Job) -> Lookup:
        """Ask the exact response cache, if this request may."""
        turn = job.turn
        request, tenant = turn.request, turn.principal.tenant
        question = Question(
            deterministic=all(request.sampling.deterministic(pool.text.defaults) for pool in job.pools),
            no_store=request.cache == "no-store",
            logprobs=request.sampling.logprobs is not None or request.sampling.prompt_logprobs is not None,
            generate=request.generate,
            outputs=bool(turn.conversation) and turn.conversation[-1].role == "tool",
        )
        bypass = may_look_up(question, enabled=self._settings.cache.enabled)
        if bypass:
            self._statistics.add(tenant, f"exact_bypass.{bypass}")
            return Lookup(None)
        job.digest = response_digest(
            {
                "model": request.model,
                "pools": [
                    [pool.name, pool.vocabulary, pool.revisions, msgspec.to_builtins(pool.text.defaults)]
                    for pool in job.pools
                ],
                "adapter": job.adapter.version if job.adapter else None,
                "policy": self._policy.digest,
                "instructions": request.instructions,
                "messages": [msgspec.to_builtins(message) for message in turn.conversation],
                "tools": msgspec.to_builtins(request.tools) if request.tools else None,
                "prompt": request.prompt,
                "sampling": msgspec.to_builtins(request.sampling, str_keys=True),
                "max_output_tokens": request.max_output_tokens or self._settings.turns.default_max_output_tokens,
                "stop": request.stop,
                "format": msgspec.to_builtins(request.format.grammar) if request.format else None,
            },
            self._secret,
        )
        found = await self._cache.get(tenant, job.digest)
        self._statistics.add(tenant, "exact_hit" if found.entry else "exact_miss")
        return found

    def _replay(self, job: Job, entry: Entry) -> End:
        """Answer with a stored answer."""
        turn = job.turn
        turn.append(
            Routed(
                tier=entry.tier,
                model=entry.model,
                replica="cache",
                reason="cache",
                complexity=None,
                cache="hit",
                input_tokens=entry.input_tokens,
                service_tier=job.share.tier,
            )
        )
        if entry.text:
            turn.append(TextDelta(entry.text))
        self._statistics.add(turn.principal.tenant, "tokens_saved", entry.output_tokens)
        self._statistics.add(turn.principal.tenant, "prompt_tokens_saved", entry.input_tokens)
        now = monotonic()
        usage = Usage(entry.input_tokens, entry.input_tokens, entry.output_tokens)
        streamed = Streamed(reason="stop", usage=usage, first_token=now, last_token=now)
        return End(streamed, entry.tier, entry.model, "hit")

    async def _generate(self, job: Job) -> End:
        """Route, then stream from the chosen engine, or from the next one while none has given a token."""
        decision = self._route(job)
        version = job.adapter.version if job.adapter else None
        for replica in (decision.replica, *decision.fallbacks):
            engine = self._engines[replica]
            # Another replica of the tier that the router chose is as good as the first one.
            fallback = decision.why is Why.FALLBACK or engine.pool.tier != decision.tier
            announce = partial(self._announce, job, decision, engine, fallback=fallback)
            prompt = job.prompts[engine.pool.name]
            limit = self._output_limit(job, engine.context - len(prompt))
            sampling = job.turn.request.sampling.resolve(engine.pool.text.defaults, max_tokens=limit, seed=job.seed)
            try:
                streamed = await relay(
                    job.turn,
                    engine,
                    prompt,
                    sampling,
                    announce,
                    share=job.share,
                    adapter=version,
                    queue_timeout=self._settings.turns.queue_timeout,
                )
                break
            except TryNext as failure:
                streamed = Streamed(reason="error", usage=Usage(), error=failure.error)
        if streamed.error is not None and job.turn.state is TurnState.ADMITTING:
            raise streamed.error
        return End(streamed, engine.pool.tier, job.model(engine), job.outcome, fallback)

    def _route(self, job: Job) -> Decision:
        request = job.turn.request
        if isinstance(request.prompt, str):
            said = [features.Message("user", request.prompt)]
        else:
            said = [features.Message(message.role, message.content) for message in job.turn.conversation]
        question = RouteRequest(
            model=job.adapter.model if job.adapter else request.model,
            adapter=job.adapter.name if job.adapter else None,
            complexity=score(features.extract(said)),
            output_tokens=request.max_output_tokens or 1,
        )
        candidates = self._engines.candidates({name: len(ids) for name, ids in job.prompts.items()})
        try:
            return route(question, candidates, self._policy)
        except NoRoute as refusal:
            raise _refusal(refusal, sorted(self._adapters.visible(job.turn.principal.tenant))) from None

    def _announce(self, job: Job, decision: Decision, engine: Engine, *, fallback: bool) -> None:
        reason = str(Why.FALLBACK if fallback else decision.why)
        job.turn.append(
            Routed(
                tier=engine.pool.tier,
                model=job.model(engine),
                replica=engine.name,
                reason=reason,
                complexity=decision.complexity,
                reasons=decision.reasons,
                cache=job.outcome,
                input_tokens=len(job.prompts[engine.pool.name]),
                service_tier=job.share.tier,
            )
        )
        self._metrics.routed(engine.pool.tier, reason)

    async def _store(self, job: Job, found: Lookup, end: End) -> None:
        """Admit the answer to the response cache, if the policy lets it."""
        if job.digest is None or end.cache == "hit":
            return
        tenant, text, usage = job.turn.principal.tenant, job.turn.log.text, end.streamed.usage
        format = job.turn.request.format
        answer = Answer(
            finished=end.streamed.reason == "stop",
            # A stop string ends an answer wherever its grammar happens to be.
            valid=format is None or (end.streamed.stop is None and format.holds(text)),
            calls=bool(job.turn.log.calls),
            fallback=end.fallback,
            size=len(text.encode()),
        )
        refusal = may_store(answer, max_bytes=self._settings.cache.max_entry_bytes)
        if refusal:
            self._statistics.add(tenant, f"exact_bypass.{refusal}")
            return
        entry = Entry(
            text=text,
            model=end.model,
            tier=end.tier,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            created=time.time(),
        )
        evicted = await self._cache.put(tenant, job.digest, entry, epoch=found.epoch)
        self._statistics.add(tenant, "exact_store")
        self._statistics.add(tenant, "exact_evict", evicted)

    def _count(self, job: Job, end: End) -> None:
        """Metrics, statistics and one log line for a turn that has ended."""
        streamed, usage, metrics = end.streamed, end.streamed.usage, self._metrics
        metrics.cache(end.cache)
        if streamed.error:
            metrics.error(streamed.error.code)
        if streamed.first_token is not None and streamed.last_token is not None:
            metrics.first_token(end.tier, end.cache, streamed.first_token - job.began)
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
                "outcome": _OUTCOMES[streamed.reason],
                "code": streamed.error.code if streamed.error else None,
                "cache": end.cache,
                "input_tokens": usage.input_tokens,
                "cached_tokens": usage.cached_tokens,
                "output_tokens": usage.output_tokens,
                "seconds": round(monotonic() - job.began, 4),
            },
        )


_NAMED_ADAPTERS = 20
"""Most adapters that a refusal lists."""
_OUTCOMES = {"stop": "completed", "length": "incomplete", "cancelled": "cancelled", "error": "failed"}


def _refusal(refusal: NoRoute, adapters: list[str]) -> ApiError:
    match refusal.refusal:
        case Refusal.UNKNOWN_MODEL:
            more = ", ..." if len(adapters) > _NAMED_ADAPTERS else ""
            named = ", ".join(["", *adapters[:_NAMED_ADAPTERS]])
            return ModelNotFound(f"{refusal}{named}{more}", param="model")
        case Refusal.CONTEXT:
            return ContextLengthExceeded(str(refusal), param="input")
        case Refusal.UNAVAILABLE:
            return Unavailable(str(refusal), headers={"retry-after": "2"})


def _cache_secret(settings: Settings) -> bytes:
    """Keys the cache's digests: the same for all gateways of an installation, and unknown to those who read Redis.

    It comes from the digests of the API keys, which stand in the configuration only. Changing keys starts a cold cache.
    """
    digests = sorted(key.sha256 for tenant in settings.tenants for key in tenant.keys)
    return hashlib.blake2b("\n".join(digests).encode(), digest_size=32).digest()
