"""Random workloads over tiny caches: whatever comes, everything finishes with the right tokens and nothing leaks."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import State
from engine.scheduling.config import POLICIES
from engine.wire import PolicyName
from tests.amounts import examples
from tests.engine.ledger_runner import VOCABULARY
from tests.engine.scheduler_bench import Bench
from tests.engine.speculation.drafts import ledger_drafts

Workload = st.lists(
    st.tuples(
        st.integers(1, 45),  # prompt tokens
        st.integers(1, 20),  # output tokens
        st.integers(0, 2),  # which of three common prefixes
        st.sampled_from(["premium", "standard", "batch"]),
        st.integers(0, 6),  # step in which it arrives
        st.one_of(st.none(), st.integers(0, 12)),  # step in which it is cancelled
        st.booleans(),  # wants prompt log-probabilities
        st.sampled_from(["anna", "ben", "carl"]),  # whose it is
    ),
    min_size=1,
    max_size=10,
)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=examples(40))
@given(
    Workload,
    st.integers(4, 9),
    st.integers(4, 40),
    st.integers(1, 4),
    st.integers(0, 3),
    st.one_of(st.none(), st.randoms()),
)
def test_any_workload_in_a_tiny_cache_finishes_with_the_right_tokens(
    policy: PolicyName,
    workload: list[tuple[int, int, int, str, int, int | None, bool, str]],
    blocks: int,
    step_tokens: int,
    max_running: int,
    max_preemptions: int,
    drafts: random.Random | None,
) -> None:
    bench = Bench(
        blocks, step_tokens=step_tokens, max_running=max_running, policy=policy, max_preemptions=max_preemptions
    )
    bench.draft = drafts and ledger_drafts(drafts)
    arrivals: dict[int, list[Callable[[], object]]] = {}
    for index, (length, output, prefix, service, arrival, cancelled, logprobs, tenant) in enumerate(workload):
        prompt = [(prefix + position) % VOCABULARY for position in range(length - 1)] + [index]

        def add(
            id: str = str(index),
            prompt: list[int] = prompt,
            output: int = output,
            service: str = service,
            logprobs: bool = logprobs,
            tenant: str = tenant,
        ) -> None:
            weight = 2.0 if tenant == "carl" else 1.0
            scores = 0 if logprobs else None
            bench.add(id, prompt, output, service=service, tenant=tenant, weight=weight, prompt_logprobs=scores)

        arrivals.setdefault(arrival, []).append(add)
        if cancelled is not None:
            arrivals.setdefault(arrival + cancelled, []).append(
                lambda id=str(index): bench.scheduler.cancel(id)  # type: ignore[misc]
            )
    for step in range(2000):
        for event in arrivals.pop(step, []):
            event()
        if not arrivals and not len(bench.scheduler):
            break
        first = next(iter(bench.scheduler.running), None)
        ran = bench.step()
        # Work conservation: there is always a row while there is a request, and always one of the first in line.
        assert ran or not len(bench.scheduler)
        assert first is None or first.id in ran or min(row.request.rank for row in bench.plan.rows) < first.rank
        assert sum(ran.values()) <= step_tokens
        assert len(ran) <= max_running
    else:
        pytest.fail("some request starved")
    bench.assert_correct()
    for index, (_, output, _, _, _, cancelled, *_) in enumerate(workload):
        request = bench.requests[str(index)]
        assert request.state is State.FINISHED
        assert request.preemptions <= max_preemptions
        assert cancelled is not None or len(request.output) == output or request.length == bench.scheduler.context
    assert bench.scheduler.pool.available == blocks
