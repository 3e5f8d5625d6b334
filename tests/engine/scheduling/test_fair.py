"""The policy `fair`: counters, classes, and what it remembers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.scheduling import flows
from engine.scheduling.fair import Fair
from tests.engine.scheduler_bench import Bench


@pytest.fixture(autouse=True)
def fair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "policy", "fair")


def _counter(bench: Bench, tenant: str) -> float:
    policy = bench.scheduler.waiting
    assert isinstance(policy, Fair)
    return policy.counter("standard", tenant)


def _queue(bench: Bench):  # type: ignore[no-untyped-def]
    return bench.scheduler.waiting._queues["standard"]  # type: ignore[attr-defined]


def test_input_costs_one_and_output_two_divided_by_the_weight() -> None:
    bench = Bench(max_running=2)
    bench.add("a", 10, max_tokens=5, tenant="light")
    bench.add("b", 10, max_tokens=5, tenant="heavy", weight=4.0)
    bench.step()
    assert (_counter(bench, "light"), _counter(bench, "heavy")) == (12.0, 3.0)
    bench.step()
    assert (_counter(bench, "light"), _counter(bench, "heavy")) == (14.0, 3.5)


def test_cached_input_costs_nothing() -> None:
    bench = Bench()
    prompt = list(range(40))
    bench.add("first", prompt, max_tokens=1, tenant="a")
    bench.run()
    bench.add("second", [*prompt, 1], max_tokens=9, tenant="a")
    bench.step()
    assert _counter(bench, "a") == 9 + 2


def test_what_a_preempted_request_computes_again_is_free() -> None:
    bench = Bench(blocks=3)
    bench.add("first", 16, max_tokens=20, tenant="a")
    victim = bench.add("victim", 8, max_tokens=20, tenant="b")
    while not victim.output[8:] or victim.preemptions == 0:
        bench.step()
    assert _counter(bench, "b") == 8 + 2 * len(victim.output)


def test_tenants_take_turns_by_what_they_have_had() -> None:
    bench = Bench(max_running=1)
    for number in range(3):
        bench.add(f"a{number}", 2, max_tokens=4, tenant="a", arrival=0.0)
    for number in range(3):
        bench.add(f"b{number}", 2, max_tokens=4, tenant="b", arrival=0.0)
    order = []
    while len(bench.scheduler):
        order += [id for id in bench.step() if id not in order]
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_who_comes_late_starts_where_the_others_are_less_a_credit() -> None:
    bench = Bench(blocks=800, max_running=1, step_tokens=5000, context=20_000)
    for number in range(3):
        bench.add(f"a{number}", 3000, max_tokens=3, tenant="a")
    while not bench.requests["a1"].output:
        bench.step()
    bench.add("late", 2, tenant="b")
    assert _counter(bench, "b") == _counter(bench, "a") - flows.CREDIT > 0
    bench.run()


def test_idleness_earns_no_more_than_the_credit() -> None:
    bench = Bench(blocks=800, max_running=1, step_tokens=5000, context=20_000)
    bench.add("b", 2, max_tokens=1, tenant="b")
    for number in range(4):
        bench.add(f"a{number}", 3000, max_tokens=3, tenant="a")
    while not bench.requests["a2"].output:
        bench.step()
    bench.add("again", 2, tenant="b")
    assert _counter(bench, "b") == pytest.approx(_counter(bench, "a") - flows.CREDIT, abs=3)


def test_a_tenant_that_is_ahead_stays_so_when_it_pauses() -> None:
    bench = Bench(blocks=800, max_running=1, step_tokens=5000, context=20_000)
    bench.add("a", 6000, max_tokens=1, tenant="a")
    for number in range(3):
        bench.add(f"b{number}", 100, max_tokens=2, tenant="b")
    while bench.requests["a"].finish is None:
        bench.step()
    bench.add("again", 2, tenant="a")
    assert _counter(bench, "a") == 6000 + 2
    bench.run()


def test_an_idle_engine_forgets_all_counters() -> None:
    bench = Bench()
    for number in range(20):
        bench.add(str(number), 2, max_tokens=2, tenant=str(number))
    bench.run()
    assert _queue(bench).flows == 0


def test_tenants_without_requests_are_forgotten_once_the_others_have_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "CREDIT", credit := 256.0)
    bench = Bench(blocks=900, max_running=2, step_tokens=5000, context=20_000)
    bench.add("stays", 2, max_tokens=10_000, tenant="stays")
    for number in range(50):
        bench.add(str(number), 5, max_tokens=1, tenant=str(number))
    for _ in range(55):
        bench.step()
    assert _queue(bench).flows == 51
    for _ in range(round(credit)):
        bench.step()
    bench.add("new", 2, tenant="new")
    assert _queue(bench).flows == 2


def test_never_more_idle_tenants_are_remembered_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "MAX_IDLE", limit := 100)
    bench = Bench(blocks=900, max_running=2, step_tokens=5000, context=20_000)
    bench.add("stays", 2, max_tokens=10_000, tenant="stays")
    for number in range(limit + 100):
        bench.add(str(number), 5, max_tokens=1, tenant=str(number))
        bench.step()
    assert _queue(bench).flows <= limit + 1


# Service classes


def test_a_class_that_is_never_served_gets_a_turn_after_the_aging_time_and_only_one() -> None:
    """Premium requests never end; a batch request weighs two levels less."""
    bench = Bench(blocks=400, max_running=1, aging=10.0, context=100)
    for number in range(3):
        bench.add(f"batch{number}", 2, max_tokens=1, service="batch", tenant="b")
    served = []
    for step in range(70):
        bench.add(f"premium{step}", 2, max_tokens=1, service="premium", tenant="p")
        served += list(bench.step())
    assert [index for index, id in enumerate(served) if id.startswith("batch")] == [21, 43, 65]


def test_a_flood_in_a_lower_class_does_not_hold_up_a_better_one_however_old_it_is() -> None:
    bench = Bench(max_running=1, aging=10.0)
    for number in range(100):
        bench.add(f"flood{number}", 2, max_tokens=1, tenant="greedy")
    for _ in range(60):
        bench.step()
    bench.add("premium", 2, max_tokens=1, service="premium", tenant="p")
    assert bench.step().keys() == {"premium"}


def test_classes_have_counters_of_their_own() -> None:
    """What a tenant runs as batch work does not cost it its place in the standard class."""
    bench = Bench(max_running=1)
    bench.add("batch", 2, max_tokens=40, service="batch", tenant="a")
    for _ in range(30):
        bench.step()
    bench.scheduler.cancel("batch")
    bench.add("b", 2, max_tokens=1, tenant="b")
    bench.add("a", 2, max_tokens=1, tenant="a", arrival=0.0)
    assert _counter(bench, "a") == _counter(bench, "b") == 0


class Counted(dict[bytes, int]):
    """Counts look-ups."""

    lookups = 0

    def get(self, key: bytes, default: Any = None) -> Any:
        self.lookups += 1
        return super().get(key, default)


def test_prompts_that_wait_are_matched_once_and_then_only_with_what_has_changed() -> None:
    """Four long ones of one tenant wait for another one's answer, for which parts of their prefix are given up."""
    bench = Bench(blocks=64, max_running=1, context=800)
    prompt = [7] * 640
    bench.add("first", prompt, max_tokens=1, tenant="a")
    bench.run()
    bench.add("runs", 300, max_tokens=300, tenant="b")
    while not bench.scheduler.running or bench.scheduler.running[0].uncomputed > 1:
        bench.step()
    for number in range(4):
        bench.add(f"waits{number}", [*prompt[20 * number :], number, *range(30)], max_tokens=1, tenant="a")
    pool = bench.scheduler.pool
    index = pool._by_hash = Counted(pool._by_hash)
    lookups = []
    cached = pool.cached
    for _ in range(150):
        before = index.lookups
        bench.step()
        lookups.append(index.lookups - before)
    assert len(bench.scheduler.waiting) == 4
    assert cached > pool.cached >= 30
    assert lookups[0] > 36
    assert set(lookups[1:]) == {1}, "one for who is the first of them"
    bench.run()
    bench.assert_correct()


class Walked(dict[Any, None]):
    """Counts how many of its keys are walked over."""

    steps = 0

    def __iter__(self) -> Iterator[Any]:
        for key in super().__iter__():
            self.steps += 1
            yield key


def test_a_step_walks_over_the_tenants_that_wait_once_however_many_it_admits() -> None:
    bench = Bench(blocks=1024, max_running=64, step_tokens=4096)
    for number in range(512):
        bench.add(f"r{number}", [number % 97, number % 89, *range(30)], max_tokens=2, tenant=f"t{number}")
    queue = _queue(bench)
    backlog = queue._backlog = Walked(queue._backlog)
    assert len(bench.scheduler.schedule(bench.now).rows) == 64
    assert 0 < backlog.steps <= 512


class Read(list[int]):
    """Counts how often it is read."""

    reads = 0

    def __getitem__(self, key: Any) -> Any:
        self.reads += 1
        return super().__getitem__(key)


def test_who_may_be_preempted_for_another_tenant_is_known_without_a_look_at_their_blocks() -> None:
    """However long their contexts are: somebody of another tenant waits in every step."""
    bench = Bench(blocks=400, max_running=4, context=1600, step_tokens=6400)
    shared = [7] * 480
    for number in range(4):
        bench.add(f"runs{number}", [*shared, number, *[8] * 900], max_tokens=100, tenant="a", weight=100.0)
        bench.step()
    bench.add("waits", 1500, max_tokens=1, tenant="b")
    bench.step()
    pool = bench.scheduler.pool
    references = pool._references = Read(pool._references)
    for _ in range(10):
        before = references.reads
        plan = bench.scheduler.schedule(bench.now)
        assert references.reads - before <= 2 * len(plan.rows)
        bench.scheduler.commit(plan, bench.runner.execute(plan))
    assert [request.id for request in bench.scheduler.waiting] == ["waits"]
    bench.run()
    bench.assert_correct()


# A step's prompt tokens


def test_a_short_prompt_does_not_wait_for_another_tenant_s_long_one() -> None:
    bench = Bench(blocks=64, step_tokens=32, context=1000)
    bench.add("long", 300, max_tokens=1, tenant="greedy")
    bench.step()
    bench.add("short", 10, max_tokens=1, tenant="polite")
    assert bench.step() == {"long": 22, "short": 10}


def test_long_prompts_of_two_tenants_share_the_steps() -> None:
    bench = Bench(blocks=64, step_tokens=32, context=1000)
    bench.add("a", 200, max_tokens=1, tenant="a")
    bench.add("b", 200, max_tokens=1, tenant="b", weight=3.0)
    bench.step()
    assert bench.step() == {"a": 8, "b": 24}


def test_who_has_more_running_gets_less_of_a_step_for_each() -> None:
    bench = Bench(blocks=64, step_tokens=43, max_running=4, context=1000)
    for number in range(3):
        bench.add(f"greedy{number}", 1, max_tokens=50, tenant="greedy")
    bench.step()
    bench.scheduler.cancel("greedy2")
    bench.add("long", 300, max_tokens=1, tenant="greedy")
    bench.step()
    bench.add("polite", 300, max_tokens=1, tenant="polite")
    bench.step()
    ran = bench.step()
    assert ran["polite"] == pytest.approx(3 * ran["long"], abs=3)
