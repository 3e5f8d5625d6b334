"""The replay of recorded load under each rule, with tiny traces; nothing here looks at how good a rule is."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.autoscale import main, pool_config, settings
from bench.autoscale_fluid import Fluid, FluidLoad
from bench.autoscale_future import by_future, needed
from bench.autoscale_report import FUTURE, AutoscaleResult, AutoscaleRow, equal
from bench.autoscale_rules import constant
from bench.autoscale_workload import COARSE, arrivals, measured_hardware, measured_steps, week
from bench.report import RESULTS
from load.traces import TracePoint
from scale.capacity import fit
from scale.fleet import Fleet, FleetSize
from scale.signals import PoolReplica, PoolSignal, ReplicaPhase

STEPS, KV_BYTES = measured_steps(RESULTS / "real-avx512.json")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten minutes of requests for each trace, and a bit more than an hour of rates twice."""
    folder = tmp_path / "data"
    (folder / "traces").mkdir(parents=True)
    begin = datetime(2023, 11, 16, 18)
    for name, prompt, output in (("conv", 1000, 200), ("code", 2000, 20)):
        lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
        lines += [f"{begin + timedelta(seconds=10 * at):%Y-%m-%d %H:%M:%S.%f}0,{prompt},{output}" for at in range(60)]
        with gzip.open(folder / f"traces/azure_2023_{name}.csv.gz", "wt") as file:
            file.write("\n".join(lines))
    with gzip.open(folder / "mooncake_conversation_trace.jsonl.gz", "wt") as file:
        for at in range(60):
            hashes = [0, 1 + at % 20, 1000 + at]
            entry = {"timestamp": 10_000 * at, "input_length": 1400, "output_length": 100, "hash_ids": hashes}
            file.write(json.dumps(entry) + "\n")
    (folder / "traces/servegen_language_rates.json").write_text(json.dumps({"m-large": [100.0, 120.0] * 8}))
    monkeypatch.setenv("ROUNDHOUSE_BENCH_DATA", str(folder))
    return folder


def test_every_load_and_rule_is_reported(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--output", str(tmp_path), "--check-hours", "0.02"])
    result = msgspec.json.decode((tmp_path / "autoscale.json").read_bytes(), type=AutoscaleResult)
    traces = ("conversation", "code", "conversation to code", "mooncake")
    weeks = ("m-large", "m-large on GPUs", "m-large on GPUs, lengths shift")
    assert list(result.days) == [*traces, *weeks]
    for load in result.days:
        few = load in traces
        rows = [(row.rule, row.start_seconds) for row in result.rows if row.load == load]
        known = {180.0: (FUTURE, FUTURE, "static, largest burst"), 30.0: (FUTURE, FUTURE)}
        assert rows == [
            (rule, start)
            for start in known
            for rule in (*(each.rule for each in settings(1, start, few=few)), *known[start])
        ]
    assert all(0 <= row.attained <= 1 and row.replicas >= 1 for row in result.rows)
    assert result.check is not None and result.check.requests > 0
    assert (tmp_path / "autoscale.md").read_text() in capsys.readouterr().out
    assert (tmp_path / "autoscale.png").read_bytes().startswith(b"\x89PNG")


def test_results_of_several_runs_become_one(data: Path, tmp_path: Path) -> None:
    main(["--only", "code", "--check-hours", "0", "--output", str(tmp_path / "one")])
    main(
        [
            "--only",
            "mooncake",
            "--check-hours",
            "0",
            "--merge",
            str(tmp_path / "one/autoscale.json"),
            "--output",
            str(tmp_path),
        ]
    )
    result = msgspec.json.decode((tmp_path / "autoscale.json").read_bytes(), type=AutoscaleResult)
    assert list(result.days) == ["code", "mooncake"]
    assert {row.load for row in result.rows} == {"code", "mooncake"}


def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_BENCH_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="azure_2023_conv"):
        main(["--only", "conversation", "--output", str(tmp_path)])


def test_the_cost_meets_the_measured_steps() -> None:
    cost = fit(STEPS)
    for step in STEPS:
        assert cost.seconds(step.tokens, step.rows, step.kv_bytes) == pytest.approx(step.seconds, rel=0.3)


def test_copies_come_at_other_times_and_share_no_prefix() -> None:
    recorded = [TracePoint(0.0, 1024, 64, (5, 6)), TracePoint(9.0, 1024, 64, (5, 7))]
    first, turned, other, second = arrivals(recorded, 2)
    assert [each.at for each in (first, turned, other, second)] == [0.0, 4.0, 5.0, 9.0]
    assert first.prompt[:16] == second.prompt[:16] != turned.prompt[:16] == other.prompt[:16]
    assert (len(first.prompt), first.output) == (1024 // COARSE, 64 // COARSE)


def test_a_week_has_the_mean_that_was_asked_for() -> None:
    requests = week([1.0] * 1008 + [2.0, 4.0] * 504, mean=50.0, tick=2.0)
    assert requests.mean() / 2 == pytest.approx(50.0, rel=0.05)
    assert requests.var() / requests.mean() > 2.5


def test_amounts_and_the_real_scheduler_agree_below_saturation_and_beyond() -> None:
    """The same requests on two replicas, which are enough or not."""
    config = pool_config(measured_hardware(STEPS, KV_BYTES), 1024, 160, shared=False)
    config = replace(config, replicas=2)
    work = config.capacity.work(1024 / COARSE, 160 / COARSE)
    chance = np.random.default_rng(1)
    for load, low, high in ((0.7, 0.95, 1.0), (1.5, 0.0, 0.3)):
        rate = 2 * load / work
        counts = chance.poisson(rate * 2.0, 60).astype(float)
        times = np.sort(np.repeat(np.arange(60) * 2.0, counts.astype(int)) + 2 * chance.random(int(counts.sum())))
        coming = arrivals([TracePoint(at, 1024, 160) for at in times.tolist()], 1)
        real = Fleet(config, constant(2)).serve(coming).attained(2.0)
        lengths = np.full(60, 1024 / COARSE), np.full(60, 160 / COARSE)
        fluid = Fluid(config, constant(2), 2.0).serve(FluidLoad(2.0, counts, *lengths)).attained
        assert low <= real <= high and low <= fluid <= high


def test_a_burst_is_needed_before_it_comes() -> None:
    """The seventh of ten looks brings 36 replicas' work, which 30 do with 2 s of waiting. They need 30 s to start."""
    sizes = [FleetSize(10.0 * at, 1, 1, 36.0 if at == 7 else 0.0) for at in range(1, 11)]
    needs = needed(sizes, 2.0)
    assert needs.argmax() == 6 and needs.max() == pytest.approx(30.0)
    sizer = by_future(0.5, needs, 30.0)
    replicas = tuple(PoolReplica(id=str(at), phase=ReplicaPhase.READY, age=60.0, in_flight=at) for at in range(3))
    wanted = [sizer(PoolSignal(time=size.time, replicas=replicas), 0.0) for size in sizes]
    assert [each.desired for each in wanted].index(60) == 2
    assert wanted[-1].desired == 1 and wanted[-1].victims == ("0", "1")


def row(replicas: float, misses: float) -> AutoscaleRow:
    return AutoscaleRow("load", True, "in flight / slots", 0.5, 180.0, 1 - misses, replicas, 8.0, 0)


def test_equal_attainment_is_read_off_between_two_settings() -> None:
    rows = [row(10.0, 0.01), row(12.0, 0.001)]
    assert equal(rows, 1 - math.sqrt(0.01 * 0.001)) == pytest.approx(11.0)
    assert equal(rows, 0.9) is None
