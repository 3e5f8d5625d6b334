"""`/healthz`, `/readyz`, `/version` and `/metrics`: for supervisors, balancers and Prometheus. No API key is needed."""

from __future__ import annotations

from collections import Counter

from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway import __version__
from gateway.access.identity.secret import DIFFERENT
from gateway.errors import NotFound, Unavailable
from gateway.http.exchange import JsonResponse
from gateway.services import Gateway, gateway_of
from gateway.storage.backups import last_backup
from gateway.telemetry.metrics.merging import merged
from gateway.telemetry.metrics.process import content_type
from gateway.telemetry.siblings import Siblings, fetch


async def liveness(request: Request) -> Response:
    """`GET /healthz`: the process runs. If this fails, restart it."""
    return JsonResponse({"status": "alive"})


async def readiness(request: Request) -> Response:
    """`GET /readyz`: whether turns can be answered, and what is wrong.

    `degraded` is 200: something is missing, and turns go on without it. What all gateways lack at once, such as Redis,
    would otherwise have all of them taken out of a load balancer. Tiers whose models are still being fetched are
    listed, and change the status only if no other tier answers.
    """
    gateway = gateway_of(request)
    if gateway.turns.draining:
        return JsonResponse({"status": "not ready", "problems": ["the server is restarting"]}, status_code=503)
    if gateway.comparison.same is False:
        return JsonResponse({"status": "not ready", "problems": [DIFFERENT]}, status_code=503)
    redis = await _redis_answers(gateway)
    problems = gateway.engines.problems() + gateway.arrivals.problems(unusable=True)
    problems += [] if redis else _without_redis(gateway)
    if gateway.view.set_back:
        problems.append("Redis has lost changes of the directory that were seen here: see docs/failures.md")
    serves = gateway.engines.serves and (redis or _serves_without_redis(gateway))
    status = ("degraded" if problems else "ready") if serves else "not ready"
    problems += gateway.arrivals.problems(unusable=False)
    return JsonResponse({"status": status, "problems": problems}, status_code=200 if serves else 503)


async def version(request: Request) -> Response:
    """`GET /version`: this program's, in vLLM's form."""
    return JsonResponse({"version": __version__})


async def metrics(request: Request) -> Response:
    """`GET /metrics`: Prometheus' text format, or OpenMetrics if that is asked for.

    Where several processes share the port, the page has the metrics of all of them, told apart by the label `process`;
    that of a single one is at `/metrics?process=N`.
    """
    gateway = gateway_of(request)
    siblings: Siblings | None = request.app.state.siblings
    accept, asked = request.headers.get("accept", ""), request.query_params.get("process")
    if siblings is None or asked == str(siblings.number):
        body = await _metrics_page(gateway, accept)
    elif asked is None:
        body = merged(await siblings.pages("/metrics?process={}", accept))
    else:
        # Only as it is written here: the process with this number must know it for its own, and not ask on.
        socket = {str(number): path for number, path in siblings.sockets.items()}.get(asked)
        if socket is None:
            raise NotFound(f"process: there is none with the number {asked[:20]!r}", param="process")
        try:
            _, body = await fetch(socket, f"/metrics?process={asked}", accept)
        except (OSError, TimeoutError):
            raise Unavailable(f"the gateway process {asked} does not answer; it may be starting") from None
    return Response(body, headers={"content-type": content_type(accept)})


async def _metrics_page(gateway: Gateway, accept: str) -> bytes:
    """Return this process's page."""
    blocks = Counter[str]()
    for pool in gateway.engines.pools:
        blocks[pool.tier] += len(pool.placer.index)
        gateway.metrics.turns.expect(pool.tier)
        gateway.metrics.placements.index(pool.tier, blocks[pool.tier])
        if pool.registered:
            gateway.metrics.engines.announced(pool.tier, pool.leases.values())
        if pool.may_sleep:
            gateway.metrics.engines.wanted(pool.tier, gateway.wanted.waiting(pool.tier))
        for engine in pool.engines:
            client = engine.client
            gateway.metrics.engines.seen(
                *(engine.name, pool.tier, pool.name),
                up=client.connected,
                load=client.load,
                lingered=client.lingered,
            )
            gateway.metrics.limits.breaker(engine.name, engine.breaker.circuit)
    while gateway.engines.left:
        name, tier, model = gateway.engines.left.popleft()
        gateway.metrics.engines.left(name, tier, model)
        gateway.metrics.limits.left(name)
    gateway.metrics.limits.breaker("limits", gateway.limiter.circuit)
    gateway.metrics.limits.reservations(gateway.limiter.outstanding)
    if gateway.embedder is not None and gateway.embedder.hello is not None:
        gateway.metrics.semantic.embedder(gateway.embedder.hello.model, up=gateway.embedder.ready.is_set())
    gateway.metrics.connections.shared(**gateway.turns.shared)
    gateway.metrics.redis.directory(age=gateway.view.age, set_back=gateway.view.set_back)
    try:
        gateway.metrics.redis.backed_up(await last_backup(gateway.redis))
    except (RedisError, OSError):
        gateway.metrics.redis.asked(answered=False)
    else:
        gateway.metrics.redis.asked(answered=True)
    return gateway.metrics.page(accept)


routes: list[BaseRoute] = [
    Route("/healthz", liveness),
    Route("/readyz", readiness),
    Route("/health", readiness),  # vLLM's name for it, which load tools ask for
    Route("/version", version),
    Route("/metrics", metrics),
]


def _serves_without_redis(gateway: Gateway) -> bool:
    """Whether anybody is let in, as far as this gateway knows."""
    return gateway.settings.limits.on_redis_down == "allow_local" and bool(gateway.view.tenants())


def _without_redis(gateway: Gateway) -> list[str]:
    if gateway.settings.limits.on_redis_down == "deny":
        return ['Redis does not answer, and limits.on_redis_down is "deny"']
    if not gateway.view.tenants():
        return ["Redis does not answer, and no tenants have been read from it yet"]
    return ["Redis does not answer: limits are this gateway's own, and nothing is stored"]


async def _redis_answers(gateway: Gateway) -> bool:
    try:
        return bool(await gateway.redis.ping())
    except (RedisError, OSError):
        return False
