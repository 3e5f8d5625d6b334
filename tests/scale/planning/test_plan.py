"""Whole plans: the examples of the documentation with their arithmetic, and what a plan adds to bounds."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import pytest

from engine.step_times import StepWork, TimedEngine, TimedStep
from scale.planning import plan as planning
from scale.planning.bounds import EngineLimits, LatencyAims
from scale.planning.devices import known_devices
from scale.planning.kinds import ProbedEngine, ReplicaKind, kind_of
from scale.planning.plan import cheapest, plan, simulate_replica
from scale.planning.shape import known_shapes
from scale.planning.step_cost import Roofline
from scale.planning.traffic import Length, PlannedTraffic

AIMS = LatencyAims(ttft=30, itl=1)


@pytest.fixture(autouse=True)
def short_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_REQUESTS", 250)


class Steps:
    """Steps of a constant time, or of one per token."""

    def __init__(self, base: float, token: float = 0.0) -> None:
        self._base, self._token = base, token

    def seconds(self, work: StepWork) -> float:
        return self._base + self._token * work.tokens

    def run(self) -> Callable[[StepWork], float]:
        return self.seconds


def kind(base: float, running: int, token: float = 0.0, price: float | None = 2.0) -> ReplicaKind:
    limits = EngineLimits(kv_tokens=100_000, max_running=running, step_tokens=2048)
    return ReplicaKind(model="m", hardware="h", cost=Steps(base, token), limits=limits, context=100_000, price=price)


def test_memory_of_published_models() -> None:
    """Weights are parameters times bytes; KV is 2 x layers x KV heads x head size x bytes a token."""
    shapes = known_shapes()
    assert shapes["llama-2-7b"].weight_bytes("bf16") / 1e9 == pytest.approx(2 * 6.74, rel=0.001)
    assert shapes["llama-2-70b"].kv_bytes("bf16") == 2 * 80 * 8 * 128 * 2 == 327_680
    assert 4096 * shapes["llama-2-70b"].kv_bytes("bf16") / 1e9 == pytest.approx(1.34, abs=0.005)
    assert shapes["llama-2-7b"].kv_bytes("bf16") == 2 * 32 * 32 * 128 * 2 == 524_288
    assert 4096 * shapes["llama-2-7b"].kv_bytes("bf16") / 1e9 == pytest.approx(2.15, abs=0.005)


def test_2000_tokens_a_second_for_50_users_are_25_ms_a_token() -> None:
    traffic = PlannedTraffic(rate=2000 / 400, input=1, output=400)
    made = plan(kind(0.025, running=50), traffic, AIMS, spare=0, simulated=False)
    assert made.value("most_tokens") == pytest.approx(2000)
    assert made.value("batch") == 50
    assert made.value("step") == pytest.approx(25)


def test_3_million_tokens_an_hour_at_1_2_million_each_keep_2_and_a_half_busy() -> None:
    """Three are the fewest, at 83 %; with room for chance four, and one that may fail."""
    output = 300
    replica = kind(0.025, running=round(1.2e6 / 3600 * 0.025))
    traffic = PlannedTraffic(rate=3.0e6 / 3600 / output, input=1, output=output)
    made = plan(replica, traffic, AIMS, spare=1, simulated=False)
    assert traffic.rate / made.value("most_rate") == pytest.approx(2.5, rel=0.05)
    assert made.replicas == 5


def test_money_is_the_hour_s_price_over_its_tokens() -> None:
    """2 an hour at 1,000 tokens/s are 0.00056 per 1,000; 10 million answers of 500 tokens a month are 2,778."""
    traffic = PlannedTraffic(rate=1000 / 500 * 0.999, input=1, output=500)
    made = plan(kind(0.010, running=10), traffic, AIMS, spare=0, simulated=False)
    each = made.value("per_million_output") / made.replicas
    assert each / 1000 == pytest.approx(0.00056, rel=0.01)
    assert each * 10e6 * 500 / 1e6 == pytest.approx(2778, rel=0.01)
    assert made.value("per_hour") == 2.0 * made.replicas


def test_money_per_token_is_that_of_the_mean_not_of_the_peak() -> None:
    flat, peaked = (
        plan(kind(0.010, 10), PlannedTraffic(rate=1, input=1, output=500, peak=peak), AIMS, simulated=False)
        for peak in (1, 3)
    )
    assert peaked.value("per_million") == pytest.approx(3 * flat.value("per_million"))


def test_without_a_price_there_is_no_money() -> None:
    made = plan(kind(0.01, 10, price=None), PlannedTraffic(rate=1, input=1, output=50), AIMS, simulated=False)
    assert not any(figure.name.startswith("per_") for figure in made.figures)


def test_the_simulation_adds_replicas_where_chance_breaks_the_aims() -> None:
    """Lengths that differ much make queues of which bounds know nothing."""
    traffic = PlannedTraffic(rate=6, input=400, output=40, spread=0.8)
    aims = LatencyAims(ttft=0.8, itl=0.2)
    made = plan(kind(0.005, 16, token=0.0004), traffic, aims, spare=0)
    bounds = plan(kind(0.005, 16, token=0.0004), traffic, aims, spare=0, simulated=False)
    assert made.replicas > bounds.replicas
    assert made.simulated is not None and made.simulated.within >= 0.95
    assert made.value("simulated_ttft_p95") <= 800
    assert any("the simulation adds" in figure.why for figure in made.figures if figure.name == "replicas")


def test_aims_that_no_number_of_replicas_meets_are_refused() -> None:
    traffic = PlannedTraffic(rate=1, input=400, output=40, spread=1.5)
    with pytest.raises(ValueError, match="faster device, or other aims"):
        plan(kind(0.005, 16, token=0.0004), traffic, LatencyAims(ttft=0.25, itl=0.2), spare=0)


def test_a_trace_is_shared_out_in_turn() -> None:
    trace = [Length(float(at), 100, 10) for at in range(400)]
    traffic = PlannedTraffic(rate=1, input=100, output=10)
    result = simulate_replica(kind(0.01, 16), traffic, AIMS, 4, trace)
    assert result.requests == 80  # a fifth of a hundred warms up


def test_a_model_that_does_not_fit_is_refused_with_sizes() -> None:
    roofline = Roofline(shape=known_shapes()["llama-3.1-70b"], device=known_devices()["h100"])
    with pytest.raises(ValueError, match=r"llama-3.1-70b in bf16 needs 14\d\.\d GB, 1 x h100 have 72\.0 GB"):
        kind_of(roofline, step_tokens=2048, max_running=None, price=None)


def test_a_plan_for_a_gpu_has_every_figure_with_a_reason() -> None:
    roofline = Roofline(shape=known_shapes()["llama-3.1-8b"], device=known_devices()["h100"])
    replica = kind_of(roofline, step_tokens=2048, max_running=None, price=None)
    made = plan(
        replica, PlannedTraffic(rate=100, input=1200, output=250), LatencyAims(ttft=1, itl=0.05), simulated=False
    )
    assert all(figure.why and figure.value >= 0 for figure in made.figures)
    assert 2 <= made.replicas <= 20
    assert made.value("weights") == pytest.approx(16.06, abs=0.05)
    assert made.value("per_hour") == made.replicas * known_devices()["h100"].price


def test_the_cheapest_kind_comes_first_and_what_does_not_fit_is_left_out() -> None:
    device, shape = known_devices()["l4"], known_shapes()["llama-3.1-8b"]
    kinds = [
        lambda weights=weights: kind_of(  # type: ignore[misc]
            Roofline(shape=shape, device=device, weights=weights), step_tokens=2048, max_running=64, price=None
        )
        for weights in ("bf16", "int8", "int4")
    ]
    found = cheapest(kinds, PlannedTraffic(rate=20, input=600, output=150), LatencyAims(ttft=2, itl=0.1), spare=0)
    prices = [each.value("per_hour") for each in found]
    assert prices == sorted(prices) and len(found) >= 2
    too_large = [
        lambda: kind_of(
            Roofline(shape=known_shapes()["llama-3.1-70b"], device=device), step_tokens=2048, max_running=64, price=None
        )
    ]
    assert cheapest(too_large, PlannedTraffic(rate=1, input=600, output=150), AIMS, spare=0) == []


def test_a_probed_engine_is_a_kind_of_replica() -> None:
    steps = [
        TimedStep(StepWork(tokens, tokens, tokens * 100), 0.01 + 0.001 * tokens, under_load)
        for tokens, under_load in itertools.product((1, 4, 16), (False, True))
    ]
    timed = TimedEngine(
        model="tiny",
        device="cpu",
        dtype="float32",
        kv_dtype="float16",
        threads=1,
        step_tokens=256,
        max_running=16,
        kv_tokens=4096,
        context=2048,
        steps=steps,
    )
    probed = msgspec.json.decode(msgspec.json.encode(ProbedEngine.of(timed)), type=ProbedEngine)
    made = plan(probed.kind(price=0.1), PlannedTraffic(rate=2, input=50, output=20), AIMS, simulated=False)
    assert made.model == "tiny" and "cpu, 1 threads" in made.hardware
    assert made.value("kv_tokens") == 4096
