"""The exact response cache on a turn's road: which turns may use it, replaying what it has, admitting what is new."""

from __future__ import annotations

import time
from time import monotonic

import msgspec

from cache.keys import response_digest
from cache.policy import Answer, Question, may_look_up, may_store
from cache.response import Entry, Lookup, ResponseCache
from cache.statistics import CacheStatistics
from gateway.identity.secret import derive
from gateway.job import End, Job
from gateway.protocol.stream import Routed, TextDelta, Usage
from gateway.relay import Streamed
from gateway.settings import Settings


class StoredAnswers:
    """Answers given before. `policy` is the digest of how tiers are picked; under another one they are misses.

    What Redis holds are digests keyed with a secret of the installation: whoever reads them cannot tell what was asked.
    """

    def __init__(
        self, cache: ResponseCache, statistics: CacheStatistics, settings: Settings, policy: str, secret: bytes
    ) -> None:
        self._cache = cache
        self._statistics = statistics
        self._settings = settings.cache
        self._default_max_output_tokens = settings.turns.default_max_output_tokens
        self._policy = policy
        self._secret = derive(secret, "response cache")

    async def look_up(self, job: Job) -> Lookup:
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
        bypass = may_look_up(question, enabled=self._settings.enabled)
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
                "policy": self._policy,
                "instructions": request.instructions,
                "messages": [msgspec.to_builtins(message) for message in turn.conversation],
                "tools": msgspec.to_builtins(request.tools) if request.tools else None,
                "prompt": request.prompt,
                "sampling": msgspec.to_builtins(request.sampling, str_keys=True),
                "max_output_tokens": request.max_output_tokens or self._default_max_output_tokens,
                "stop": request.stop,
                "format": msgspec.to_builtins(request.format.grammar) if request.format else None,
                # Answers of another policy may hold what this one takes out.
                **({} if job.safety is None else {"safety": job.safety}),
            },
            self._secret,
        )
        found = await self._cache.get(tenant, job.digest)
        self._statistics.add(tenant, "exact_hit" if found.entry else "exact_miss")
        return found

    def replay(self, job: Job, entry: Entry) -> End:
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

    async def store(self, job: Job, found: Lookup, end: End) -> None:
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
        refusal = may_store(answer, max_bytes=self._settings.max_entry_bytes)
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
