"""Where a turn goes: looks at what is asked, and has `router` choose a tier, an engine and the engines after it."""

from __future__ import annotations

from functools import partial

from gateway.access.directory.view import View
from gateway.engines.adapters import AdapterNames
from gateway.engines.placement import Placement, PlacementQuery
from gateway.engines.pools import Engines
from gateway.pipeline.job import Job
from gateway.pipeline.routing.refusals import refused
from gateway.pipeline.routing.tiers import Tiers
from gateway.records.directory import Tenant
from gateway.turns import Turn
from router import features
from router.complexity import score
from router.route import NoRoute, RouteDecision, RouteRequest, route


class Routing:
    """The choices of one configuration."""

    def __init__(self, view: View, engines: Engines, adapters: AdapterNames, tiers: Tiers) -> None:
        self._view = view
        self._engines = engines
        self._adapters = adapters
        self._tiers = tiers

    async def choose(self, job: Job) -> None:
        """Look at what is asked, once."""
        if job.complexity is not None:
            return
        request = job.turn.request
        if isinstance(request.prompt, str):
            said = [features.PromptMessage("user", request.prompt)]
        else:
            said = [features.PromptMessage(message.role, message.content) for message in job.turn.conversation]
        job.seen = features.extract(said)
        job.complexity = score(job.seen)
        job.choice = await self._tiers.choose(job, job.complexity)

    def route(self, job: Job) -> RouteDecision:
        """The engine, after `choose`.

        Raises:
            ApiError: none can answer.
        """
        request = job.turn.request
        assert job.complexity is not None
        question = RouteRequest(
            model=job.adapter.model if job.adapter else request.model,
            adapter=job.adapter.name if job.adapter else None,
            complexity=job.complexity,
            choice=job.choice,
            output_tokens=request.max_output_tokens or 1,
        )
        candidates = self._engines.candidates(
            {name: len(ids) for name, ids in job.prompts.items()}, self._view.replicas()
        )
        tenant = self.tenant(job.turn)
        if job.adapter is None and tenant.models is not None:
            candidates = [each for each in candidates if tenant.may_use(each.model)]
        try:
            return route(question, candidates, self._tiers.policy)
        except NoRoute as refusal:
            full = partial(self._engines.retry_after, job.pools)
            raise refused(refusal, self.visible(job.turn), full) from None

    def place(self, job: Job, decision: RouteDecision) -> Placement | None:
        """Which replica of the chosen pool answers; None if it has only one."""
        turn = job.turn
        version = job.adapter.version if job.adapter else None
        prompt = job.prompts[self._engines[decision.replica].pool.name]
        question = PlacementQuery(prompt, version, turn.principal.tenant, turn.id, turn.request.previous_response_id)
        return self._engines.place(decision, question, self._view.replicas())

    def tenant(self, turn: Turn) -> Tenant:
        """The turn's, also where nothing is set for it."""
        name = turn.principal.tenant
        return self._view.tenant(name) or Tenant(name=name)

    def visible(self, turn: Turn) -> list[str]:
        """Names of the adapters that the turn could have asked for."""
        tenant = self.tenant(turn)
        return [name for name in sorted(self._adapters.visible(tenant.name)) if tenant.may_use(name)]
