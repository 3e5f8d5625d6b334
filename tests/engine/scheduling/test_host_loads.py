"""Prefixes that come back from host memory: right tokens, nobody held up, nothing lost, however long a copy takes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.blocks import BLOCK_SIZE
from engine.request import Request, State
from engine.scheduling.config import POLICIES
from engine.scheduling.host_loads import HostLoad
from engine.wire import PolicyName
from tests.amounts import examples
from tests.engine.ledger_host import LedgerHost
from tests.engine.ledger_runner import VOCABULARY
from tests.engine.scheduler_bench import Bench
from tests.engine.speculation.drafts import ledger_drafts


class HostBench(Bench):
    """Does what the core does; each load takes as many steps as `delay()` says, and fails if `fails()` says so."""

    def __init__(
        self,
        blocks: int = 8,
        host_blocks: int = 16,
        *,
        delay: Callable[[], int] = lambda: 1,
        fails: Callable[[], bool] = lambda: False,
        **config: Any,
    ) -> None:
        super().__init__(blocks, host_blocks=host_blocks, **{"host_load_tokens": BLOCK_SIZE} | config)
        self.host = LedgerHost(self.runner, host_blocks)
        self.in_flight: list[tuple[int, HostLoad, Callable[[], None]]] = []
        self._delay, self._fails = delay, fails

    def step(self) -> dict[str, int]:
        for entry in [entry for entry in self.in_flight if entry[0] <= self.now + 1]:
            self.in_flight.remove(entry)
            _, load, finish = entry
            failed = self._fails()
            if not failed:
                finish()
            self.scheduler.loads.end(load, failed=failed)
        return super().step()

    def _before_execution(self) -> None:
        self.host.save(self.scheduler.pool.host.take_saves())
        for load in self.scheduler.loads.take_due():
            self.in_flight.append(
                (int(self.now) + self._delay(), load, self.host.begin_load(load.host_blocks, load.blocks))
            )

    def run(self, steps: int = 10_000) -> None:
        while len(self.scheduler) or self.in_flight:
            assert steps > 0, "the scheduler does not finish its work"
            assert self.step() or self.in_flight or not len(self.scheduler), (
                "a step without rows although there is work"
            )
            steps -= 1

    def serve(self, id: str, prompt: list[int] | int, max_tokens: int = 1, **fields: Any) -> Request:
        request = self.add(id, prompt, max_tokens, **fields)
        self.run()
        return request


def prompt(first: int, blocks: int) -> list[int]:
    return [first, *(position % VOCABULARY for position in range(blocks * BLOCK_SIZE))]


def test_an_evicted_prefix_comes_back_and_is_not_computed_again() -> None:
    bench = HostBench()
    bench.serve("a", prompt(1, 4))
    bench.serve("other", prompt(2, 7))
    again = bench.serve("b", prompt(1, 4), 5)
    assert again.cached == 4 * BLOCK_SIZE
    assert bench.scheduler.loads.hit_tokens > 0
    bench.assert_correct()


def test_without_host_memory_it_is_computed_again() -> None:
    bench = HostBench(host_blocks=0)
    bench.serve("a", prompt(1, 4))
    bench.serve("other", prompt(2, 7))
    assert bench.serve("b", prompt(1, 4)).cached == 0


def test_others_run_while_a_prefix_is_loaded() -> None:
    bench = HostBench(blocks=12, delay=lambda: 3)
    bench.serve("a", prompt(1, 4))
    bench.serve("other", prompt(2, 11))
    bench.add("busy", [5], max_tokens=10)
    bench.step()
    bench.add("b", prompt(1, 4))
    assert [set(bench.step()) for _ in range(4)] == [{"busy"}, {"busy"}, {"busy"}, {"busy", "b"}]


def test_a_prefix_that_is_shorter_than_what_is_worth_loading_is_computed() -> None:
    bench = HostBench(host_load_tokens=3 * BLOCK_SIZE)
    for blocks in (2, 3):
        bench.serve(f"a{blocks}", prompt(blocks, blocks))
    bench.serve("other", prompt(9, 7))
    assert bench.serve("b2", prompt(2, 2)).cached == 0
    assert bench.serve("b3", prompt(3, 3)).cached == 3 * BLOCK_SIZE


def test_who_shares_a_prefix_that_is_being_loaded_waits_for_it_and_loads_nothing() -> None:
    bench = HostBench(blocks=16, delay=lambda: 4)
    bench.serve("a", prompt(1, 6))
    bench.serve("other", prompt(2, 15))
    requests = [bench.add(id, prompt(1, 6)) for id in "bc"]
    bench.run()
    assert bench.scheduler.loads.loaded == 6
    assert [request.cached for request in requests] == [6 * BLOCK_SIZE] * 2


@pytest.mark.parametrize("cancelled_after", range(5))
def test_blocks_of_a_request_that_ends_during_its_load_are_kept_until_the_copy_has_ended(cancelled_after: int) -> None:
    bench = HostBench(delay=lambda: 3)
    bench.serve("a", prompt(1, 4))
    bench.serve("other", prompt(2, 7))
    bench.add("b", prompt(1, 4), 9)
    for _ in range(cancelled_after):
        bench.step()
    bench.scheduler.cancel("b")
    loading = len(bench.scheduler.loads)
    assert loading == (1 <= cancelled_after <= 3)
    # All of the device is needed at once.
    greedy = bench.add("greedy", prompt(3, 7), 2)
    bench.run()
    assert greedy.state is State.FINISHED
    bench.assert_correct()
    assert bench.scheduler.pool.available == 8


def test_a_load_that_fails_costs_nothing_but_time() -> None:
    bench = HostBench(fails=lambda: True)
    bench.serve("a", prompt(1, 4))
    bench.serve("other", prompt(2, 7))
    bench.serve("b", prompt(1, 4), 4)
    bench.assert_correct()


def test_a_preempted_request_gets_its_blocks_back_instead_of_computing_them() -> None:
    bench = HostBench(blocks=8, policy="fcfs")
    bench.add("ahead", prompt(1, 2), 60)
    behind = bench.add("behind", prompt(2, 3), 20)
    bench.run()
    assert behind.preemptions > 0
    assert bench.scheduler.loads.loaded > 0
    bench.assert_correct()


def test_a_request_for_prompt_logprobs_loads_nothing() -> None:
    bench = HostBench()
    bench.serve("a", prompt(1, 4))
    bench.serve("other", prompt(2, 7))
    assert bench.serve("b", prompt(1, 4), prompt_logprobs=0).cached == 0


Workload = st.lists(
    st.tuples(
        st.integers(1, 60),  # prompt tokens
        st.integers(1, 20),  # output tokens
        st.integers(0, 2),  # which of three common prefixes
        st.sampled_from(["premium", "standard", "batch"]),
        st.integers(0, 20),  # step in which it arrives
        st.one_of(st.none(), st.integers(0, 12)),  # step in which it is cancelled
        st.sampled_from(["anna", "ben"]),  # whose it is
    ),
    min_size=2,
    max_size=12,
)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=examples(40))
@given(
    Workload,
    st.integers(4, 9),
    st.integers(1, 16),
    st.integers(4, 40),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_any_workload_with_a_small_host_memory_finishes_with_the_right_tokens(
    policy: PolicyName,
    workload: list[tuple[int, int, int, str, int, int | None, str]],
    blocks: int,
    host_blocks: int,
    step_tokens: int,
    max_running: int,
    max_preemptions: int,
    seed: int,
    drafts: bool,
) -> None:
    generator = random.Random(seed)
    bench = HostBench(
        blocks,
        host_blocks,
        delay=lambda: generator.randint(1, 4),
        fails=lambda: generator.random() < 0.1,
        step_tokens=step_tokens,
        max_running=max_running,
        policy=policy,
        max_preemptions=max_preemptions,
    )
    bench.draft = ledger_drafts(generator) if drafts else None
    bench.scheduler.pool.follow(True)
    told: set[bytes] = set()
    events: dict[int, list[Callable[[], object]]] = {}
    for index, (length, output, prefix, service, arrival, cancelled, tenant) in enumerate(workload):
        tokens = [(prefix + position) % VOCABULARY for position in range(min(length, blocks * BLOCK_SIZE - 1))]
        fields = {"service": service, "tenant": tenant}
        events.setdefault(arrival, []).append(
            lambda id=str(index), tokens=tokens, output=output, fields=fields: bench.add(id, tokens, output, **fields)  # type: ignore[misc]
        )
        if cancelled is not None:
            events.setdefault(arrival + cancelled, []).append(
                lambda id=str(index): bench.scheduler.cancel(id)  # type: ignore[misc]
            )
    for step in range(3000):
        for event in events.pop(step, []):
            event()
        if not events and not len(bench.scheduler) and not bench.in_flight:
            break
        ran = bench.step()
        for digest, held in bench.scheduler.pool.take_changes().items():
            (told.add if held else told.discard)(digest)
        assert told == bench.scheduler.pool.prefixes
        assert ran or bench.in_flight or not len(bench.scheduler)
        assert sum(ran.values()) <= step_tokens
        assert len(ran) <= max_running
    else:
        pytest.fail("some request starved")
    bench.assert_correct()
    assert all(request.state is State.FINISHED for request in bench.requests.values())
    assert bench.scheduler.pool.available == blocks
    host = bench.scheduler.pool.host
    assert host.free + host.cached == host.total
