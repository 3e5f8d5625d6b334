"""Chooses a turn's tier, its engine and the engines after it: gathers what `router` decides by."""

from __future__ import annotations

import logging
from functools import partial
from time import monotonic

import msgspec

from engine.client.conversation import ChatPrompt
from gateway.access.directory.view import View
from gateway.engines.adapters import AdapterNames
from gateway.engines.placement import Placement, PlacementQuery
from gateway.engines.pools import Engines
from gateway.pipeline.routing.conversation import pool_ranks
from gateway.pipeline.routing.refusals import refused
from gateway.pipeline.routing.tiers import Tiers
from gateway.pipeline.routing.waking import Waking
from gateway.pipeline.values import Admitted, Assessment, Dispatched, Embedding, Prepared
from gateway.records.directory import Tenant
from gateway.turns import Turn
from router import features
from router.complexity import score
from router.route import ComingTier, NoRoute, RouteDecision, RouteRequest, TierAsleep, route

log = logging.getLogger("roundhouse.routing")


class Routing:
    """Chooses tiers and engines under one configuration."""

    def __init__(self, view: View, engines: Engines, adapters: AdapterNames, tiers: Tiers, waking: Waking) -> None:
        self._view = view
        self._engines = engines
        self._adapters = adapters
        self._tiers = tiers
        self._waking = waking
        if tiers.calibration.why and len(engines.pools) > 1:
            log.warning("auto is not calibrated for these models", extra={"why": tiers.calibration.why})

    async def dispatch(self, admitted: Admitted) -> Dispatched:
        """Choose the engine for a turn that no cache could answer.

        A tier that sleeps is waited for.

        Raises:
            ApiError: none can answer.
            WaitCancelled: the turn was cancelled while it waited.
        """
        assessment = admitted.foreseen or await self.assess(admitted, admitted.cache.embedding)
        began = monotonic()
        while True:
            try:
                decision = self.route(admitted, assessment)
                break
            except TierAsleep as asleep:
                await self._waking.wait(admitted, assessment, asleep.model, began)
        if decision.asleep:
            self._waking.missed(decision.asleep, admitted.turn.id)
        return Dispatched(**msgspec.structs.asdict(admitted), assessment=assessment, decision=decision)

    async def assess(self, prepared: Prepared, embedding: Embedding | None = None) -> Assessment:
        """Assess the request. Once per turn only: the tier may be random, and repeated questions are recorded."""
        request = prepared.turn.request
        if isinstance(request.prompt, str):
            said = [features.PromptMessage("user", request.prompt)]
        else:
            said = [features.PromptMessage(message.role, message.content) for message in prepared.turn.conversation]
        seen = features.extract(said)
        coming = [each.tier for each in self._coming(prepared.turn)]
        return await self._tiers.assess(prepared, seen, score(seen), embedding, coming)

    def route(self, prepared: Prepared, assessment: Assessment) -> RouteDecision:
        """Choose the engine by the present load.

        Raises:
            ApiError: none can answer.
            TierAsleep: the one that is to answer has no engine now.
        """
        request, adapter = prepared.turn.request, prepared.adapter
        question = RouteRequest(
            model=adapter.model if adapter else request.model,
            adapter=adapter.name if adapter else None,
            complexity=assessment.complexity,
            choice=assessment.choice,
            output_tokens=request.max_output_tokens or 1,
            unsuited=prepared.unsuited,
        )
        lengths = {name: len(prompt) for name, prompt in prepared.prompts.items()}
        ranks = pool_ranks(prepared.pools, prepared.turn)
        may_answer = {pool.name for pool in prepared.pools}
        candidates = [each for each in self._engines.candidates(lengths, ranks) if each.model in may_answer]
        asleep = [each for each in self._engines.asleep(lengths, ranks) if each.model in may_answer]
        coming = self._coming(prepared.turn)
        if adapter is None:
            # A pool whose model has come since the prompts were written has none.
            usable = self._engines.pools_for(request.model, self.tenant(prepared.turn).may_use)
            coming += [ComingTier(tier=pool.tier, model=pool.name) for pool in usable if pool.name not in may_answer]
        try:
            return route(question, candidates, self._tiers.policy, coming, asleep)
        except NoRoute as refusal:
            full = partial(self._engines.retry_after, prepared.pools)
            raise refused(refusal, self.visible(prepared.turn), full) from None

    def place(self, dispatched: Dispatched) -> Placement | None:
        """Choose the replica of the chosen pool that answers; None if the pool has only one."""
        turn, decision = dispatched.turn, dispatched.decision
        version = dispatched.adapter.version if dispatched.adapter else None
        prompt = dispatched.prompts[self._engines[decision.replica].pool.name]
        if isinstance(prompt, ChatPrompt):
            prompt = ()  # what its servers hold of it cannot be known
        previous, premium = turn.request.previous_response_id, dispatched.share.service == "premium"
        question = PlacementQuery(prompt, version, turn.principal.tenant, turn.id, previous, premium)
        return self._engines.place(decision, question)

    def _coming(self, turn: Turn) -> list[ComingTier]:
        """Return the tiers that are not here yet and that the turn's tenant may use."""
        tenant = self.tenant(turn)
        return [each for each in self._engines.coming.values() if tenant.may_use(each.model)]

    def tenant(self, turn: Turn) -> Tenant:
        """Return the turn's tenant, with defaults where no record exists."""
        name = turn.principal.tenant
        return self._view.tenant(name) or Tenant(name=name)

    def visible(self, turn: Turn) -> list[str]:
        """Return the names of the adapters that the turn could have asked for."""
        tenant = self.tenant(turn)
        return [name for name in sorted(self._adapters.visible(tenant.name)) if tenant.may_use(name)]
