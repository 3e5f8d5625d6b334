"""When requests with adapters run: loads, bytes per step, draining, and what stays true whatever comes."""

from __future__ import annotations

import pytest

from engine.adapters.states import AdapterVersionState
from engine.request import State
from tests.engine.adapters.admission_bench import AdapterBench


def test_a_request_waits_for_its_adapter_while_others_run() -> None:
    bench = AdapterBench(delay=3)
    waiting = bench.add("a", 4, adapter="v")
    bench.add("base", 4, max_tokens=20)
    ran = [bench.step().keys() for _ in range(9)]
    assert ran == [{"base"}] * 8 + [{"base", "a"}]
    assert waiting.first_scheduled == 9.0
    bench.run()
    bench.assert_correct()


def test_requests_of_many_adapters_run_in_one_step() -> None:
    bench = AdapterBench(blocks=32, loads=8)
    for index in range(6):
        bench.add(str(index), 2, 8, adapter=f"v{index}")
    bench.run()
    assert max(bench.runner.distinct) == 6
    bench.assert_correct()


def test_a_request_keeps_its_place_in_line_while_its_adapter_loads() -> None:
    bench = AdapterBench(max_running=1)
    bench.add("running", 2, max_tokens=5)
    bench.add("first", 2, adapter="v")
    bench.add("second", 2)
    bench.run()
    first, second = (bench.requests[id].first_scheduled for id in ("first", "second"))
    assert first is not None and second is not None
    assert first < second


def test_loads_are_begun_by_who_waits_longest() -> None:
    bench = AdapterBench(loads=1)
    for version in "cab":
        bench.add(version, 2, adapter=version)
        bench.step()
    bench.run()
    prepared = [line for line in bench.runner.log if line.startswith("prepare")]
    assert prepared == ["prepare c", "prepare a", "prepare b"]


def test_the_number_of_loads_in_flight_is_bounded() -> None:
    bench = AdapterBench(delay=5, loads=2)
    for version in "abcde":
        bench.add(version, 2, adapter=version)
    bench.step()
    assert len(bench.loading) == 2
    bench.run()
    bench.assert_correct()


def test_a_resident_adapter_is_not_loaded_again() -> None:
    bench = AdapterBench()
    for id in ("one", "two"):
        bench.add(id, 2, adapter="v")
        bench.run()
    assert bench.runner.log == ["prepare v", "install v"]


def test_adapters_and_the_base_model_never_share_a_prefix() -> None:
    bench = AdapterBench()
    prompt = list(range(40))
    for index, version in enumerate(["v", None, "w", "v"]):
        bench.add(str(index), prompt, adapter=version)
        bench.run()
    assert [request.cached for request in bench.requests.values()] == [0, 0, 0, 32]
    bench.assert_correct()


def test_a_load_that_fails_ends_those_who_wait_for_it_and_nobody_else() -> None:
    bench = AdapterBench(delay=1)
    for id, version in [("a", "bad"), ("b", "bad"), ("c", "unlucky"), ("d", "good"), ("e", None)]:
        bench.add(id, 2, adapter=version)
    bench.run()
    assert bench.failed == {"a": "is not registered", "b": "is not registered", "c": "device"}
    assert bench.requests["d"].finish == bench.requests["e"].finish == "length"
    bench.assert_correct()


def test_a_load_that_failed_is_tried_again_for_the_next_request() -> None:
    bench = AdapterBench()
    bench.add("a", 2, adapter="bad")
    bench.run()
    bench.add("b", 2, adapter="bad")
    bench.run()
    assert bench.runner.log == ["prepare bad"] * 2


def test_an_adapter_larger_than_the_share_is_refused_with_the_remedy() -> None:
    bench = AdapterBench(blocks=8, sizes={"v": 5})
    bench.add("a", 2, adapter="v")
    bench.run()
    assert bench.failed["a"] == (
        "adapter: 'v' needs 5 KV blocks, more than pinned adapters leave of the 4 that adapters may hold; "
        "raise --adapter-share or --kv-tokens, or pin less"
    )


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4])
def test_a_cancelled_request_leaves_its_adapter_behind_but_no_reference(steps: int) -> None:
    bench = AdapterBench(delay=1)
    bench.add("a", 2, 50, adapter="v")
    for _ in range(steps):
        bench.step()
    bench.scheduler.cancel("a")
    bench.add("base", 2, 8)
    bench.run()
    assert bench.adapters.residency.state("v") in (
        AdapterVersionState.ABSENT,
        AdapterVersionState.HOST,
        AdapterVersionState.RESIDENT,
    )
    assert bench.scheduler.pool.available == 16


def test_a_preempted_request_gives_up_its_adapter_for_kv_and_gets_it_back() -> None:
    bench = AdapterBench(blocks=8, max_running=2, context=64)
    bench.add("first", 2, max_tokens=62)
    second = bench.add("second", 2, max_tokens=62, adapter="v")
    bench.add("third", 50, max_tokens=14)
    bench.run()
    assert second.finish == "length"
    bench.assert_correct()


def test_running_requests_take_the_sectors_of_adapters_that_are_only_wanted() -> None:
    bench = AdapterBench(blocks=8, share=0.375, max_running=2, sizes={"v": 3})
    bench.add("a", 2, max_tokens=40)
    bench.add("b", 2, max_tokens=40)
    bench.add("waiting", 2, adapter="v")
    bench.run()
    assert "remove v" in bench.runner.log
    assert bench.scheduler.preemptions == 0
    bench.assert_correct()


# Bytes per step


def test_the_adapters_of_a_step_have_no_more_bytes_than_allowed() -> None:
    bench = AdapterBench(step_bytes=20, loads=8)
    for index in range(5):
        bench.add(str(index), 2, 6, adapter=f"v{index}")
    bench.run()
    assert max(bench.runner.distinct) == 2
    bench.assert_correct()


def test_many_requests_of_one_adapter_count_once_and_the_base_model_not_at_all() -> None:
    bench = AdapterBench(step_bytes=10)
    for index in range(3):
        bench.add(str(index), 2, 6, adapter="v")
    bench.add("base", 2, 20)
    assert max(len(bench.step()) for _ in range(8)) == 4


def test_an_adapter_with_more_bytes_than_a_step_may_have_runs_alone() -> None:
    bench = AdapterBench(step_bytes=15, sizes={"large": 3}, loads=8)
    bench.add("a", 2, 6, adapter="large")
    bench.add("b", 2, 6, adapter="small")
    bench.run()
    assert max(bench.runner.distinct) == 1
    bench.assert_correct()


def test_a_prompt_in_chunks_counts_from_its_first_chunk_on() -> None:
    bench = AdapterBench(step_bytes=10, step_tokens=8, loads=8)
    bench.add("long", 60, 2, adapter="v")
    bench.add("other", 2, 2, adapter="w")
    bench.run()
    assert max(bench.runner.distinct) == 1
    bench.assert_correct()


# Draining


def keep_busy(bench: AdapterBench, version: str, steps: int, until: str) -> int:
    """Add a request for a version in every step until another request runs; after how many steps it did."""
    for step in range(steps):
        bench.add(f"{version}{step}", 2, 6, adapter=version)
        bench.step()
        if bench.requests[until].first_scheduled is not None:
            return step
    pytest.fail(f"{until} starved")


@pytest.mark.parametrize("limit", [{"step_bytes": 10}, {"blocks": 8, "share": 0.125}])
def test_a_busy_adapter_drains_for_one_that_has_waited_too_long(limit: dict[str, float]) -> None:
    bench = AdapterBench(**({"blocks": 32} | limit), wait=10.0)
    bench.add("v", 2, 6, adapter="v")
    bench.step()
    bench.add("starving", 2, adapter="w")
    assert 10 <= keep_busy(bench, "v", 40, until="starving") <= 25
    assert bench.scheduler.preemptions == 0
    bench.run()
    bench.assert_correct()


def test_who_does_not_drain_in_time_is_preempted() -> None:
    bench = AdapterBench(blocks=32, step_bytes=10, wait=10.0)
    long = bench.add("long", 2, 200, adapter="v")
    starving = bench.add("starving", 2, adapter="w")
    bench.run()
    assert long.preemptions >= 1
    assert starving.first_scheduled is not None
    assert 20 <= starving.first_scheduled <= 30
    assert len(long.output) == 200
    bench.assert_correct()


def test_the_adapter_with_the_fewest_remaining_tokens_drains() -> None:
    bench = AdapterBench(blocks=64, step_bytes=20, wait=10.0, loads=8)
    bench.add("long", 2, 200, adapter="u")
    bench.add("short", 2, 30, adapter="v")
    bench.add("short too", 2, 5, adapter="u")
    while len(bench.scheduler.running) < 2:
        bench.step()
    bench.add("starving", 2, adapter="w")
    bench.add("more", 2, adapter="v")
    bench.run()
    assert bench.requests["long"].preemptions == 0
    starving, more = (bench.requests[id].first_scheduled for id in ("starving", "more"))
    assert starving is not None and more is not None
    bench.assert_correct()


def test_nothing_new_is_brought_in_past_an_adapter_that_starves() -> None:
    bench = AdapterBench(blocks=16, share=0.25, sizes={"large": 4}, wait=5.0, max_running=16)
    for index in range(3):
        bench.add(f"busy{index}", 2, 12, adapter=f"v{index}")
    for _ in range(6):
        bench.step()
    large = bench.add("large", 2, adapter="large")
    for step in range(60):
        bench.add(f"next{step}", 2, 6, adapter=f"v{step % 5}")
        bench.step()
        if large.first_scheduled is not None:
            break
    else:
        pytest.fail("it starved")
    bench.run()
    bench.assert_correct()


def test_an_adapter_whose_requests_end_while_it_starves_holds_up_nobody() -> None:
    bench = AdapterBench(blocks=16, sizes={"other": 3}, step_bytes=10, host_bytes=21, wait=3.0)
    for id, version in [("busy", "v"), ("starving", "w"), ("other", "other")]:
        bench.add(id, 2, 100, adapter=version)
        bench.step()
    for _ in range(3):
        bench.step()
    for id in ("busy", "starving"):
        bench.scheduler.cancel(id)
    assert bench.adapters.residency.state("w") is AdapterVersionState.ABSENT
    bench.add("again", 2, adapter="w")
    bench.run()
    bench.assert_correct()


def test_kv_blocks_are_kept_for_an_adapter_that_starves_among_requests_for_the_base_model() -> None:
    bench = AdapterBench(blocks=8, sizes={"v": 3}, wait=5.0, max_running=8)
    for index in range(4):
        bench.add(f"busy{index}", 20, 12)
    bench.step()
    waiting = bench.add("waiting", 2, adapter="v")
    for step in range(100):
        bench.add(f"base{step}", 20, 12)
        bench.step()
        if waiting.first_scheduled is not None:
            break
    else:
        pytest.fail("it starved")
    bench.run()
    bench.assert_correct()


# Pins and announcements


def test_announced_adapters_are_on_the_host_when_their_requests_come() -> None:
    bench = AdapterBench()
    bench.adapters.prefetch.announce("v")
    bench.step()
    bench.step()
    assert bench.adapters.residency.state("v") is AdapterVersionState.HOST
    bench.add("a", 2, adapter="v")
    bench.run()
    assert bench.runner.log == ["prepare v", "install v"]


def test_pinned_adapters_are_loaded_ahead_and_stay() -> None:
    bench = AdapterBench(blocks=8)
    bench.adapters.prefetch.pin(["v"])
    for _ in range(4):
        bench.step()
    for index in range(6):
        bench.add(str(index), 2, adapter=f"w{index}")
        bench.run()
    assert bench.adapters.residency.state("v") is AdapterVersionState.RESIDENT
    assert "remove w0" in bench.runner.log
    assert "remove v" not in bench.runner.log


def test_an_old_version_goes_when_its_last_request_has_ended_and_its_pin_has_moved() -> None:
    bench = AdapterBench(host_bytes=10)
    bench.adapters.prefetch.pin(["old"])
    bench.add("a", 2, 10, adapter="old")
    for _ in range(4):
        bench.step()
    bench.adapters.prefetch.pin(["new"])
    bench.add("b", 2, 10, adapter="new")
    bench.run()
    assert bench.runner.host == {"new"}
    assert bench.requests["a"].state is State.FINISHED
    bench.assert_correct()
