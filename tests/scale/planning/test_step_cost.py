"""Seconds of steps: fitted ones beside those they were made from, predicted ones beside Vidur's measurements."""

from __future__ import annotations

import random
import statistics
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.plan_layers import measured_layers
from engine.step_times import StepWork, TimedStep
from scale.planning.devices import known_devices
from scale.planning.shape import known_shapes
from scale.planning.step_cost import Pace, Roofline, fit


def made_up(work: StepWork) -> float:
    """A machine that reads its weights in 7 ms or multiplies for 1.5 ms a token, whichever is longer.

    It replays steps of decodes, and takes 5 ms longer to make any other; each prompt takes 1 ms more.
    """
    made = 0.001 * work.prompts + (0.005 if work.prompts else 0.0)
    return max(0.007, 0.0015 * work.tokens) + 4e-4 * work.sampled + 2e-6 * work.read + 1e-8 * work.pairs + made


def steps(noise: float = 0.0) -> list[TimedStep]:
    """Each work nine times, and all of them once more under load."""
    chance = random.Random(1)
    works = [StepWork(rows, rows, rows * context) for rows in (1, 2, 4, 8, 16, 32) for context in (20, 500)]
    for count in (2, 8, 32, 128, 512):
        works += [StepWork(count, 1, 0, count * start + count * count // 2, 1) for start in (0, 900)]
    for prompts, count in ((1, 16), (1, 256), (4, 16), (4, 64), (16, 16)):
        tokens = 16 + prompts * count
        works.append(StepWork(tokens, 16 + prompts, 16 * 40, prompts * count * count // 2, prompts))
    timed = [TimedStep(work, made_up(work) * chance.lognormvariate(0, noise)) for work in works for _ in range(9)]
    return timed + [TimedStep(work, made_up(work), under_load=True) for work in works]


def test_a_fit_finds_what_steps_cost_also_between_those_that_were_measured() -> None:
    cost = fit(steps())
    assert cost.error < 0.01
    works = [StepWork(6, 6, 1200), StepWork(260, 5, 3000, 40_000, 1), StepWork(1, 1, 10_000)]
    works += [StepWork(4, 1, 0, 10, 1), StepWork(40, 12, 800, 300, 8)]
    for work in works:
        assert cost.seconds(work) == pytest.approx(made_up(work), rel=0.1)


def test_disturbances_and_noise_do_not_move_what_is_typical_much() -> None:
    disturbed = [
        TimedStep(step.work, step.seconds * (20 if at % 7 == 3 else 1), step.under_load)
        for at, step in enumerate(steps(0.05))
    ]
    cost = fit(disturbed)
    for work in (StepWork(8, 8, 2000), StepWork(128, 1, 0, 8000, 1)):
        assert cost.typical(work) == pytest.approx(made_up(work), rel=0.1)


def test_steps_take_as_long_one_after_another_as_they_did_under_load() -> None:
    """Every fifth takes six times as long, in the first half: half as long again in the mean, all of it there."""
    works = [step.work for step in steps() if step.under_load]
    paces = [6.0 if at % 5 == 0 and at < len(works) // 2 else 1.0 for at in range(len(works))]
    load = [TimedStep(work, made_up(work) * pace, True) for work, pace in zip(works, paces, strict=True)]
    cost = fit([step for step in steps() if not step.under_load] + load)
    step = cost.run()
    assert [step(each.work) for each in load * 2] == pytest.approx([each.seconds for each in load * 2], abs=1e-6)
    mean = sum(each.seconds for each in load) / sum(map(cost.typical, works))
    assert cost.seconds(works[0]) == pytest.approx(mean * cost.typical(works[0]))


@given(
    taken=st.lists(st.tuples(st.floats(1e-3, 1.0), st.floats(1e-3, 1.0)), min_size=1, max_size=20),
    at=st.lists(st.floats(0, 50), min_size=2, max_size=20).map(sorted),
)
def test_a_pace_never_goes_back_and_keeps_its_mean(taken: list[tuple[float, float]], at: list[float]) -> None:
    pace = Pace.of([typical for typical, _ in taken], [seconds for _, seconds in taken])
    assert all(one <= later + 1e-6 for one, later in pairwise(map(pace.at, at)))
    whole = pace.typical[-1]
    assert pace.at(at[0] + whole) - pace.at(at[0]) == pytest.approx(pace.mean * whole, abs=1e-5)


def test_no_step_costs_less_for_more_work() -> None:
    cost = fit(steps(0.3))
    assert min(cost.sampled, cost.read, cost.pairs, cost.prompts) >= 0
    assert cost.values == sorted(cost.values)
    assert cost.seconds(StepWork(2000)) > cost.seconds(StepWork(512))


def test_no_step_is_free_whatever_was_timed() -> None:
    """Of steps that took as long as their work is large, as on a machine that was busy at the wrong time."""
    works = [StepWork(rows, rows, rows * context) for rows in (1, 2, 4, 8, 16) for context in (20, 500)]
    cost = fit([TimedStep(work, 1e-6 * work.read, at == 2) for work in works for at in range(3)])
    assert cost.seconds(StepWork(1)) > 0


@pytest.mark.parametrize(
    "timed", [[TimedStep(StepWork(4, 4), 0.01)] * 5, [step for step in steps() if not step.under_load]]
)
def test_too_few_steps_are_refused(timed: list[TimedStep]) -> None:
    with pytest.raises(ValueError, match="too few steps"):
        fit(timed)


def test_the_roofline_is_as_far_from_measured_layers_as_the_docs_say() -> None:
    errors = [abs(layer.error) for layer in measured_layers()]
    assert len(errors) == 176
    assert statistics.median(errors) < 0.07
    assert statistics.quantiles(errors, n=10)[-1] < 0.2
    assert max(errors) < 0.35


def test_the_roofline_says_what_a_step_waits_for() -> None:
    roofline = Roofline(shape=known_shapes()["llama-3.1-8b"], device=known_devices()["h100"])
    decode, prompt = roofline.parts(StepWork(8, 8, 8000)), roofline.parts(StepWork(4096, 1, 0, 4096**2 / 2))
    assert decode["memory"] > 5 * decode["compute"]
    assert prompt["compute"] > 5 * prompt["memory"]
    assert decode["network"] == 0 < msgspec.structs.replace(roofline, devices=2).parts(StepWork(8, 8, 8000))["network"]


@pytest.mark.parametrize(("weights", "faster"), [("int8", True), ("fp8", True), ("int4", False), ("w8a16", False)])
def test_only_types_with_units_of_their_own_multiply_faster(weights: str, faster: bool) -> None:
    roofline = Roofline(shape=known_shapes()["llama-3.1-8b"], device=known_devices()["h100"], weights=weights)  # type: ignore[arg-type]
    plain = msgspec.structs.replace(roofline, weights="bf16")
    work = StepWork(4096, 1)
    assert (roofline.parts(work)["compute"] < 0.6 * plain.parts(work)["compute"]) is faster
