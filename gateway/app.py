"""The gateway as an ASGI application: makes its parts, starts and stops them, and says which path leads where."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

from cache.embedding.client import EmbedderClient
from cache.response import ResponseCache
from cache.statistics import CacheCounter
from engine.adapters.registry import AdapterRegistry
from gateway.access.directory.store import Directory
from gateway.access.directory.view import View, configured
from gateway.access.identity.authenticate import Identity
from gateway.access.identity.guesses import Guesses
from gateway.access.identity.issuers import Issuers
from gateway.access.identity.last_used import LastUsed
from gateway.access.identity.secret import SecretComparison, derive, installation_secret
from gateway.access.sign_in import SignIn
from gateway.access.tickets import Tickets
from gateway.admin import handlers
from gateway.admin.alert_webhook import alerting
from gateway.admin.app import create_admin_app
from gateway.admin.listener import listening
from gateway.background import Periodic, Starter, failure_reporter, observe_failure
from gateway.batches.store import BatchStore
from gateway.batches.worker import BatchWorker
from gateway.billing.ledger import Ledger
from gateway.config.configuration import WATCH_SECONDS, Apply, Configuration, Prepare
from gateway.config.settings import Settings
from gateway.engines.adapters import AdapterNames, registry_url
from gateway.engines.arrival import ArrivalState
from gateway.engines.drains import OperatorDrains
from gateway.engines.heartbeat import Heartbeat
from gateway.engines.leases import LeasedEngines
from gateway.engines.pools import Engines
from gateway.engines.wanted import WantedPools
from gateway.errors import ApiError
from gateway.http import files, messages, ollama
from gateway.http.cross_origin import CrossOrigin
from gateway.http.exchange import on_error
from gateway.http.lines import LineAnswers
from gateway.http.middleware import BodyLimit, HostCheck, RequestHeaders
from gateway.http.routes import ROUTES
from gateway.limits.limiter import Limiter
from gateway.pipeline import tracing
from gateway.pipeline.routing.canaries import Canaries
from gateway.pipeline.routing.decisions import DecisionLog
from gateway.pipeline.routing.judge import Judge
from gateway.pipeline.routing.shadows import Shadows
from gateway.pipeline.routing.tiers import TierMemory, Tiers
from gateway.pipeline.run import Pipeline
from gateway.pipeline.services import Services
from gateway.pipeline.sources.response_cache import answer_seal
from gateway.pipeline.sources.semantic_parts import semantic_cache
from gateway.pipeline.sources.single_flight import Flights
from gateway.pipeline.tracing import TraceRequests, Tracing
from gateway.registration.job_store import JobStore
from gateway.registration.registrar import Registrar
from gateway.registration.upload_room import UploadRoom
from gateway.safety.anomaly import Anomalies
from gateway.safety.guard import Guard
from gateway.safety.violations import Violations
from gateway.services import Gateway
from gateway.storage.connect import connect, replicas
from gateway.storage.presence import Presence
from gateway.storage.redis import BatchingRedis
from gateway.storage.seal import Seal
from gateway.telemetry import logs
from gateway.telemetry.metrics.process import Metrics
from gateway.telemetry.siblings import Siblings
from gateway.turns import Turns
from gateway.turns.chats import Chats
from gateway.turns.comments import Comments
from gateway.turns.compaction import Compactions
from gateway.turns.context import Context
from gateway.turns.conversations import Conversations
from gateway.turns.ids import ResponseIds
from gateway.turns.mailbox import READ_TIMEOUT
from gateway.turns.prompts import Prompts
from gateway.turns.shares import Shares
from gateway.ws.connections import SocketConnections


def create_app(
    configuration: Configuration | Settings,
    arrivals: ArrivalState | None = None,
    siblings: Siblings | None = None,
    admin_socket: socket.socket | None = None,
) -> Starlette:
    """Make the application. Its parts exist while its lifespan runs, as `app.state.gateway`.

    Args:
        arrivals: which models are not here yet; None: all are.
        siblings: the processes that share the port with this one; None: there are none.
        admin_socket: what `admin.listen` names, if it is bound already.
    """
    if isinstance(configuration, Settings):
        configuration = Configuration(configuration)
    settings, change = configuration.settings, configuration
    admin = create_admin_app()
    traced = [Middleware(TraceRequests)] if tracing.wanted(settings.telemetry) else []

    def allowed_origins() -> Sequence[str]:
        return change.settings.server.allowed_origins

    middleware = [
        Middleware(RequestHeaders),
        Middleware(CrossOrigin, allowed_origins=allowed_origins, on_error=_on_error),
        *traced,
        Middleware(HostCheck, listen=settings.server.host, allowed_origins=allowed_origins, on_error=_on_error),
        Middleware(BodyLimit, limit=settings.server.max_message_bytes, elsewhere=("/admin/", files.PATH)),
    ]

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with running(change, arrivals) as gateway:
            app.state.gateway = admin.state.gateway = gateway
            async with alerting(gateway), listening(admin, change, admin_socket):
                yield

    app = Starlette(
        routes=([] if settings.admin.listen else [Mount("/admin", admin)]) + ROUTES,
        middleware=middleware,
        exception_handlers=dict.fromkeys((ApiError, HTTPException, Exception), _on_error),
        lifespan=lifespan,
    )
    app.state.siblings = siblings
    return app


async def _on_error(request: Request, error: Exception) -> Response:
    """Answer an error in the shape of the API that the path belongs to, which a wrong path may not reach."""
    path = request.url.path
    shapes = {"/admin/": handlers.on_error, messages.PATH: messages.on_error, ollama.PATH: ollama.on_error}
    for prefix, answer in shapes.items():
        if path.startswith(prefix):
            return await answer(request, error)
    return await on_error(request, error)


@contextlib.asynccontextmanager
async def running(configuration: Configuration, arrivals: ArrivalState | None = None) -> AsyncIterator[Gateway]:
    """Start a gateway, whose engines may still be connecting. Leaving the block stops it and cancels what still runs.

    Raises:
        OSError, ValueError: a checkpoint's tokenizer cannot be read.
        SettingsError: the installation's secret or a certificate cannot be used, or traces are wanted without their
            libraries.
        RegistryError: the adapters' registry has an address of a kind that is not installed.
    """
    async with contextlib.AsyncExitStack() as stack:
        yield await _start(configuration, arrivals or ArrivalState(), stack)


async def _start(configuration: Configuration, arrivals: ArrivalState, stack: contextlib.AsyncExitStack) -> Gateway:
    """Make and start all parts in such an order that each may use those before it; the stack ends them in reverse."""
    settings, starter = configuration.settings, Starter(stack)
    secret = installation_secret(settings)
    redis, reader = _clients(settings, stack)
    # By the reader, which waits longer, as secrets are compared only here.
    comparison = await starter.start(SecretComparison(reader, secret, settings.redis.data))
    presence = Presence(redis)
    logs.identify(gateway=presence.id)
    tracer = tracing.create(settings.telemetry, presence.id)
    if tracer is not None:
        stack.push_async_callback(tracer.aclose)
    directory = Directory(
        redis, configured=configured(settings), secret=secret, replicas=replicas(settings), patient=reader
    )
    services = await _services(settings, arrivals, directory, (redis, reader), presence, tracer, starter)

    view, limiter, metrics = services.view, services.limiter, services.metrics
    make_pipeline = partial(_pipeline, services)
    seal, ids = Seal(derive(secret, "turns")), ResponseIds(derive(secret, "response ids"), presence.id)
    context = Context(Conversations(redis, seal, settings.turns), Compactions(seal))
    turns, tickets = Turns(await make_pipeline(settings), settings.turns, context, ids), Tickets(redis)
    services.flights.find = turns.look
    identity, signing_in = await _identity(settings, redis, view, secret, starter)
    connections = SocketConnections(settings, identity, tickets, turns, metrics, limiter, view)
    heartbeat = Heartbeat(presence.id, services.engines, metrics.activity)
    _notice_deaths(presence, services)
    presence.facts = lambda: heartbeat.facts(turns.running, connections.open, draining=turns.draining)
    await starter.start(presence)
    stack.push_async_callback(turns.aclose)
    await turns.share(redis, reader, presence, derive(secret, "turns"))
    stack.push_async_callback(connections.shut)
    jobs, limits = JobStore(redis), settings.adapters
    room = UploadRoom(Path(settings.redis.data) / "uploads", max_tenant_bytes=limits.max_upload_bytes_per_tenant)
    registrar = Registrar(services.adapters, directory, jobs, room, max_bytes=limits.max_upload_bytes)
    gateway = Gateway(
        **vars(services),
        configuration=configuration,
        arrivals=arrivals,
        redis=redis,
        identity=identity,
        tickets=tickets,
        sign_in=signing_in,
        turns=turns,
        connections=connections,
        presence=presence,
        comparison=comparison,
        directory=directory,
        jobs=jobs,
        registrar=await starter.start(registrar),
        batches=BatchStore(reader, derive(secret, "batches"), settings.batches),
        **_kept(reader, secret),
    )
    answers = LineAnswers(gateway)
    await starter.start(BatchWorker(presence.id, gateway.batches, answers, settings, metrics.batches))
    configuration.add(_preparing(gateway, make_pipeline))
    configuration.observe = metrics.configuration.read
    await starter.start(Periodic("configuration", configuration.look, WATCH_SECONDS))
    return gateway


def _kept(redis: BatchingRedis, secret: bytes) -> dict[str, Any]:
    """Make what keeps things for the chat page. Args: redis: a client with time enough for whole conversations."""
    return {
        "chats": Chats(redis, derive(secret, "chats")),
        "shares": Shares(redis),
        "prompts": Prompts(redis, derive(secret, "prompts")),
        "comments": Comments(redis, derive(secret, "comments")),
    }


async def _services(
    settings: Settings,
    arrivals: ArrivalState,
    directory: Directory,
    clients: tuple[BatchingRedis, BatchingRedis],
    presence: Presence,
    tracer: Tracing | None,
    starter: Starter,
) -> Services:
    """Make and start what turns share. `clients`: two clients of Redis, the second for reads that wait."""
    redis, reader = clients
    secret, start, metrics = installation_secret(settings), starter.start, Metrics()
    observe_failure.set(metrics.background.failed)
    redis.observe = metrics.redis.answered
    statistics, violations, decisions = CacheCounter(redis), Violations(redis), DecisionLog(redis)
    await starter.repeat("cache statistics", statistics.flush, 1.0)
    await starter.repeat("violations", violations.flush, 0.2)
    limiter = await start(Limiter(redis, settings, gateways=lambda: presence.gateways))
    folder = Path(settings.redis.data, "usage")
    ledger = await start(Ledger(reader, settings.usage, folder, replicas(settings), limiter.charge_lost))
    metrics.redis.watch_directory(lambda: directory.unconfirmed)
    metrics.redis.watch_ledger(lambda: ledger.lag, lambda: ledger.dropped)
    tls = settings.engine_tls
    engines = await start(await asyncio.to_thread(Engines, settings.pools, settings.router, tls, arrivals.coming))
    await start(LeasedEngines(redis, derive(secret, "engines"), engines, metrics.engines))
    adapters = await start(AdapterNames(AdapterRegistry(registry_url(settings)), engines.pools, settings.adapters.poll))
    view = await start(View(directory))
    engines.controls = view.replicas
    await start(OperatorDrains(engines))
    cache = ResponseCache(redis, answer_seal(secret), **settings.cache.bounds)
    embedder = await _embedder(settings, starter)
    shadows = await start(Shadows(engines, adapters, view, embedder, metrics))
    canaries = Canaries(redis, directory, view, metrics, shadows)
    await starter.repeat("canaries", canaries.flush, 1.0)
    await starter.repeat("decisions", decisions.flush, 1.0)
    memory = TierMemory(decisions)
    metrics.budgets.watch(memory.spent)
    similar = await semantic_cache(settings, embedder, redis, reader, statistics, metrics.semantic, secret)
    return Services(
        secret=secret,
        view=view,
        engines=engines,
        wanted=await start(WantedPools(redis)),
        adapters=adapters,
        limiter=limiter,
        response_cache=cache,
        flights=await start(Flights(cache)),
        statistics=statistics,
        ledger=ledger,
        metrics=metrics,
        canaries=canaries,
        decisions=decisions,
        judge=await start(Judge(settings.judge, engines, view, decisions, ledger, redis, metrics)),
        memory=memory,
        violations=violations,
        anomalies=Anomalies(),
        tracing=tracer,
        embedder=embedder,
        similar=None if similar is None else await start(similar),
    )


async def _identity(
    settings: Settings, redis: BatchingRedis, view: View, secret: bytes, starter: Starter
) -> tuple[Identity, SignIn]:
    """Make and start what finds out who is calling, and how people sign in."""
    last_used, issuers = await starter.start(LastUsed(redis)), await starter.start(Issuers(settings.identity.issuers))
    identity = Identity(view, secret, Guesses(settings.server.failed_keys_per_minute), last_used, issuers)
    signing_in = await starter.start(SignIn.over(redis, secret, settings.identity, issuers))
    identity.sessions = signing_in.sessions
    return identity, signing_in


def _notice_deaths(presence: Presence, services: Services) -> None:
    """Have the parts act that owe something to gateways that die, or to this one if it was taken for dead."""
    presence.on_death += [lambda gateway: services.ledger.search(), services.limiter.died]
    presence.on_return.append(services.limiter.returned)


async def _embedder(settings: Settings, starter: Starter) -> EmbedderClient | None:
    """Make and start the client of the embedder, if there is one."""
    if not settings.embedder.enabled or settings.embedder.address is None:
        return None
    at = Path(settings.embedder.address.removeprefix("unix://"))
    return await starter.start(EmbedderClient(at, on_fault=failure_reporter("embedder")))


async def _pipeline(services: Services, settings: Settings) -> Pipeline:
    """Make the pipeline of a configuration. Turns stay on the pipeline, and so the settings, that they began with."""
    violations, metrics, anomalies = services.violations, services.metrics, services.anomalies
    guard = await asyncio.to_thread(Guard, settings.safety, services.secret, violations, metrics, anomalies)
    tiers = await asyncio.to_thread(Tiers, settings, services.memory, services.embedder)
    return Pipeline(settings, guard, tiers, services=services)


def _clients(settings: Settings, stack: contextlib.AsyncExitStack) -> tuple[BatchingRedis, BatchingRedis]:
    """Make two clients of Redis, the second for reads that wait."""
    redis, reader = connect(settings), connect(settings, timeout=READ_TIMEOUT)
    stack.push_async_callback(redis.aclose)
    stack.push_async_callback(reader.aclose)
    return redis, reader


def _preparing(gateway: Gateway, make_pipeline: Callable[[Settings], Awaitable[Pipeline]]) -> Prepare:
    """Return the function by which the gateway's parts prepare for changed settings."""

    async def prepare(settings: Settings) -> Apply:
        pipeline = await make_pipeline(settings)

        def apply() -> None:
            gateway.limiter.configure(settings)
            gateway.identity.configure(settings)
            gateway.view.configure(configured(settings))
            gateway.response_cache.configure(**settings.cache.bounds)
            if gateway.similar is not None:
                gateway.similar.configure(settings.semantic_cache)
            gateway.engines.configure(settings.pools, settings.router)
            gateway.judge.configure(settings.judge)
            gateway.adapters.pin()
            gateway.turns.configure(pipeline, settings.turns)
            gateway.connections.configure(settings)
            logs.configure(settings.log)

        return apply

    return prepare
