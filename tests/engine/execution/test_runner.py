"""The runner answers each row of any batch as if it were alone, and owns nothing for longer than the request lives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import engine.execution.readout
import engine.model.layers
from engine.checkpoint.errors import CheckpointError
from engine.execution.runner import ModelRunner
from engine.plan import Row, StepPlan
from kernels import LoraPlan
from tests.engine.checkpoints import CONTEXT, EOS, VOCABULARY, random_prompt
from tests.engine.conftest import Checkpoint
from tests.engine.driver import BLOCKS, drive, request, tokens_of


@pytest.fixture
def directory(checkpoint: Checkpoint) -> Path:
    return checkpoint("llama")


@pytest.fixture
def runner(directory: Path, device: str) -> ModelRunner:
    return ModelRunner(directory, blocks=BLOCKS, device=device)


def test_info_describes_the_model(directory: Path, runner: ModelRunner, device: str) -> None:
    info = runner.info
    assert (info.name, info.context, info.vocabulary) == (directory.name, CONTEXT, VOCABULARY)
    assert (info.eos_token_ids, info.block_size) == ((EOS,), 16)
    assert (info.device, info.dtype) == (device, "float32")


def test_context_is_what_the_cache_can_hold(directory: Path) -> None:
    assert ModelRunner(directory, blocks=3).info.context == 48


@pytest.mark.parametrize(
    ("stored", "served"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "bfloat16")]
)
def test_auto_dtype_is_the_stored_one_or_bfloat16(checkpoint: Checkpoint, stored: str, served: str) -> None:
    directory = checkpoint("llama", dtype=getattr(torch, stored))
    assert ModelRunner(directory, blocks=4).info.dtype == served


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json does not exist; name a directory"):
        ModelRunner(tmp_path, blocks=4)


def test_answers_come_in_the_order_of_the_plan(runner: ModelRunner) -> None:
    """Rows of all lengths, in any order."""
    prompts = [random_prompt(length) for length in (5, 60, 1, 20)]
    alone = [tokens_of(runner, [request(prompt, max_tokens=6)])[0] for prompt in prompts]
    together = tokens_of(runner, [request(prompt, str(i), max_tokens=6) for i, prompt in enumerate(prompts)])
    assert together == alone


def test_a_chunk_that_does_not_reach_the_end_samples_nothing(runner: ModelRunner) -> None:
    one = request(random_prompt(20))
    one.block_table = [3, 1]
    [sampled] = runner.launch(StepPlan([Row(one, 0, 12, sample=False)])).result()
    assert not sampled.tokens
    assert sampled.logprobs is None


def test_tokens_are_chosen_when_a_launched_step_s_result_is_asked_for(runner: ModelRunner) -> None:
    """What the host does between the two overlaps with the step where a device runs it."""
    one, other = (request(random_prompt(20), frequency_penalty=1.0) for _ in range(2))
    one.block_table, other.block_table = [3, 1], [2, 4]
    handle = runner.launch(StepPlan([Row(one, 0, 20, sample=True)]))
    assert len(runner._sampler._penalties) == 0
    given = handle.result()
    assert len(runner._sampler._penalties) == 1
    assert given == runner.launch(StepPlan([Row(other, 0, 20, sample=True)])).result()


def test_sampled_tokens_do_not_depend_on_the_batch(runner: ModelRunner) -> None:
    sampling = {"temperature": 0.9, "top_p": 0.95, "seed": 7, "repetition_penalty": 1.1, "max_tokens": 20}
    [alone] = tokens_of(runner, [request(random_prompt(30), **sampling)])
    company = [
        request(random_prompt(8 * index + 1), str(index), temperature=0.5 * (index % 3), seed=index, max_tokens=20)
        for index in range(6)
    ]
    crowd = [*company[:3], request(random_prompt(30), **sampling), *company[3:]]
    assert tokens_of(runner, crowd, chunk=0)[3] == alone


def test_what_other_requests_left_in_the_cache_is_never_seen(runner: ModelRunner) -> None:
    expected = tokens_of(runner, [request(random_prompt(30), max_tokens=8)])
    runner._cache.sectors[:, ::2] = 1e4
    runner._cache.sectors[:, 1::2] = -1e4
    assert tokens_of(runner, [request(random_prompt(30), max_tokens=8)], seed=1) == expected


def test_prompt_logprobs_end_with_the_prompt(runner: ModelRunner) -> None:
    """A preempted request runs its output as if it were prompt; only prompt tokens are reported."""
    one = request(random_prompt(9), prompt_logprobs=0, max_tokens=5)
    one.output = [5, 6, 7]
    [given] = drive(runner, [one])
    assert [entry.token for entry in given[0].prompt_logprobs or []] == one.prompt[1:]


def test_prompt_logprobs_are_computed_in_bounded_pieces(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = drive(runner, [request(random_prompt(40), prompt_logprobs=3, max_tokens=1)])
    monkeypatch.setattr(engine.execution.readout, "_LOGITS_BYTES", 4 * VOCABULARY * 7)
    rows: list[int] = []
    logits = runner._model.logits

    def spy(hidden: torch.Tensor, lora: LoraPlan | None) -> torch.Tensor:
        rows.append(len(hidden))
        return logits(hidden, lora)

    monkeypatch.setattr(runner._model, "logits", spy)
    pieces = drive(runner, [request(random_prompt(40), prompt_logprobs=3, max_tokens=1)])
    assert max(rows) == 7
    for one, other in zip(whole[0][0].prompt_logprobs or [], pieces[0][0].prompt_logprobs or [], strict=True):
        assert one.token == other.token
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)


def test_long_prompts_pass_feed_forward_layers_in_parts(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"prompt_logprobs": 3, "max_tokens": 1}
    whole = drive(runner, [request(random_prompt(40), **asked)])
    rows: list[int] = []
    run = engine.model.layers.Mlp._run

    def spy(mlp: engine.model.layers.Mlp, x: torch.Tensor, lora: LoraPlan | None) -> torch.Tensor:
        rows.append(len(x))
        return run(mlp, x, lora)

    monkeypatch.setattr(engine.model.layers, "_MLP_TOKENS", 16)
    monkeypatch.setattr(engine.model.layers.Mlp, "_run", spy)
    parts = drive(runner, [request(random_prompt(40), **asked)])
    assert set(rows) == ({16, 8} if runner.info.device == "cpu" else {40})
    for one, other in zip(whole[0][0].prompt_logprobs or [], parts[0][0].prompt_logprobs or [], strict=True):
        assert one.token == other.token
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)


def test_nothing_is_kept_of_a_released_request(runner: ModelRunner) -> None:
    one = request(random_prompt(9), frequency_penalty=1.0)
    one.block_table = [2]
    runner.launch(StepPlan([Row(one, 0, 9, sample=True)])).result()
    assert len(runner._sampler._penalties) == 1
    runner.release(one)
    assert len(runner._sampler._penalties) == 0
