"""What one replica is: an engine that was timed, or a model on devices with known peak figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

from msgspec import Struct, field

from engine.cache.blocks import BLOCK_SIZE
from engine.step_times import TimedEngine
from scale.planning.bounds import EngineLimits
from scale.planning.devices import Device
from scale.planning.shape import KV_TYPES, WEIGHT_BYTES, WEIGHT_TYPES, KVType, ModelShape, WeightType
from scale.planning.step_cost import FittedCost, Roofline, StepTime, fit

MEMORY_SHARE = 0.9
"""Share of a device's memory that an engine may take."""
MOST_RUNNING = 256
"""Requests in one step where nothing else is asked for."""
STEP_TOKENS = 2048
"""Tokens of one step where nothing else is asked for."""


class PlanFigure(Struct, frozen=True):
    """One figure of a plan."""

    name: str
    value: float
    unit: str
    why: str


class ReplicaKind(Struct, frozen=True, kw_only=True):
    """What one replica is: how fast, how large, and what it costs."""

    model: str
    hardware: str
    cost: StepTime
    limits: EngineLimits
    context: int
    price: float | None
    """Money per hour, None if it is not known."""
    memory: list[PlanFigure] = field(default_factory=list)


class ProbedEngine(Struct, frozen=True, kw_only=True):
    """An engine whose steps were timed, and the cost that was fitted to them: the file that `plan probe` writes."""

    model: str
    device: str
    dtype: str
    kv_dtype: str
    threads: int
    limits: EngineLimits
    context: int
    cost: FittedCost

    @classmethod
    def of(cls, timed: TimedEngine) -> ProbedEngine:
        """
        Raises:
            ValueError: too few steps were timed.
        """
        limits = EngineLimits(kv_tokens=timed.kv_tokens, max_running=timed.max_running, step_tokens=timed.step_tokens)
        return cls(
            model=timed.model,
            device=timed.device,
            dtype=timed.dtype,
            kv_dtype=timed.kv_dtype,
            threads=timed.threads,
            limits=limits,
            context=timed.context,
            cost=fit(timed.steps),
        )

    def kind(self, price: float | None) -> ReplicaKind:
        """Return a replica like this engine."""
        hardware = f"{self.device}, {self.threads} threads" if self.device == "cpu" else self.device
        kv = PlanFigure("kv_tokens", self.limits.kv_tokens, "tokens", "the engine that was timed has so many")
        return ReplicaKind(
            model=self.model,
            hardware=f"{hardware}, {self.dtype}, as timed (median error {self.cost.error:.1%})",
            cost=self.cost,
            limits=self.limits,
            context=self.context,
            price=price,
            memory=[kv],
        )


class ReplicaChoices(Struct, frozen=True):
    """What a replica on devices with known peak figures is."""

    weights: WeightType
    kv: KVType
    devices: int
    price: float | None
    """Money per replica and hour; None: what is assumed of the device."""
    step_tokens: int = STEP_TOKENS
    max_running: int | None = None


def variants(
    shape: ModelShape, device: Device, choices: ReplicaChoices
) -> tuple[ReplicaKind, Sequence[Callable[[], ReplicaKind]]]:
    """Return the replica that is asked for, and makers of all with other types of weights, keys and values.

    Raises:
        ValueError: the model does not fit.
    """

    def make(weights: WeightType, kv: KVType) -> ReplicaKind:
        roofline = Roofline(shape=shape, device=device, weights=weights, kv=kv, devices=choices.devices)
        return kind_of(roofline, step_tokens=choices.step_tokens, max_running=choices.max_running, price=choices.price)

    others = [partial(make, weights, kv) for weights, kv in product(WEIGHT_TYPES, KV_TYPES)]
    return make(choices.weights, choices.kv), others


def kind_of(roofline: Roofline, *, step_tokens: int, max_running: int | None, price: float | None) -> ReplicaKind:
    """Return a replica of a model on devices with known peak figures.

    Raises:
        ValueError: the model does not fit.
    """
    shape, devices, device = roofline.shape, roofline.devices, roofline.device
    running = max_running or min(MOST_RUNNING, step_tokens)
    weights = shape.weight_bytes(roofline.weights)
    activations = step_tokens * 2 * (6 * shape.hidden + 2 * shape.intermediate) + running * shape.vocabulary * 4
    usable = MEMORY_SHARE * device.memory * devices
    left = usable - weights - activations * devices
    kv = shape.kv_bytes(roofline.kv)
    if left < kv * BLOCK_SIZE:
        needs = f"{shape.name} in {roofline.weights} needs {(weights + activations * devices) / 1e9:.1f} GB"
        raise ValueError(
            f"{needs}, {devices} x {device.name} have {usable / 1e9:.1f} GB for it; take more devices or fewer bits"
        )
    tokens = int(left / kv) // BLOCK_SIZE * BLOCK_SIZE
    bits = f"{WEIGHT_BYTES[roofline.weights]:.3g} bytes"
    memory = [
        PlanFigure(
            "weights", weights / 1e9, "GB", f"{shape.parameters / 1e9:.2f} billion parameters, {bits} each in layers"
        ),
        PlanFigure("activations", activations / 1e9, "GB", f"a step of {step_tokens} tokens, logits of {running} rows"),
        PlanFigure(
            "kv_bytes",
            kv / 1e3,
            "kB per token",
            f"2 x {shape.layers} layers x {shape.kv_heads} KV heads x {shape.head_dim} in {roofline.kv}",
        ),
        PlanFigure(
            "kv_tokens",
            tokens,
            "tokens",
            f"{left / 1e9:.1f} GB left of {MEMORY_SHARE:.0%} of {devices} x {device.name}",
        ),
    ]
    return ReplicaKind(
        model=shape.name,
        hardware=f"{devices} x {device.name}, weights {roofline.weights}, KV {roofline.kv} (peak figures)",
        cost=roofline,
        limits=EngineLimits(kv_tokens=tokens, max_running=running, step_tokens=step_tokens),
        context=shape.context,
        price=devices * device.price if price is None else price,
        memory=memory,
    )
