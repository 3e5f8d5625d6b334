"""`/healthz`, `/readyz` and `/metrics`: for supervisors, load balancers and Prometheus. No API key is needed."""

from __future__ import annotations

from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.api.http import JsonResponse
from gateway.context import Gateway, gateway_of


async def liveness(request: Request) -> Response:
    """`GET /healthz`: the process runs. If this fails, restart it."""
    return JsonResponse({"status": "alive"})


async def readiness(request: Request) -> Response:
    """`GET /readyz`: whether an answer can be given. If not, why; send no traffic then."""
    problems = await _problems(gateway_of(request))
    return JsonResponse(
        {"status": "not ready" if problems else "ready", "problems": problems}, status_code=503 if problems else 200
    )


async def metrics(request: Request) -> Response:
    """`GET /metrics`: Prometheus' text format, or OpenMetrics if that is asked for."""
    gateway = gateway_of(request)
    for pool in gateway.engines.pools:
        gateway.metrics.placements.index(pool.tier, len(pool.placer.index))
        for engine in pool.engines:
            client = engine.client
            gateway.metrics.engine(engine.name, pool.tier, pool.name, up=client.connected, load=client.load)
            gateway.metrics.breaker(engine.name, engine.breaker.circuit)
    while gateway.engines.left:
        engine = gateway.engines.left.pop()
        gateway.metrics.engine_left(engine.name, engine.pool.tier, engine.pool.name)
    gateway.metrics.breaker("limits", gateway.limiter.circuit)
    gateway.metrics.reservations(gateway.limiter.outstanding)
    if gateway.embedder is not None and gateway.embedder.hello is not None:
        gateway.metrics.semantic.embedder(gateway.embedder.hello.model, up=gateway.embedder.ready.is_set())
    gateway.metrics.shared(**gateway.turns.shared)
    gateway.metrics.directory(age=gateway.view.age)
    gateway.metrics.redis(up=await _redis_answers(gateway))
    body, content_type = gateway.metrics.page(request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})


routes: list[BaseRoute] = [
    Route("/healthz", liveness),
    Route("/readyz", readiness),
    Route("/metrics", metrics),
]


async def _problems(gateway: Gateway) -> list[str]:
    if gateway.turns.draining:
        return ["the server is restarting"]
    problems = gateway.engines.problems()
    if not await _redis_answers(gateway):
        problems.append("Redis does not answer")
    return problems


async def _redis_answers(gateway: Gateway) -> bool:
    try:
        return bool(await gateway.redis.ping())
    except (RedisError, OSError):
        return False
