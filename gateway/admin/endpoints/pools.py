"""Pools and their replicas: their state and load, how many there may be, and how many turns each is to get."""

from __future__ import annotations

import contextlib
import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from redis.exceptions import RedisError

from gateway.admin.call import Access, Call
from gateway.admin.endpoints import shapes
from gateway.admin.endpoints.shapes import PathName
from gateway.admin.kit.conditions import entity_tag
from gateway.admin.kit.endpoints import Answer, Endpoints, Input
from gateway.config.pools import PoolSettings
from gateway.config.tiers import pools_by_label
from gateway.engines.engine import Engine
from gateway.engines.pool import Pool
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.records.directory import PoolControl, ReplicaControl
from gateway.scaling.bounds import effective
from gateway.scaling.records import PoolRecords, PoolSize

_KEPT_SECONDS = 7 * 86_400
"""Seconds for which the settings of a replica are kept that this gateway does not know; others may."""
_MOST_FORGOTTEN = 10
"""Most settings that one change deletes."""

endpoints = Endpoints("pools", "Pools of engines, one or several for each tier, and their replicas.")


class PoolPath(Input, frozen=True):
    pool: Annotated[
        str,
        Meta(pattern="^(small|medium|large)[0-9]*$", description="Tier of the pool; `large2` for a tier's second one."),
    ]


class ReplicaPath(PoolPath, frozen=True):
    replica: Annotated[PathName, Meta(description="Id of its process, such as `small-3f9c2a`.")]


PoolChange = shapes.change("PoolChange", PoolControl, without=["name"])
ReplicaChange = shapes.change("ReplicaChange", ReplicaControl, without=["name"])


class ReplicaLoad(Struct, frozen=True):
    """The engine's own report, at most a second old."""

    running: int
    waiting: int
    waiting_tokens: int
    total_blocks: int
    free_blocks: int
    cached_blocks: int
    predicted_queue_seconds: float
    step_seconds: float
    adapters: list[str]
    """Versions on the device, as far as the engine names them."""


class ReplicaState(Struct, frozen=True):
    """One engine, as this gateway sees it."""

    name: str
    pool: str
    weight: float
    """Share of the pool's turns, relative to the weights of the other replicas."""
    drained: bool
    """Whether it gets no new turns."""
    move_after: float | None
    """Seconds after which its turns move to others while it is drained; null: they finish there."""
    turns: int
    """Turns of this gateway that run there."""
    connected: bool
    registered: bool
    """Whether it has announced itself."""
    zone: str
    """Zone of its machine, if it has told one."""
    spot: bool
    """Whether it has told that its machine may be taken away at short notice."""
    circuit: str
    """State of its circuit breaker: closed, open or half_open."""
    carried_tokens: int
    """Tokens still to be computed, as this gateway predicts."""
    load: ReplicaLoad | None
    """The engine's last report; null while it is not connected."""


class PoolState(Struct, frozen=True):
    """A model and the engines that serve it."""

    pool: str
    """What the admin API knows it by: its tier, or `large2` for the second one of a tier."""
    tier: str
    weight: int
    """Its share of its tier's conversations, relative to those of the tier's other pools."""
    model: str
    dialect: str
    """What its engines are: `roundhouse`, or a server of another project."""
    context_length: int
    revisions: list[str]
    """Digests of the model's files, as its engines have reported them; normally one."""
    replicas: list[ReplicaState]
    size: PoolSize | None
    """How many engines it is to have, if that follows its load and a controller has decided."""


class PoolList(Struct, frozen=True):
    data: list[PoolState]


@endpoints.get("/pools", access=Access.OPERATOR)
async def list_pools(call: Call) -> Answer[PoolList]:
    """List all pools with their replicas, as this gateway sees them."""
    return Answer(PoolList([await _pool(call, pool) for pool in call.gateway.engines.pools]))


@endpoints.get("/pools/{pool}", access=Access.OPERATOR, versioned=True)
async def show_pool(call: Call, path: PoolPath) -> Answer[PoolState]:
    """Show a pool."""
    pool = _find(call, path.pool)
    return Answer(await _pool(call, pool), etag=entity_tag((await _bounds(call, pool)).revision))


@endpoints.patch(
    "/pools/{pool}",
    access=Access.OPERATOR,
    versioned=True,
    raises=[Conflict],
    body_type=PoolChange,
    example={"max_replicas": 6},
)
async def change_pool(call: Call, path: PoolPath, body: Any) -> Answer[PoolState]:
    """Set how many engines a pool may have, from the next look of its controller on.

    Null takes back what was set, so that the configuration's number applies. Pools whose configuration has no
    `max_replicas` have no controller (409).
    """
    pool = _find(call, path.pool)
    configured = _configured(call, pool)
    if not configured.scaled:
        raise Conflict(
            f"the {pool.label} pool has no max_replicas in the configuration, so nobody starts engines of it"
        )
    control = await _bounds(call, pool)
    call.match().check(entity_tag(control.revision))
    changed = msgspec.structs.replace(control, **shapes.given(body))
    try:
        effective(configured, changed)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    written = await call.gateway.directory.write(changed, actor=call.actor, expected=control.revision)
    return Answer(await _pool(call, pool), etag=entity_tag(written.revision))


@endpoints.get("/pools/{pool}/replicas/{replica}", access=Access.OPERATOR, versioned=True)
async def show_replica(call: Call, path: ReplicaPath) -> Answer[ReplicaState]:
    """Show a replica."""
    engine = _engine(call, path)
    return _answer(engine, await _control(call, engine))


@endpoints.patch(
    "/pools/{pool}/replicas/{replica}",
    access=Access.OPERATOR,
    versioned=True,
    raises=[Conflict],
    body_type=ReplicaChange,
    example={"drained": True},
)
async def change_replica(call: Call, path: ReplicaPath, body: Any) -> Answer[ReplicaState]:
    """Drain a replica or take it back, and set its weight.

    All gateways follow within a second. Turns that run there finish, or move to other replicas after `move_after`
    seconds. The settings are the process': one that is started in its place has none.
    """
    engine = _engine(call, path)
    control = await _control(call, engine)
    call.match().check(entity_tag(control.revision))
    await _forget_former(call)
    changed = msgspec.structs.replace(control, **shapes.given(body))
    written = await call.gateway.directory.write(changed, actor=call.actor, expected=control.revision)
    return _answer(engine, written)


def _find(call: Call, label: str) -> Pool:
    for pool in call.gateway.engines.pools:
        if pool.label == label:
            return pool
    raise NotFound(f"there is no {label} pool")


def _configured(call: Call, pool: Pool) -> PoolSettings:
    return pools_by_label(call.gateway.settings.pools)[pool.label]


def _engine(call: Call, path: ReplicaPath) -> Engine:
    for engine in _find(call, path.pool).engines:
        if engine.name == path.replica:
            return engine
    raise NotFound(f"the {path.pool} pool has no replica {path.replica!r}")


async def _bounds(call: Call, pool: Pool) -> PoolControl:
    """Return what operators have set for a pool; its revision is 0 if nothing was."""
    none = PoolControl(name=pool.tier)
    return await call.gateway.directory.get(PoolControl, pool.tier) or none if _configured(call, pool).scaled else none


async def _control(call: Call, engine: Engine) -> ReplicaControl:
    """Return a replica's settings as a record; its revision is 0 if nothing was set."""
    return await call.gateway.directory.get(ReplicaControl, engine.name) or ReplicaControl(name=engine.name)


async def _forget_former(call: Call) -> None:
    """Delete settings of processes that are long gone; without that they would pile up to the directory's cap."""
    known = {engine.name for pool in call.gateway.engines.pools for engine in pool.engines}
    before = time.time() - _KEPT_SECONDS
    former = [each for each in call.gateway.view.replicas().values() if each.name not in known]
    for control in [each for each in former if each.updated_at < before][:_MOST_FORGOTTEN]:
        with contextlib.suppress(NotFound):  # another gateway was faster
            await call.gateway.directory.delete(ReplicaControl, control.name, actor=call.actor)


def _answer(engine: Engine, control: ReplicaControl) -> Answer[ReplicaState]:
    return Answer(_replica(engine, control), etag=entity_tag(control.revision))


async def _pool(call: Call, pool: Pool) -> PoolState:
    controls, record = call.gateway.view.replicas(), None
    if _configured(call, pool).scaled:
        with contextlib.suppress(RedisError, OSError):
            record = await PoolRecords(call.gateway.redis).read(pool.tier)
    replicas = [
        _replica(engine, controls.get(engine.name) or ReplicaControl(name=engine.name)) for engine in pool.engines
    ]
    size = None if record is None else PoolSize.of(pool.tier, record)
    return PoolState(
        pool=pool.label,
        tier=pool.tier,
        weight=pool.weight,
        model=pool.name,
        dialect=pool.dialect,
        context_length=pool.context,
        revisions=pool.revisions,
        replicas=replicas,
        size=size,
    )


def _replica(engine: Engine, control: ReplicaControl) -> ReplicaState:
    report, load = engine.client.load, None
    if report is not None:
        load = ReplicaLoad(
            running=report.running,
            waiting=report.waiting,
            waiting_tokens=report.waiting_tokens,
            total_blocks=report.total_blocks,
            free_blocks=report.free_blocks,
            cached_blocks=report.cached_blocks,
            predicted_queue_seconds=report.predicted_queue_seconds,
            step_seconds=report.step_seconds,
            adapters=list(report.adapters or ()),
        )
    return ReplicaState(
        name=engine.name,
        pool=engine.pool.label,
        weight=control.weight,
        drained=control.drained,
        move_after=control.move_after,
        turns=engine.client.live,
        connected=engine.client.connected,
        registered=engine.lease is not None,
        zone=engine.lease.zone if engine.lease else "",
        spot=engine.spot,
        circuit=engine.breaker.circuit.value,
        carried_tokens=engine.load,
        load=load,
    )
