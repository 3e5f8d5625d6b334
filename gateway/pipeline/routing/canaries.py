"""Routes, names whose conversations are shared among models, and canaries, which are taken out when they do worse.

A route's first target is the stable one. While another one has a weight as well, it is on trial (`router/canary.py`):
failures of both are counted, added up over all gateways in Redis, and compared every second. A canary that does worse
loses its weight in the directory, where the audit log says so. While a trial runs, no target's answers come from the
response cache: answers that cannot fail would make the stable one look better than it is.

While Redis is down, failures are not counted: conversations are split as before, and nothing is taken out.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.access.directory.store import Directory
from gateway.access.directory.view import View
from gateway.errors import ApiError, NotFound, PreconditionFailed, Unavailable
from gateway.pipeline.routing.conversation import beginning
from gateway.pipeline.routing.shadows import Comparison, Shadows, comparison, copied
from gateway.pipeline.values import Admitted, Answered, Assigned
from gateway.records.directory import Route, Tenant
from gateway.telemetry.metrics.process import Metrics
from gateway.turns import Turn
from router.canary import CanaryRule, CanarySignal, CanaryVerdict, Failures, WeightedTarget, judge, split

log = logging.getLogger("roundhouse.canaries")

KEY = "rh1:canary:{{{route}}}:{revision}"
"""HASH: turns and failures of a route's targets since the route was last changed."""
LIFETIME = 30 * 86_400
ACTOR = "system:canary"
"""Actor in the audit log when a canary is taken out."""
RULE = CanaryRule()
_TURNS = "turns"
_OUT = "out:"
_REMEMBERED = 50_000
"""Most conversations whose counted failures are remembered, so that each counts once."""


class TakenOut(Struct, frozen=True):
    """Why a canary was taken out, with the counts at that time."""

    at: int
    """Unix time in seconds when the canary was taken out."""
    signal: CanarySignal
    turns: int
    stable_turns: int
    failures: Failures
    evidence: float


class Standing(Struct, frozen=True):
    """Counts and verdict of one canary."""

    model: str
    weight: int
    turns: int
    stable_turns: int
    failures: dict[CanarySignal, Failures]
    verdict: CanaryVerdict
    taken_out: TakenOut | None
    """Set if the gateways have taken the canary out and nobody has changed the route since."""


class Canaries:
    """Assigns turns to the targets of routes, counts failures, and takes canaries out."""

    def __init__(self, redis: Redis, directory: Directory, view: View, metrics: Metrics, shadows: Shadows) -> None:
        self._redis = redis
        self._shadows = shadows
        self._directory = directory
        self._view = view
        self._metrics = metrics
        self._news: dict[tuple[str, int], tuple[Route, Counter[str]]] = {}
        """Counts that are not flushed yet, by the route's name and revision."""
        self._counted: OrderedDict[tuple[str, int, bytes, CanarySignal], None] = OrderedDict()

    def assign(self, turn: Turn) -> Assigned | None:
        """Return the target for a turn that asks for a route whose models its tenant may all use, else None."""
        route = self._view.route(turn.request.model)
        if route is None:
            return None
        tenant = self._view.tenant(turn.principal.tenant)
        if not exists(route, tenant):
            return None
        conversation = beginning(turn)
        shares = [WeightedTarget(target.model, target.weight) for target in route.targets]
        model = split(route.name, turn.principal.tenant, conversation, shares)
        if model is None:
            return None
        usable = route.shadow is not None and (tenant is None or tenant.may_use(route.shadow.model))
        copy = usable and model == route.targets[0].model and copied(route, turn.principal.tenant, conversation)
        return Assigned(route, model, conversation, copy)

    def observe(self, asked: Admitted, answered: Answered | None, failure: BaseException | None) -> None:
        """Count a turn that has ended, or was refused with `failure`. A turn that asked for no route is ignored."""
        assigned = asked.assigned
        if assigned is None:
            return
        if assigned.copied:
            self._shadows.begin(assigned.route, asked, answered, failure, self._count)
        if assigned.trial:
            self._judge(assigned, _signals(assigned.route, answered, failure, asked.turn.trace.began))

    def lost(self, assigned: Assigned) -> ApiError:
        """Report a route that leads to a missing model, and return the client's error: the fault is ours."""
        log.error("route leads nowhere", extra={"route": assigned.route.name, "model": assigned.model})
        if assigned.trial:
            self._judge(assigned, [CanarySignal.ERROR])
        return Unavailable(f"what answers for '{assigned.route.name}' is not there; try again later")

    def _judge(self, assigned: Assigned, signals: list[CanarySignal]) -> None:
        route = assigned.route
        counted = {f"{_TURNS}:{assigned.model}": 1}
        for signal in signals:
            seen = (route.name, route.revision, assigned.conversation, signal)
            if seen not in self._counted:
                self._counted[seen] = None
                counted[f"{signal}:{assigned.model}"] = 1
                if len(self._counted) > _REMEMBERED:
                    self._counted.popitem(last=False)
        self._count(route, counted)

    def _count(self, route: Route, counted: Mapping[str, int]) -> None:
        """Add the counts with the next flush."""
        _, news = self._news.setdefault((route.name, route.revision), (route, Counter()))
        news.update(counted)

    async def flush(self) -> None:
        """Add new counts to those in Redis, and take out canaries that do worse. Never raises for want of Redis."""
        news, self._news = self._news, {}
        for route, counted in news.values():
            try:
                await self._add(route, counted)
                await self._take_out(route, (await read(self._redis, route)).standings)
            except (RedisError, OSError, ApiError) as error:
                log.warning("failures of canaries were not counted", extra={"error": type(error).__name__})

    async def _add(self, route: Route, counted: Mapping[str, int]) -> None:
        key = KEY.format(route=route.name, revision=route.revision)
        async with self._redis.pipeline(transaction=True) as pipeline:
            for field, count in counted.items():
                pipeline.hincrby(key, field, count)
            pipeline.expire(key, LIFETIME)
            await pipeline.execute()

    async def _take_out(self, route: Route, standings: Sequence[Standing]) -> None:
        """Take out the canaries that do worse.

        Raises:
            RedisError, OSError, ApiError: Redis does not answer.
        """
        out = {each.model: _taken_out(each) for each in standings if each.verdict.out and each.weight > 0}
        if not out:
            return
        targets = [
            msgspec.structs.replace(target, weight=0) if target.model in out else target for target in route.targets
        ]
        changed = msgspec.structs.replace(route, targets=targets)
        try:
            written = await self._directory.write(changed, actor=ACTOR, expected=route.revision)
        except (PreconditionFailed, NotFound):
            return  # somebody has changed it meanwhile, perhaps another gateway for the same reason: this trial is over
        with suppress(ApiError):  # then it is followed as other gateways follow it
            await self._view.refresh()  # before anybody is told: this gateway asks the canary no more
        for model, reason in out.items():
            self._metrics.trials.canary_out(reason.signal)
            log.warning("canary taken out", extra={"route": route.name, "canary": model, "signal": reason.signal})
        known = {each.model: each.taken_out for each in standings if each.taken_out is not None} | out
        key = KEY.format(route=route.name, revision=written.revision)
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.hset(key, mapping={_OUT + model: msgspec.json.encode(reason) for model, reason in known.items()})
            pipeline.expire(key, LIFETIME)
            await pipeline.execute()


class Trial(Struct, frozen=True):
    """Counts of a route since it was last changed."""

    standings: list[Standing]
    """Standing of each target beside the first."""
    shadow: Comparison | None


def exists(route: Route, tenant: Tenant | None) -> bool:
    """Whether a route exists for a tenant, who must be allowed all of its models."""
    if route.disabled:
        return False
    names = [target.model for target in route.targets]
    if route.tenant is None:
        return tenant is None or all(map(tenant.may_use, [route.name, *names]))
    # The list of models that a tenant may use has no names that its own admins make.
    return tenant is not None and tenant.name == route.tenant and all(map(tenant.may_use, names))


async def read(redis: Redis, route: Route) -> Trial:
    """Read a route's counts.

    Raises:
        RedisError, OSError: Redis does not answer.
    """
    key = KEY.format(route=route.name, revision=route.revision)
    found = cast("dict[bytes, bytes]", await redis.hgetall(key))
    out = {
        field.decode().removeprefix(_OUT): value for field, value in found.items() if field.startswith(_OUT.encode())
    }
    counts = {field.decode(): int(count) for field, count in found.items() if not field.startswith(_OUT.encode())}
    stable, *others = route.targets
    result = []
    for target in others:
        failures = {
            signal: Failures(counts.get(f"{signal}:{stable.model}", 0), counts.get(f"{signal}:{target.model}", 0))
            for signal in CanarySignal
        }
        on_trial = stable.weight > 0 and target.weight > 0
        verdict = judge(target.weight, stable.weight, failures if on_trial else {}, RULE)
        turns, stable_turns = (counts.get(f"{_TURNS}:{model}", 0) for model in (target.model, stable.model))
        reason = msgspec.json.decode(out[target.model], type=TakenOut) if target.model in out else None
        result.append(Standing(target.model, target.weight, turns, stable_turns, failures, verdict, reason))
    return Trial(result, None if route.shadow is None else comparison(counts))


def _taken_out(standing: Standing) -> TakenOut:
    verdict = standing.verdict
    assert verdict.signal is not None
    failures = standing.failures[verdict.signal]
    return TakenOut(
        int(time.time()), verdict.signal, standing.turns, standing.stable_turns, failures, round(verdict.evidence, 3)
    )


def _signals(
    route: Route, answered: Answered | None, failure: BaseException | None, began: float
) -> list[CanarySignal]:
    """Return a turn's failures that its model or engines caused; refused and cancelled requests are none."""
    error = failure if answered is None else answered.streamed.error
    if error is not None or answered is None:
        return [CanarySignal.ERROR] if isinstance(error, ApiError) and error.status >= 500 else []
    signals = []
    first = answered.streamed.first_token
    if route.slow_seconds is not None and first is not None and first - began > route.slow_seconds:
        signals.append(CanarySignal.SLOW)
    if answered.streamed.reason == "stop" and answered.streamed.usage.output_tokens <= 1:
        signals.append(CanarySignal.POOR)
    return signals
