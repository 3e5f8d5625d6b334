"""Which aims the engine's benchmark finds reached."""

from __future__ import annotations

import pytest

from bench.cells import AIMS, CELLS
from bench.checkpoints import SHAPES
from bench.engine_report import verdicts
from bench.measure import MachineLimits, Measurement
from bench.subjects.interface import Precision
from bench.subjects.registry import SUBJECTS


def row(
    subject: str, rate: float, *, model: str = "L", precision: Precision = "bf16", cell: str = "8", **more: float
) -> Measurement:
    figures = dict.fromkeys(("ttft_p50", "ttft_p95", "itl_p50", "itl_p95", "roofline", "prefill"), 0.5) | more
    machine = MachineLimits(1e9, 1e12)
    return Measurement(
        model, precision, cell, subject, tokens_per_second=rate, peak_memory=0, machine=machine, **figures
    )


@pytest.mark.parametrize(("ours", "reached"), [(11.9, False), (12.0, True)])
def test_ours_is_compared_with_the_best_peer_of_the_same_precision(ours: float, reached: bool) -> None:
    rows = [row("OpenVINO", 10.0), row("vLLM", 9.0), row("OpenVINO", 99.0, precision="int8"), row("Roundhouse", ours)]
    [verdict] = verdicts(rows)
    assert verdict.peer is rows[0]
    assert verdict.value == pytest.approx(ours / 10)
    assert verdict.reached is reached


def test_where_any_precision_counts_each_side_has_its_best() -> None:
    rows = [
        row("OpenVINO", 10.0, model="S"),
        row("onnxruntime", 20.0, model="S", precision="int4"),
        row("Roundhouse", 15.0, model="S"),
        row("Roundhouse", 30.0, model="S", precision="int8"),
    ]
    [verdict] = verdicts(rows)
    assert (verdict.peer, verdict.ours) == (rows[1], rows[3])
    assert verdict.value == 1.5


def test_a_served_engine_is_neither_ours_nor_a_peer() -> None:
    rows = [row("Roundhouse, served", 50.0), row("vLLM", 10.0), row("Roundhouse", 20.0)]
    [verdict] = verdicts(rows)
    assert (verdict.peer, verdict.ours) == (rows[1], rows[2])


@pytest.mark.parametrize(("share", "reached"), [(0.89, False), (0.9, True)])
def test_one_request_is_compared_with_the_roofline(share: float, reached: bool) -> None:
    [verdict] = verdicts([row("Roundhouse", 10.0, cell="1", roofline=share)])
    assert verdict.reached is reached


@pytest.mark.parametrize(("ours", "reached"), [(2.4, True), (2.5, False)])
def test_the_time_to_the_first_token_must_be_below_the_best_peers(ours: float, reached: bool) -> None:
    rows = [
        row("vLLM", 10.0, cell="32", ttft_p50=4.0),
        row("OpenVINO", 11.0, cell="32", ttft_p50=5.0),
        row("Roundhouse", 20.0, cell="32", ttft_p50=ours),
    ]
    [first] = [verdict for verdict in verdicts(rows) if verdict.aim.quantity == "TTFT"]
    assert first.peer is rows[0]
    assert first.reached is reached


@pytest.mark.parametrize(("rate", "reached"), [(84.0, False), (85.0, True)])
def test_adapters_are_compared_with_none(rate: float, reached: bool) -> None:
    rows = [row("Roundhouse", 100.0, cell="32"), row("Roundhouse", rate, cell="adapters")]
    [adapters] = [verdict for verdict in verdicts(rows) if verdict.aim.quantity == "adapters"]
    assert adapters.reached is reached


def test_without_a_peer_nothing_is_reached() -> None:
    [verdict] = verdicts([row("Roundhouse", 100.0)])
    assert (verdict.value, verdict.reached) == (None, False)


def test_every_aim_is_one_of_a_cell_and_model_that_ours_runs() -> None:
    for aim in AIMS:
        assert aim.model in SHAPES
        assert aim.cell in CELLS
        assert aim.cell in SUBJECTS["Roundhouse"].cells
        assert aim.precision is None or aim.precision in SUBJECTS["Roundhouse"].precisions
