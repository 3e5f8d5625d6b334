"""Seconds of steps: fitted ones beside those they were made from, predicted ones beside Vidur's measurements."""

from __future__ import annotations

import random
import statistics

import msgspec
import pytest

from bench.plan_layers import measured_layers
from engine.step_times import StepWork, TimedStep
from scale.planning.devices import known_devices
from scale.planning.shape import known_shapes
from scale.planning.step_cost import Roofline, fit


def made_up(work: StepWork) -> float:
    """A machine that reads its weights in 7 ms or multiplies for 1.5 ms a token, whichever is longer.

    It replays steps of decodes, and takes 5 ms longer to make any other; each prompt takes 1 ms more.
    """
    made = 0.001 * work.prompts + (0.005 if work.prompts else 0.0)
    return max(0.007, 0.0015 * work.tokens) + 4e-4 * work.sampled + 2e-6 * work.read + 1e-8 * work.pairs + made


def steps(noise: float = 0.0) -> list[TimedStep]:
    chance = random.Random(1)
    works = [StepWork(rows, rows, rows * context) for rows in (1, 2, 4, 8, 16, 32) for context in (20, 500)]
    for count in (2, 8, 32, 128, 512):
        works += [StepWork(count, 1, 0, count * start + count * count // 2, 1) for start in (0, 900)]
    for prompts, count in ((1, 16), (1, 256), (4, 16), (4, 64), (16, 16)):
        tokens = 16 + prompts * count
        works.append(StepWork(tokens, 16 + prompts, 16 * 40, prompts * count * count // 2, prompts))
    return [TimedStep(work, made_up(work) * chance.lognormvariate(0, noise)) for work in works for _ in range(9)]


def test_a_fit_finds_what_steps_cost_also_between_those_that_were_measured() -> None:
    cost = fit(steps())
    assert cost.error < 0.01
    works = [StepWork(6, 6, 1200), StepWork(260, 5, 3000, 40_000, 1), StepWork(1, 1, 10_000)]
    works += [StepWork(4, 1, 0, 10, 1), StepWork(40, 12, 800, 300, 8)]
    for work in works:
        assert cost.seconds(work) == pytest.approx(made_up(work), rel=0.1)


def test_disturbances_and_noise_do_not_move_what_is_typical_much() -> None:
    disturbed = [TimedStep(step.work, step.seconds * (20 if at % 7 == 3 else 1)) for at, step in enumerate(steps(0.05))]
    cost = fit(disturbed)
    for work in (StepWork(8, 8, 2000), StepWork(128, 1, 0, 8000, 1)):
        assert cost.typical(work) == pytest.approx(made_up(work), rel=0.1)
        assert cost.drawn(work, 0.5) == pytest.approx(made_up(work), rel=0.1)


def test_steps_that_take_longer_count_as_often_as_they_were_measured() -> None:
    """Every fifth takes twice as long: their mean is 1.2 times what is typical, and four of five are typical."""
    cost = fit([TimedStep(step.work, step.seconds * (1 + (at % 5 == 0))) for at, step in enumerate(steps(0.01))])
    work = StepWork(8, 8, 2000)
    assert cost.seconds(work) == pytest.approx(1.2 * made_up(work), rel=0.1)
    assert [round(cost.drawn(work, share) / made_up(work)) for share in (0.0, 0.7, 0.9, 0.999)] == [1, 1, 2, 2]


def test_rare_disturbances_do_not_count() -> None:
    cost = fit([TimedStep(step.work, step.seconds * (50 if at % 60 == 3 else 1)) for at, step in enumerate(steps())])
    assert cost.seconds(StepWork(8, 8, 2000)) == pytest.approx(made_up(StepWork(8, 8, 2000)), rel=0.1)


def test_no_step_costs_less_for_more_work() -> None:
    cost = fit(steps(0.3))
    assert min(cost.sampled, cost.read, cost.pairs, cost.prompts) >= 0
    assert cost.values == sorted(cost.values)
    assert cost.seconds(StepWork(2000)) > cost.seconds(StepWork(512))


def test_no_step_is_free_whatever_was_timed() -> None:
    """Of steps that took as long as their work is large, as on a machine that was busy at the wrong time."""
    works = [StepWork(rows, rows, rows * context) for rows in (1, 2, 4, 8, 16) for context in (20, 500)]
    cost = fit([TimedStep(work, 1e-6 * work.read) for work in works for _ in range(3)])
    assert cost.seconds(StepWork(1)) > 0


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="too few steps"):
        fit([TimedStep(StepWork(4, 4), 0.01)] * 5)


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
