"""The scheduler's policy, driven without a model: the ledger runner checks every KV cell that a request reads."""

from __future__ import annotations

import pytest

from engine.cache.blocks import BLOCK_SIZE
from engine.plan import Sampled
from engine.request import Request, State
from engine.scheduling.config import POLICIES, SchedulerConfig
from engine.wire import SamplingParams
from tests.engine.ledger_runner import expected_output
from tests.engine.scheduler_bench import Bench


@pytest.fixture(autouse=True, params=POLICIES)
def policy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What holds whoever goes first is tested under every policy."""
    monkeypatch.setattr(Bench, "policy", request.param)
    return str(request.param)


only_with_classes = pytest.mark.parametrize("policy", ["priority", "fair"], indirect=True)
only_in_one_line = pytest.mark.parametrize("policy", ["fcfs", "priority"], indirect=True)


def test_a_request_runs_its_prompt_and_then_one_token_per_step() -> None:
    bench = Bench()
    request = bench.add("a", 10, max_tokens=3)
    assert [bench.step() for _ in range(3)] == [{"a": 10}, {"a": 1}, {"a": 1}]
    assert (request.state, request.finish, len(request.output)) == (State.FINISHED, "length", 3)
    bench.assert_correct()


def test_a_long_prompt_runs_in_chunks_of_the_budget_and_samples_only_at_its_end() -> None:
    bench = Bench()
    request = bench.add("a", 70, max_tokens=1)
    assert [bench.step(), bench.step()] == [{"a": 32}, {"a": 32}]
    assert request.output == []
    assert bench.step() == {"a": 6}
    bench.assert_correct()


def test_decodes_come_first_and_a_prompt_takes_the_rest_of_the_budget() -> None:
    bench = Bench()
    bench.add("decoding", 4, max_tokens=9)
    bench.step()
    bench.add("prompt", 50)
    assert bench.step() == {"decoding": 1, "prompt": 31}
    assert [row.count for row in bench.plan.rows] == [1, 31]


def test_single_token_rows_come_first_even_when_just_admitted() -> None:
    bench = Bench()
    bench.add("long", 20)
    bench.add("short", 1)
    bench.step()
    assert [row.request.id for row in bench.plan.rows] == ["short", "long"]


def test_several_prompts_share_a_step_in_line_order() -> None:
    bench = Bench()
    for id in ("a", "b", "c"):
        bench.add(id, 14)
    assert bench.step() == {"a": 14, "b": 14, "c": 4}


def test_no_more_than_max_running_requests_run() -> None:
    bench = Bench(max_running=2)
    for id in ("a", "b", "c"):
        bench.add(id, 2, max_tokens=2)
    assert bench.step().keys() == {"a", "b"}
    bench.step()
    assert bench.step().keys() == {"c"}


@only_with_classes
def test_a_better_service_class_is_served_first() -> None:
    bench = Bench(max_running=1)
    bench.add("low", 2, max_tokens=1, service="batch")
    bench.add("high", 2, max_tokens=1)
    assert bench.step().keys() == {"high"}


def test_equals_are_served_in_order_of_arrival() -> None:
    bench = Bench(max_running=1)
    for id in ("a", "b", "c"):
        bench.add(id, 2, max_tokens=1, arrival=0.0)
    assert [next(iter(bench.step())) for _ in range(3)] == ["a", "b", "c"]


@only_with_classes
def test_a_batch_request_that_has_waited_long_enough_overtakes() -> None:
    bench = Bench(max_running=1, aging=30.0)
    bench.add("old", 2, max_tokens=1, service="batch", arrival=0.0)
    bench.add("new", 2, max_tokens=1, arrival=31.0)
    assert bench.step().keys() == {"old"}


def test_a_request_waits_for_blocks_and_nobody_overtakes_it() -> None:
    bench = Bench(blocks=4)
    bench.add("running", 40, max_tokens=8)
    bench.add("large", 33)
    bench.add("small", 2)
    while not bench.requests["running"].output:
        assert bench.step().keys() == {"running"}
    bench.run()
    assert bench.requests["large"].first_scheduled <= bench.requests["small"].first_scheduled  # type: ignore[operator]
    bench.assert_correct()


def test_admission_leaves_a_block_for_every_running_request_to_grow_into() -> None:
    bench = Bench(blocks=4, step_tokens=64)
    bench.add("running", 16, max_tokens=40)
    bench.add("next", 48, max_tokens=1)
    assert bench.step().keys() == {"running"}
    assert bench.scheduler.pool.available == 3


@only_in_one_line
def test_cached_blocks_that_a_request_would_reuse_do_not_count_as_room_for_the_rest_of_it() -> None:
    bench = Bench(blocks=6, step_tokens=96)
    prefix = list(range(48))
    bench.add("prefix", prefix, max_tokens=1)
    bench.run()
    running = bench.add("running", 20, max_tokens=6)
    waiting = bench.add("waiting", prefix + [5] * 30, max_tokens=1)
    while running.finish is None:
        assert bench.step().keys() == {"running"}
    bench.run()
    assert waiting.cached >= 16
    bench.assert_correct()


def test_a_prompt_that_can_never_fit_is_refused() -> None:
    bench = Bench(blocks=2)
    with pytest.raises(ValueError, match="can never be served"):
        bench.add("a", 32)


def test_the_context_is_what_the_cache_can_hold() -> None:
    assert Bench(blocks=2).scheduler.context == 2 * BLOCK_SIZE
    assert Bench(blocks=100).scheduler.context == 256


def test_a_request_that_fills_the_whole_cache_finishes_by_length() -> None:
    bench = Bench(blocks=2)
    request = bench.add("a", 20, max_tokens=1000)
    bench.run()
    assert (request.finish, request.length) == ("length", 32)
    bench.assert_correct()


def test_a_budget_below_the_running_requests_is_refused() -> None:
    with pytest.raises(ValueError, match="step_tokens"):
        SchedulerConfig(blocks=1, step_tokens=4, max_running=5)


# Prefix cache


def test_a_known_prefix_is_not_computed_again() -> None:
    bench = Bench()
    prompt = list(range(40))
    bench.add("first", prompt, max_tokens=1)
    bench.run()
    second = bench.add("second", [*prompt, 7], max_tokens=1)
    assert bench.step() == {"second": 9}
    assert second.cached == 32
    bench.assert_correct()


def test_a_prompt_that_is_cached_whole_still_runs_its_last_token() -> None:
    bench = Bench()
    prompt = list(range(32))
    for id in ("first", "second"):
        bench.add(id, prompt, max_tokens=1)
        bench.run()
    assert bench.requests["second"].cached == 16
    bench.assert_correct()


def test_answers_are_reused_as_prefixes_of_the_next_turn() -> None:
    bench = Bench()
    first = bench.add("first", list(range(20)), max_tokens=20)
    bench.run()
    second = bench.add("second", first.prompt + first.output + [3], max_tokens=2)
    bench.run()
    assert second.cached == 32
    bench.assert_correct()


def test_requests_with_different_roots_never_share() -> None:
    bench = Bench()
    for index in range(2):
        request = Request(f"{index}", list(range(40)), SamplingParams(max_tokens=1), 0.0, chain_root=bytes([index]))
        bench.scheduler.add(request, 0.0)
        bench.run()
        assert request.cached == 0


def test_a_request_for_prompt_logprobs_computes_its_whole_prompt() -> None:
    bench = Bench()
    prompt = list(range(40))
    bench.add("first", prompt, max_tokens=1)
    bench.run()
    second = bench.add("second", prompt, max_tokens=1, prompt_logprobs=0)
    bench.run()
    assert second.cached == 0
    bench.assert_correct()


def test_a_request_waits_while_one_ahead_computes_its_prefix() -> None:
    bench = Bench(step_tokens=64)
    prompt = list(range(40))
    bench.add("first", prompt, max_tokens=4)
    bench.add("second", [*prompt, 1], max_tokens=4)
    bench.add("other", 5, max_tokens=4)
    assert bench.step() == {"first": 40, "other": 5}
    assert bench.step() == {"first": 1, "other": 1, "second": 9}
    bench.run()
    bench.assert_correct()


@only_with_classes
def test_a_request_does_not_wait_for_its_prefix_from_one_further_behind() -> None:
    bench = Bench(step_tokens=40)
    prompt = list(range(10)) * 6
    bench.add("behind", prompt, max_tokens=1, service="batch")
    bench.step()
    bench.add("ahead", prompt, max_tokens=1)
    assert bench.step().keys() == {"behind", "ahead"}
    bench.run()
    bench.assert_correct()


def test_a_request_does_not_wait_for_a_small_share_of_its_prompt() -> None:
    bench = Bench(step_tokens=128)
    bench.add("first", list(range(20)), max_tokens=4)
    bench.add("second", [*range(16), *([3] * 40)], max_tokens=4)
    assert bench.step() == {"first": 20, "second": 56}
    bench.run()
    bench.assert_correct()


def test_who_waited_for_a_prefix_goes_on_when_its_owner_is_cancelled() -> None:
    bench = Bench()
    prompt = list(range(40))
    bench.add("first", prompt)
    bench.add("second", prompt, max_tokens=2)
    bench.step()
    bench.scheduler.cancel("first")
    assert bench.step() == {"second": 8}
    bench.run()
    assert bench.requests["second"].output == expected_output(prompt, 2)


# Preemption


def test_when_blocks_run_out_the_first_in_line_goes_on_and_the_cheapest_behind_it_recomputes() -> None:
    bench = Bench(blocks=5, max_running=3)
    first = bench.add("first", 16, max_tokens=40)
    costly = bench.add("costly", 15, max_tokens=30)
    cheap = bench.add("cheap", 2, max_tokens=30)
    while not (cheap.preemptions or costly.preemptions):
        bench.step()
    assert (first.preemptions, costly.preemptions, cheap.preemptions) == (0, 0, 1)
    assert cheap.state is State.WAITING
    assert cheap.block_table == []
    bench.run()
    assert [len(request.output) for request in (first, costly, cheap)] == [40, 30, 30]
    bench.assert_correct()


def test_a_plan_names_the_preempted_requests() -> None:
    bench = Bench(blocks=3)
    bench.add("a", 16, max_tokens=20)
    bench.add("b", 8, max_tokens=20)
    preempted = []
    while len(bench.scheduler):
        bench.step()
        preempted += [request.id for request in bench.plan.preempted]
    assert preempted
    assert set(preempted) == {"b"}


def test_a_preempted_request_keeps_its_place_in_line() -> None:
    bench = Bench(blocks=3)
    bench.add("a", 16, max_tokens=20)
    victim = bench.add("b", 8, max_tokens=20)
    while not victim.preemptions:
        bench.step()
    bench.add("c", 2)
    assert [request.id for request in bench.scheduler.waiting] == ["b", "c"]


def test_who_finds_no_block_and_nobody_behind_waits_with_its_kv() -> None:
    bench = Bench(blocks=4)
    first = bench.add("first", 31, max_tokens=16)
    last = bench.add("last", 10, max_tokens=30)
    tokens: list[int] = []
    while first.finish is None:
        tokens.append(bench.step().get("last", 0))
    assert 0 in tokens
    assert last.preemptions == 0
    bench.run()
    bench.assert_correct()


@only_with_classes
def test_who_waits_for_a_block_does_not_hold_up_the_prompts_ahead() -> None:
    bench = Bench(blocks=6, step_tokens=2, max_running=2)
    behind = bench.add("behind", 1, max_tokens=60, service="batch")
    bench.step()
    ahead = bench.add("ahead", 60, max_tokens=1)
    steps = []
    while not ahead.output and len(steps) < 60:
        steps.append(bench.step())
    assert {"ahead": 2} in steps, "the one behind never had to wait"
    assert all("ahead" in step for step in steps)
    assert behind.preemptions == 0
    bench.run()
    bench.assert_correct()


# Cancellation


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["waiting", "in its prompt", "decoding"])
def test_a_cancelled_request_is_gone_at_once(steps: int) -> None:
    bench = Bench()
    request = bench.add("a", 40)
    for _ in range(steps):
        bench.step()
    assert bench.scheduler.cancel("a") is request
    assert (request.finish, request.block_table) == ("cancelled", [])
    assert bench.scheduler.pool.available == bench.scheduler.pool.total
    bench.scheduler.check_integrity()
    assert not bench.scheduler.schedule(99.0)


def test_cancelling_an_unknown_id_does_nothing() -> None:
    assert Bench().scheduler.cancel("nobody") is None


def test_what_a_request_cancelled_during_a_step_sampled_is_dropped() -> None:
    bench = Bench()
    request = bench.add("a", 4)
    plan = bench.scheduler.schedule(0.0)
    bench.scheduler.cancel("a")
    assert bench.scheduler.commit(plan, [Sampled([7])]) == []
    assert request.output == []
