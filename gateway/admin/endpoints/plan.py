"""How many replicas a load needs, by the planner's bounds."""

from __future__ import annotations

import asyncio
import shlex
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.opening import open_checkpoint
from gateway.admin.call import Access, Call
from gateway.admin.kit.endpoints import Answer, Endpoints, Input
from gateway.models.store import ModelStore
from scale.planning.bounds import LatencyAims
from scale.planning.devices import Device, known_devices
from scale.planning.kinds import PlanFigure, ReplicaChoices, variants
from scale.planning.plan import CapacityPlan, cheapest
from scale.planning.plan import plan as plan_replicas
from scale.planning.shape import KVType, ModelShape, WeightType, known_shapes
from scale.planning.traffic import PlannedTraffic

endpoints = Endpoints("plan", "How many replicas of a model a load needs, and what they cost.")

Seconds = Annotated[float, Meta(ge=0.0001, le=3600)]
Tokens = Annotated[float, Meta(ge=1, le=10_000_000)]


class PlanQuery(Input, frozen=True):
    """A load, the aims for it, and what a replica is."""

    model: Annotated[str | None, Meta(description="A model of the store, or one whose sizes are known.")] = None
    hardware: Annotated[str | None, Meta(description="A device, by its data sheet.")] = None
    rate: Annotated[float, Meta(ge=0.0001, le=1_000_000, description="Requests per second when it is busiest.")] = 1.0
    input: Annotated[Tokens, Meta(description="Mean tokens of a prompt.")] = 1000.0
    output: Annotated[Tokens, Meta(description="Mean tokens of an answer.")] = 200.0
    shared: Annotated[float, Meta(ge=0, lt=1, description="Share of a prompt that many begin with.")] = 0.0
    peak: Annotated[float, Meta(ge=1, le=1000, description="The busiest time's rate over the mean of the day.")] = 1.0
    ttft: Annotated[Seconds, Meta(description="Aim for the first token.")] = 2.0
    itl: Annotated[Seconds, Meta(description="Aim for the mean of the other tokens.")] = 0.1
    weights: Annotated[WeightType, Meta(description="Type of weights.")] = "bf16"
    kv: Annotated[KVType, Meta(description="Type of keys and values.")] = "bf16"
    devices: Annotated[int, Meta(ge=1, le=64, description="Devices of one replica.")] = 1
    price: Annotated[
        Annotated[float, Meta(ge=0, le=1_000_000)] | None,
        Meta(description="Money per replica and hour, instead of an assumption."),
    ] = None
    spare: Annotated[int, Meta(ge=0, le=1000, description="Replicas beyond what is needed.")] = 1


class ReplicaPlan(Struct, frozen=True, kw_only=True):
    """A plan for one kind of replica."""

    model: str
    hardware: str
    replicas: int
    """Replicas to run, spare ones included."""
    binds: str
    """What allows a replica no more."""
    figures: list[PlanFigure]


class PlanState(Struct, frozen=True, kw_only=True):
    """A plan, and what can be planned."""

    models: list[str]
    hardware: list[str]
    plan: ReplicaPlan | None
    """null: no model or no hardware is named, or the load cannot be served."""
    problem: str | None
    """Why the load cannot be served."""
    detail: str | None
    """What is wrong with the model's checkpoint, if that is why."""
    alternatives: list[ReplicaPlan]
    """The same device with other types of weights, keys and values, the cheapest first."""
    command: str | None
    """The command that also simulates the load."""


@endpoints.get("/plan", access=Access.OPERATOR)
async def plan_load(call: Call, query: PlanQuery) -> Answer[PlanState]:
    """Plan replicas for a load by bounds: memory, batch, latencies, number and money, each figure with its reason.

    Without `model` or `hardware` it lists those that are known. `command` also runs the load through the engine's
    scheduler, which takes seconds of a core, and may add replicas.
    """
    return Answer(await asyncio.to_thread(_plan, query, call.gateway.settings.models.open()))


def _plan(query: PlanQuery, store: ModelStore) -> PlanState:
    models = sorted({*(model.name for model in store.models()), *known_shapes()})
    known = PlanState(
        models=models,
        hardware=list(known_devices()),
        plan=None,
        problem=None,
        detail=None,
        alternatives=[],
        command=None,
    )
    if query.model is None or query.hardware is None:
        return known
    traffic = PlannedTraffic(
        rate=query.rate, input=query.input, output=query.output, shared=query.shared, peak=query.peak
    )
    aims = LatencyAims(ttft=query.ttft, itl=query.itl)
    choices = ReplicaChoices(query.weights, query.kv, query.devices, query.price)
    try:
        kind, others = variants(_shape(query.model, store), _device(query.hardware), choices)
        made = plan_replicas(kind, traffic, aims, spare=query.spare, simulated=False)
    except (CheckpointError, OSError) as error:
        problem = f"the checkpoint of {query.model[:64]} cannot be used"
        return msgspec.structs.replace(known, problem=problem, detail=str(error))
    except ValueError as error:
        return msgspec.structs.replace(known, problem=str(error))
    alternatives = cheapest(others, traffic, aims, spare=query.spare)
    return msgspec.structs.replace(
        known, plan=_told(made), alternatives=[_told(each) for each in alternatives], command=_command(query)
    )


def _device(name: str) -> Device:
    device = known_devices().get(name)
    if device is None:
        raise ValueError(f"{name[:64]} is no known device")
    return device


def _shape(name: str, store: ModelStore) -> ModelShape:
    if shape := known_shapes().get(name):
        return shape
    stored = next((each for each in store.models() if each.name == name), None)
    if stored is None:
        raise ValueError(f"{name[:64]} is no model of the store, and none whose sizes are known")
    return ModelShape.of(stored.name, open_checkpoint(store.path(stored)).config)


def _told(made: CapacityPlan) -> ReplicaPlan:
    return ReplicaPlan(
        model=made.model, hardware=made.hardware, replicas=made.replicas, binds=made.binds, figures=made.figures
    )


def _command(query: PlanQuery) -> str:
    """Return the command for the same plan."""
    traffic = ",".join(f"{name}={getattr(query, name):.12g}" for name in ("rate", "input", "output", "shared", "peak"))
    options = {
        "model": query.model,
        "hardware": query.hardware,
        "traffic": traffic,
        "slo": f"ttft={query.ttft:.12g},itl={query.itl:.12g}",
        "weights": query.weights,
        "kv": query.kv,
        "devices": query.devices,
        "price": None if query.price is None else f"{query.price:.12g}",
        "spare": query.spare,
    }
    words = (word for name, value in options.items() if value is not None for word in (f"--{name}", str(value)))
    return shlex.join(["roundhouse", "plan", *words])
