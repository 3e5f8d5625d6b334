"""What drafts cost and bring in a step: blocks, tokens of its budget, and answers that end in the middle of one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.cache.blocks import BLOCK_SIZE
from engine.plan import Row, Sampled, StepPlan
from engine.request import Request
from engine.wire import TokenIdLogprob
from tests.engine.ledger_runner import EOS, expected_output
from tests.engine.scheduler_bench import Bench
from tests.engine.speculation.drafts import ledger_drafts

RIGHT = ledger_drafts(random.Random(0), right=1.0)
WRONG = ledger_drafts(random.Random(0), right=0.0)


def decoding(bench: Bench, id: str = "a", prompt: int = 4, **fields: Any) -> Request:
    """A request that has its first token."""
    request = bench.add(id, prompt, **{"max_tokens": 30} | fields)
    bench.step()
    return request


def truth(request: Request, count: int) -> tuple[int, ...]:
    return tuple(expected_output(request.tokens(0, request.length), count))


def test_a_step_gains_what_is_right_of_a_draft_and_one_token_more() -> None:
    bench = Bench()
    request = decoding(bench)
    first, second, third, fourth = truth(request, 4)
    bench.draft = lambda _: (first, second, (third + 1) % 50, fourth)
    assert bench.step() == {"a": 5}
    assert request.output[1:] == [first, second, third]
    assert request.computed == request.length - 1
    bench.draft = None
    bench.run()
    bench.assert_correct()


def test_a_draft_gets_what_the_step_leaves_of_its_budget() -> None:
    bench = Bench(step_tokens=10)
    for id in ("a", "b"):
        decoding(bench, id)
    plan = bench.scheduler.schedule(0.0)
    assert bench.scheduler.reserve(plan, {"a": 5, "b": 5}) == {"a": 5, "b": 3}
    bench.add("prompt", 30)
    plan = bench.scheduler.schedule(0.0)
    assert bench.scheduler.reserve(plan, {"a": 5, "b": 5}) == {}


@pytest.mark.parametrize(("max_tokens", "context", "granted"), [(6, 256, 4), (2, 256, {}), (99, 10, 4)])
def test_a_draft_is_no_longer_than_the_rest_of_the_answer(max_tokens: int, context: int, granted: Any) -> None:
    bench = Bench(context=context)
    request = decoding(bench, max_tokens=max_tokens)
    plan = bench.scheduler.schedule(0.0)
    assert bench.scheduler.reserve(plan, {"a": 9}) == ({"a": granted} if granted else {})
    bench.draft = RIGHT
    bench.run()
    assert request.finish == "length"
    bench.assert_correct()


def test_a_chunk_of_a_prompt_has_no_draft() -> None:
    bench = Bench(step_tokens=8, max_running=4)
    bench.add("a", 20)
    plan = bench.scheduler.schedule(0.0)
    assert bench.scheduler.reserve(plan, {"a": 3}) == {}


def test_a_draft_takes_no_block_from_another_request() -> None:
    bench = Bench(4)
    request, other = decoding(bench, "a", BLOCK_SIZE - 2), decoding(bench, "b", 2 * BLOCK_SIZE - 4)
    assert bench.scheduler.pool.available == 1
    plan = bench.scheduler.schedule(0.0)
    assert bench.scheduler.reserve(plan, {"a": 9, "b": 9}) == {"a": 9, "b": 3}
    assert len(request.block_table) + len(other.block_table) == 4
    assert not plan.preempted


def test_blocks_of_a_wrong_draft_are_free_again_after_the_step() -> None:
    bench = Bench()
    request = decoding(bench, prompt=BLOCK_SIZE - 2)
    free, bench.draft = bench.scheduler.pool.free, lambda row: WRONG(row) or (0,) * 6
    for _ in range(3):
        bench.step()
    assert len(request.block_table) == -(-request.length // BLOCK_SIZE)
    assert bench.scheduler.pool.free + len(request.block_table) == free + 1


def test_only_confirmed_tokens_are_published() -> None:
    bench = Bench()
    request = decoding(bench, prompt=BLOCK_SIZE - 3)
    good = truth(request, 3)
    bench.draft = lambda _: (good[0], (good[1] + 1) % 50, *good, *good)
    bench.step()
    assert request.length == BLOCK_SIZE
    assert bench.scheduler.pool.match(request.block_hashes) == []
    bench.draft = RIGHT
    bench.run()
    assert len(bench.scheduler.pool.match(request.block_hashes)) == len(request.block_hashes)
    again = bench.add("again", request.tokens(0, 2 * BLOCK_SIZE + 1), max_tokens=8)
    bench.run()
    assert again.cached == 2 * BLOCK_SIZE
    bench.assert_correct()


@pytest.mark.parametrize(
    ("sampling", "drawn", "kept", "finish"),
    [
        ({"ignore_eos": False}, [5, EOS, 6, 7], [5, EOS], "stop"),
        ({"stop_token_ids": (6,)}, [5, EOS, 6, 7], [5, EOS, 6], "stop"),
        ({"max_tokens": 3}, [5, EOS, 6, 7], [5, EOS], "length"),
        ({"ignore_eos": False, "min_tokens": 4}, [5, EOS, 6, EOS], [5, EOS, 6, EOS], "stop"),
    ],
)
def test_an_answer_ends_inside_a_draft(
    sampling: dict[str, Any], drawn: list[int], kept: list[int], finish: str
) -> None:
    """What the model said behind its end is dropped, with its log-probabilities."""
    bench = Bench()
    request = decoding(bench, **sampling)
    [row] = bench.scheduler.schedule(0.0).rows
    plan = StepPlan([Row(request, row.start, row.count, True, tuple(drawn[:-1]))])
    request.block_table += bench.scheduler.pool.allocate(1, request.holder)
    answer = Sampled(drawn, [TokenIdLogprob(token, -1.0) for token in drawn])
    [(gained, result)] = bench.scheduler.commit(plan, [answer])
    assert gained is request
    assert (request.output[1:], list(result.tokens), request.finish) == (kept, kept, finish)
    assert [entry.token for entry in result.logprobs or []] == kept
    assert bench.scheduler.output_tokens == 1 + len(kept)
    bench.scheduler.check_integrity()


def test_drafts_compose_with_preemption_and_prefixes() -> None:
    bench = Bench(5, max_running=4, step_tokens=20)
    bench.draft = ledger_drafts(random.Random(1))
    prefix = list(range(20))
    for index in range(4):
        bench.add(str(index), [*prefix, index], max_tokens=50)
    bench.run()
    assert bench.scheduler.preemptions > 0
    assert bench.scheduler.prefix_hit_tokens > 0
    bench.assert_correct()
