"""The engine without sockets: what goes in, what comes out, and that nothing leaks when something fails."""

from __future__ import annotations

from typing import Any

import pytest

from engine.core import EngineCore, RequestError, SchedulerConfig
from engine.plan import Handle, Sampled, StepPlan, TokenMasks
from engine.wire import Generate, Output, RopeRegimes, SamplingParams
from tests.engine.ledger_runner import EOS, LedgerRunner, expected_output, model_info


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_core(blocks: int = 16, runner: LedgerRunner | None = None, context: int = 256, **config: Any) -> EngineCore:
    defaults = {"step_tokens": 32, "max_running": 8}
    return EngineCore(
        runner or LedgerRunner(blocks), model_info(context), SchedulerConfig(blocks, **defaults | config), clock=Clock()
    )


def ask(id: str, prompt: list[int], **sampling: Any) -> Generate:
    return Generate(id, prompt, SamplingParams(**({"max_tokens": 4, "ignore_eos": True} | sampling)))


def drain(core: EngineCore) -> dict[str, list[Output]]:
    """Run until idle; the outputs of each request. The books balance at the end."""
    outputs: dict[str, list[Output]] = {}
    while not core.idle:
        for output in core.step():
            outputs.setdefault(output.id, []).append(output)
    core.check_integrity()
    load = core.load()
    assert load.free_blocks + load.cached_blocks == load.total_blocks
    assert (load.running, load.waiting, load.waiting_tokens) == (0, 0, 0)
    return outputs


def tokens(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def test_a_request_gives_one_token_per_output_and_a_finish_at_the_end() -> None:
    core = make_core()
    core.add(ask("a", [1, 2, 3], max_tokens=3))
    outputs = drain(core)["a"]
    assert tokens(outputs) == expected_output([1, 2, 3], 3)
    assert [output.finish for output in outputs] == [None, None, "length"]


def test_usage_comes_with_the_first_token_and_with_the_end() -> None:
    core = make_core()
    core.add(ask("a", [1, 2, 3], max_tokens=3))
    outputs = drain(core)["a"]
    assert [output.usage and output.usage.output_tokens for output in outputs] == [1, None, 3]


def test_usage_tells_cached_tokens_queue_time_and_preemptions() -> None:
    clock = Clock()
    core = EngineCore(LedgerRunner(8), model_info(), SchedulerConfig(8, max_running=1), clock=clock)
    prompt = list(range(40))
    core.add(ask("a", prompt, max_tokens=1))
    core.add(ask("b", prompt, max_tokens=1))
    core.step()
    clock.now += 5
    usage = drain(core)["b"][-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens, usage.queue_seconds, usage.preemptions) == (40, 32, 5.0, 0)


def test_an_answer_that_ends_with_eos_says_stop_and_carries_the_token() -> None:
    class Ending(LedgerRunner):
        def execute(self, plan: StepPlan) -> list[Sampled]:
            return [Sampled([EOS]) for _ in plan.rows]

    core = make_core(runner=Ending(16))
    core.add(ask("a", [1], ignore_eos=False))
    (output,) = drain(core)["a"]
    assert (output.tokens, output.finish) == ([EOS], "stop")


def test_a_chunk_of_a_prompt_gives_no_output() -> None:
    core = make_core()
    core.add(ask("a", [1] * 40, max_tokens=1))
    assert core.step() == []
    assert len(core.step()) == 1


def test_logprobs_come_with_their_tokens() -> None:
    core = make_core()
    core.add(ask("a", [1], max_tokens=2, logprobs=0))
    for output in drain(core)["a"]:
        assert output.logprobs is not None
        assert [entry.token for entry in output.logprobs] == output.tokens


@pytest.mark.parametrize("prompt", [[7], [7, 8, 9], list(range(45)), [3] * 32], ids=len)
def test_prompt_logprobs_cover_every_position_once_and_in_order(prompt: list[int]) -> None:
    core = make_core(step_tokens=10, max_running=2)
    core.add(ask("a", prompt, max_tokens=2, prompt_logprobs=0))
    entries = [entry for output in drain(core)["a"] for entry in output.prompt_logprobs or []]
    assert entries[0] is None
    assert [entry and entry.token for entry in entries[1:]] == prompt[1:]
    assert [entry and entry.logprob for entry in entries[1:]] == [-float(i) for i in range(1, len(prompt))]


def test_prompt_logprobs_are_not_repeated_after_a_preemption() -> None:
    core = make_core(blocks=4)
    prompt = list(range(10, 30))
    core.add(ask("ahead", list(range(15)), max_tokens=40))
    core.add(ask("a", prompt, max_tokens=20, prompt_logprobs=0))
    outputs = drain(core)["a"]
    assert outputs[-1].usage is not None
    assert outputs[-1].usage.preemptions > 0
    entries = [entry for output in outputs for entry in output.prompt_logprobs or []]
    assert [entry and entry.token for entry in entries] == [None, *prompt[1:]]
    assert tokens(outputs) == expected_output(prompt, 20)


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["waiting", "in its prompt", "decoding"])
def test_a_cancelled_request_says_so_in_the_next_step_and_frees_everything(steps: int) -> None:
    core = make_core()
    core.add(ask("a", [1] * 40))
    for _ in range(steps):
        core.step()
    core.cancel("a")
    assert not core.idle
    (output,) = drain(core)["a"]
    assert (output.finish, output.tokens) == ("cancelled", [])


def test_cancelling_an_unknown_request_is_ignored() -> None:
    core = make_core()
    core.cancel("nobody")
    assert core.idle


def test_the_runner_forgets_every_request_that_ends_or_is_preempted() -> None:
    runner = LedgerRunner(4)
    core = make_core(blocks=4, runner=runner)
    core.add(ask("ahead", [1] * 15, max_tokens=40))
    core.add(ask("preempted", [2] * 20, max_tokens=20))
    core.add(ask("cancelled", [3]))
    core.cancel("cancelled")
    outputs = drain(core)
    usage = outputs["preempted"][-1].usage
    assert usage is not None
    assert sorted(runner.released) == sorted(["ahead", "cancelled"] + ["preempted"] * (1 + usage.preemptions))


class Failing(LedgerRunner):
    """Raises when a row's prompt starts with 13, answers too few rows for 14, and samples nothing for 15."""

    def execute(self, plan: StepPlan) -> list[Sampled]:
        first = {row.request.prompt[0] for row in plan.rows}
        if 13 in first:
            raise RuntimeError("device failure")
        if 14 in first:
            return []
        if 15 in first:
            return [Sampled() for _ in plan.rows]
        return super().execute(plan)


@pytest.mark.parametrize("poison", [13, 14, 15])
def test_a_failing_step_ends_its_requests_and_nothing_else(poison: int) -> None:
    core = make_core(runner=Failing(16), max_running=2)
    core.add(ask("bad", [poison, 1]))
    core.add(ask("beside", [1, 2]))
    core.add(ask("later", [5, 6]))
    outputs = drain(core)
    for id in ("bad", "beside"):
        (output,) = outputs[id]
        assert (output.finish, output.error_kind) == ("error", "internal")
        assert output.error is not None
        assert "try again" in output.error
    assert tokens(outputs["later"]) == expected_output([5, 6], 4)


def test_a_step_may_also_fail_while_its_result_is_waited_for() -> None:
    """As on a device, which runs a step after its launch has returned."""

    class Failed:
        def result(self) -> list[Sampled]:
            raise RuntimeError("device failure")

    class FailsLate(LedgerRunner):
        def launch(self, plan: StepPlan, masks: TokenMasks | None = None) -> Handle:
            handle = super().launch(plan, masks)
            return Failed() if any(row.request.id == "bad" for row in plan.rows) else handle

    core = make_core(runner=FailsLate(16), max_running=1)
    core.add(ask("bad", [1]))
    core.add(ask("later", [5, 6]))
    outputs = drain(core)
    assert [output.error_kind for output in outputs["bad"]] == ["internal"]
    assert tokens(outputs["later"]) == expected_output([5, 6], 4)


def test_kv_computed_before_a_failing_step_stays_usable() -> None:
    class FailsOnce(LedgerRunner):
        failures = 1

        def execute(self, plan: StepPlan) -> list[Sampled]:
            if len(self.step_tokens) == 2 and self.failures:
                self.failures = 0
                raise RuntimeError("device failure")
            return super().execute(plan)

    core = make_core(runner=FailsOnce(16))
    prompt = list(range(40))
    core.add(ask("a", prompt))
    drain(core)
    core.add(ask("b", prompt))
    outputs = drain(core)["b"]
    assert outputs[-1].usage is not None
    assert outputs[-1].usage.cached_tokens == 32
    assert tokens(outputs) == expected_output(prompt, 4)


def test_a_full_engine_refuses_and_says_so() -> None:
    core = make_core(max_running=1, max_waiting=1)
    core.add(ask("a", [1, 2]))
    core.add(ask("b", [1, 2]))
    with pytest.raises(RequestError, match="engine is full") as caught:
        core.add(ask("c", [1, 2]))
    assert caught.value.kind == "overloaded"


def test_an_id_in_use_is_refused() -> None:
    core = make_core()
    core.add(ask("a", [1, 2]))
    with pytest.raises(RequestError, match="live request"):
        core.add(ask("a", [1, 2]))


def test_a_refused_request_leaves_no_trace() -> None:
    core = make_core()
    with pytest.raises(RequestError):
        core.add(ask("a", []))
    assert core.idle
    core.check_integrity()


def test_the_model_s_context_is_told_as_what_the_cache_can_hold() -> None:
    assert make_core(blocks=2).model.context == 32


def test_kv_is_not_shared_between_rope_regimes() -> None:
    model = model_info(rope_regimes=RopeRegimes(40))
    core = EngineCore(LedgerRunner(16), model, SchedulerConfig(16), clock=Clock())
    prompt = list(range(40))
    for id, tail in (("short", []), ("long", [1]), ("long again", [2])):
        core.add(ask(id, prompt + tail, max_tokens=1))
        usage = drain(core)[id][-1].usage
        assert usage is not None
        assert usage.cached_tokens == (32 if id == "long again" else 0)


def test_the_load_counts_tokens_and_prefix_hits() -> None:
    core = make_core(blocks=16)
    prompt = list(range(40))
    core.add(ask("a", prompt))
    core.add(ask("b", [1]))
    assert core.load().waiting_tokens == 41
    assert core.load().waiting == 2
    drain(core)
    core.add(ask("c", prompt))
    drain(core)
    load = core.load()
    assert (load.prompt_tokens, load.output_tokens, load.prefix_hit_tokens) == (81, 12, 32)


def test_the_load_knows_how_long_a_step_takes() -> None:
    clock = Clock()

    class Slow(LedgerRunner):
        def execute(self, plan: StepPlan) -> list[Sampled]:
            clock.now += 0.5
            return super().execute(plan)

    core = EngineCore(Slow(4), model_info(), SchedulerConfig(4), clock=clock)
    core.add(ask("a", [1]))
    drain(core)
    assert core.load().step_seconds == pytest.approx(0.5)
