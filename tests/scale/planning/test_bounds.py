"""Batches, rates and the limit that binds, where they can be computed by hand."""

from __future__ import annotations

import msgspec
import pytest

from engine.step_times import StepWork
from scale.planning.bounds import EngineLimits, LatencyAims, ReplicaBounds, parse_aims, replicas_for
from scale.planning.traffic import PlannedTraffic

TRAFFIC = PlannedTraffic(rate=10, input=100, output=50)
AIMS = LatencyAims(ttft=10, itl=1)
LIMITS = EngineLimits(kv_tokens=1_000_000, max_running=64, step_tokens=2048)


class Constant:
    """Every step takes so long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def seconds(self, work: StepWork) -> float:
        return self._seconds


class Linear:
    """10 ms, and 1 ms for each token."""

    def seconds(self, work: StepWork) -> float:
        return 0.010 + 0.001 * work.tokens


def test_the_rate_is_little_s_law() -> None:
    most = ReplicaBounds(Constant(0.025), LIMITS, TRAFFIC, AIMS).most()
    assert (most.batch, most.step) == (64, 0.025)
    assert most.rate == pytest.approx(64 / (50 * 0.025))
    assert most.binds == "max_running is 64"


def test_prompts_take_their_part_of_each_step() -> None:
    """For each token of an answer two of a prompt: t(B) = 10 ms + 3 B ms."""
    bounds = ReplicaBounds(Linear(), LIMITS, TRAFFIC, AIMS)
    assert bounds.step(10) == pytest.approx(0.040)
    assert bounds.at(10 / (50 * 0.040)).batch == pytest.approx(10)


@pytest.mark.parametrize(
    ("limits", "aims", "batch", "binds"),
    [
        ({"kv_tokens": 1250}, {}, 10, "KV cache of 1,250 tokens holds 10 requests"),
        ({"step_tokens": 66}, {}, 22, "at most 66 tokens"),
        ({}, {"itl": 0.1}, 30, "ITL of 0.1 s"),
        # Half a step of 10 + 3 B ms, then one of 110 + B ms.
        ({}, {"ttft": 0.15}, 14, "TTFT of 0.15 s"),
    ],
)
def test_the_first_limit_that_is_reached_binds(
    limits: dict[str, int], aims: dict[str, float], batch: float, binds: str
) -> None:
    most = ReplicaBounds(
        Linear(), msgspec.structs.replace(LIMITS, **limits), TRAFFIC, msgspec.structs.replace(AIMS, **aims)
    ).most()
    assert most.batch == pytest.approx(batch)
    assert binds in most.binds


def test_a_prompt_runs_in_as_many_steps_as_it_needs() -> None:
    """20 tokens are free beside 10 decodes: five steps of 30 tokens, after half a step."""
    bounds = ReplicaBounds(Linear(), msgspec.structs.replace(LIMITS, step_tokens=30), TRAFFIC, AIMS)
    assert bounds.ttft(10) == pytest.approx(0.040 / 2 + 5 * 0.040)


def test_what_prompts_share_is_neither_computed_nor_held_twice() -> None:
    limits = msgspec.structs.replace(LIMITS, kv_tokens=1025)
    bounds = ReplicaBounds(Linear(), limits, msgspec.structs.replace(TRAFFIC, shared=0.5), AIMS)
    assert bounds.fits == pytest.approx((1025 - 50) / (50 + 25))
    assert bounds.step(10) == pytest.approx(0.010 + 0.001 * (10 + 10 / 50 * 50))


def test_aims_that_no_replica_meets_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"ITL of 0\.005 s"):
        ReplicaBounds(Linear(), LIMITS, TRAFFIC, LatencyAims(ttft=10, itl=0.005)).most()


@pytest.mark.parametrize(("offered", "replicas"), [(0.1, 1), (1.0, 2), (2.5, 4), (100.0, 123), (1000.0, 1193)])
def test_replicas_leave_room_for_chance(offered: float, replicas: int) -> None:
    assert replicas_for(offered) == replicas


def test_aims_are_read_from_text() -> None:
    assert parse_aims("ttft=1,itl=0.05") == LatencyAims(ttft=1, itl=0.05, share=0.95)
    with pytest.raises(msgspec.ValidationError, match="tpot"):
        parse_aims("tpot=1")
