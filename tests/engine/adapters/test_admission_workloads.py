"""Random workloads with adapters over tiny caches: everything finishes with the right tokens, and nothing leaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import State
from engine.scheduling.config import POLICIES
from tests.amounts import examples
from tests.engine.adapters.admission_bench import AdapterBench
from tests.engine.ledger_runner import VOCABULARY

VERSIONS = ["v0", "v1", "v2", "v3", "v4", "bad", "unlucky"]

Arrival = st.tuples(
    st.integers(1, 30),  # prompt tokens
    st.integers(1, 15),  # output tokens
    st.sampled_from([None, *VERSIONS[:5], *VERSIONS]),
    st.sampled_from(["premium", "standard", "batch"]),
    st.integers(0, 12),  # step in which it arrives
    st.one_of(st.none(), st.none(), st.integers(0, 15)),  # step in which it is cancelled
    st.sampled_from("xyz"),  # tenant
)
Workload = st.lists(Arrival, min_size=1, max_size=14)
Pins = st.lists(st.tuples(st.integers(0, 20), st.lists(st.sampled_from(VERSIONS), max_size=3, unique=True)), max_size=3)
Sizes = st.fixed_dictionaries({version: st.integers(1, 4) for version in VERSIONS})


Config = st.fixed_dictionaries(
    {
        "blocks": st.integers(8, 16),
        "step_bytes": st.one_of(st.none(), st.integers(1, 80)),
        "wait": st.integers(0, 10),
        "loads": st.integers(1, 3),
        "delay": st.integers(0, 3),
        "host_bytes": st.integers(0, 60),
        "max_running": st.integers(1, 5),
        "step_tokens": st.integers(5, 40),
        "policy": st.sampled_from(POLICIES),
        "max_preemptions": st.integers(0, 3),
    }
)


@settings(max_examples=examples(60))
@given(Workload, Pins, Sizes, Config)
def test_any_workload_finishes_with_the_right_tokens(
    workload: list[tuple[int, int, str | None, str, int, int | None, str]],
    pins: list[tuple[int, list[str]]],
    sizes: dict[str, int],
    config: dict[str, Any],
) -> None:
    blocks, step_bytes, host_bytes = config["blocks"], config["step_bytes"], config["host_bytes"]
    bench = AdapterBench(sizes=sizes, **config)
    events: dict[int, list[Callable[[], object]]] = {}
    for index, (length, output, version, service, arrival, cancelled, tenant) in enumerate(workload):
        id, prompt = str(index), [position % VOCABULARY for position in range(length - 1)] + [index]
        events.setdefault(arrival, []).append(
            lambda id=id, prompt=prompt, output=output, version=version, service=service, tenant=tenant: bench.add(  # type: ignore[misc]
                id, prompt, output, adapter=version, service=service, tenant=tenant
            )
        )
        if cancelled is not None:
            events.setdefault(arrival + cancelled, []).append(lambda id=id: bench.scheduler.cancel(id))  # type: ignore[misc]
    for step, versions in pins:
        events.setdefault(step, []).append(lambda versions=versions: bench.adapters.prefetch.pin(versions))  # type: ignore[misc]
    for step in range(3000):
        for event in events.pop(step, []):
            event()
        if not events and not len(bench.scheduler):
            break
        failed = len(bench.failed)
        ran = bench.step()
        # Work conservation: something runs, or something loads for those who wait.
        assert ran or bench.loading or len(bench.failed) > failed or not len(bench.scheduler)
        running = {request.adapter for request in bench.scheduler.running} - {None}
        used = sum(sizes[version] for version in running if version)
        assert step_bytes is None or len(running) <= 1 or used * bench.runner.sector_bytes <= step_bytes
    else:
        pytest.fail("some request starved")
    bench.assert_correct()
    share = blocks // 2
    for index, (_, output, version, _, _, cancelled, _) in enumerate(workload):
        request = bench.requests[str(index)]
        assert request.state is State.FINISHED
        if str(index) in bench.failed:
            pinned = {each for _, versions in pins for each in versions}
            assert version in ("bad", "unlucky") or sizes[version or ""] > share - sum(map(sizes.__getitem__, pinned))
        elif cancelled is None:
            assert version not in ("bad", "unlucky")
            assert len(request.output) == output or request.length == bench.scheduler.context
    bench.adapters.prefetch.pin([])
    bench.step()
    assert bench.adapters.standing_aside == 0
    residency = bench.adapters.residency
    while bench.loading:
        bench.step()
    assert bench.scheduler.pool.available == blocks
    assert residency.host_bytes <= host_bytes
    assert len(bench.runner.host) == sum(residency.state(version).value in ("host", "resident") for version in VERSIONS)


@settings(max_examples=examples(25))
@given(st.data())
def test_whatever_the_order_no_adapter_starves_while_others_stay_busy(data: st.DataObject) -> None:
    """Requests for popular adapters never stop coming; one for a rare adapter still runs within a bounded time."""
    popular = data.draw(st.integers(1, 4))
    wait = data.draw(st.integers(1, 8))
    tight = data.draw(st.sampled_from([{"step_bytes": 20}, {"step_bytes": 10}, {"share": 0.15}, {"share": 0.1}]))
    sizes = {"rare": data.draw(st.integers(1, 2))}
    bench = AdapterBench(blocks=20, sizes=sizes, wait=wait, loads=2, max_running=6, **tight)
    for step in range(400):
        if len(bench.scheduler) < 12:
            version = f"v{data.draw(st.integers(1, popular))}" if data.draw(st.booleans()) else None
            bench.add(f"busy{step}", data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20)), adapter=version)
        if step == 10:
            rare = bench.add("rare", 4, 4, adapter="rare")
        bench.step()
        if step > 10 and rare.first_scheduled is not None:
            break
    else:
        pytest.fail("the rare adapter starved")
    bench.run()
    bench.assert_correct()
