"""Keys and values in fewer bits: near the model's own, and the same answers whatever happens around a request."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
import torch
from transformers import DynamicCache

from engine.cache.memory import KVDtype
from engine.cache.prefix_keys import chain_root
from engine.core import EngineCore, EngineFeatures, SchedulerConfig
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from engine.wire import Generate, SamplingParams
from tests.engine.checkpoints import VOCABULARY, load_oracle, oracle_logits, random_prompt
from tests.engine.conftest import Checkpoint
from tests.engine.driver import BLOCKS, drive, request, tokens_of
from tests.engine.model.test_decoder import distribution

EightBits = Literal["fp8", "int8"]
Narrow = Literal["fp16", EightBits]
ERROR = {"fp16": 0.002, "bf16": 0.01, "fp8": 0.12, "int8": 0.02}
"""Largest root mean square difference of log-probabilities from transformers in fp32."""


@pytest.fixture(params=["llama", "qwen3", "qwen2-sliding"])
def directory(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> Path:
    return checkpoint(request.param)


@pytest.mark.parametrize("kv_dtype", ERROR)
def test_logprobs_are_near_those_of_transformers(directory: Path, kv_dtype: KVDtype) -> None:
    runner = ModelRunner(directory, blocks=BLOCKS, precision=Precision(kv_dtype=kv_dtype))
    prompt = random_prompt(90)
    one = request(prompt, max_tokens=1, prompt_logprobs=VOCABULARY, logprobs=VOCABULARY)
    (given,) = drive(runner, [one])
    entries = [entry for sampled in given for entry in sampled.prompt_logprobs or []]
    ours = torch.stack([distribution(entry) for entry in entries])
    theirs = oracle_logits(directory, prompt).log_softmax(-1)[:-1]
    error = float((ours - theirs).square().mean().sqrt())
    assert 0 < error < ERROR[kv_dtype]


def test_keys_and_values_are_not_kept_more_exactly_than_they_are_computed(checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match="computed in bfloat16 cannot be kept in fp32; choose auto"):
        ModelRunner(checkpoint("llama"), blocks=BLOCKS, precision=Precision("bfloat16", kv_dtype="fp32"))


class RoundingCache(DynamicCache):
    """Transformers' own cache, which keeps what eight bits leave of keys and values."""

    def __init__(self, kv_dtype: EightBits) -> None:
        super().__init__()
        self._kv_dtype = kv_dtype

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **more: Any) -> Any:
        return super().update(self._round(key_states), self._round(value_states), *args, **more)

    def _round(self, x: torch.Tensor) -> torch.Tensor:
        if self._kv_dtype == "fp8":
            return x.to(torch.float8_e4m3fn).to(x.dtype)
        scale = x.abs().amax(-1, keepdim=True) / 127
        return (x / scale).round() * scale


@pytest.mark.parametrize("kv_dtype", get_args(EightBits))
def test_logprobs_are_those_of_transformers_that_rounds_too(directory: Path, kv_dtype: EightBits) -> None:
    """But for numbers so near to the middle of two steps that a last bit decides, and what they change behind them."""
    runner = ModelRunner(directory, blocks=BLOCKS, precision=Precision(kv_dtype=kv_dtype))
    prompt = random_prompt(90)
    (given,) = drive(runner, [request(prompt, max_tokens=1, prompt_logprobs=VOCABULARY)])
    ours = torch.stack([distribution(entry) for sampled in given for entry in sampled.prompt_logprobs or []])
    with torch.inference_mode():
        cache = RoundingCache(kv_dtype)
        logits = load_oracle(directory)(torch.tensor([prompt]), past_key_values=cache, use_cache=True).logits
    theirs, plain = (each.log_softmax(-1)[:-1] for each in (logits[0], oracle_logits(directory, prompt)))
    off = (ours - theirs).abs().amax(-1)
    assert float(off.quantile(0.05)) < 1e-5
    assert (ours - theirs).norm() < 0.05 * (theirs - plain).norm()


@pytest.mark.parametrize("kv_dtype", get_args(Narrow))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_answers_do_not_depend_on_batches_and_chunks(
    directory: Path, dtype: Literal["float32", "bfloat16"], kv_dtype: Narrow
) -> None:
    prompts = [random_prompt(length, seed) for seed, length in enumerate((75, 1, 33, 16, 90))]

    def answers(runner: ModelRunner, chosen: list[list[int]], chunk: int | None) -> list[list[int]]:
        return tokens_of(runner, [request(p, str(i), max_tokens=16) for i, p in enumerate(chosen)], chunk=chunk)

    runner = ModelRunner(directory, blocks=BLOCKS, precision=Precision(dtype, kv_dtype=kv_dtype))
    alone = [answers(runner, [prompt], None)[0] for prompt in prompts]
    assert answers(runner, prompts, None) == alone
    assert answers(runner, prompts, 7) == alone


@pytest.mark.parametrize("kv_dtype", get_args(Narrow))
def test_nothing_is_lost_by_preemption_known_prefixes_and_host_memory(checkpoint: Checkpoint, kv_dtype: Narrow) -> None:
    """Requests that share beginnings, in a cache much too small for them."""
    directory = checkpoint("llama")
    generator = random.Random(0)
    begin = random_prompt(40)
    prompts = [[*begin[: generator.choice((0, 16, 40))], *random_prompt(20, seed)] for seed in range(12)]
    roomy = ModelRunner(directory, blocks=BLOCKS, precision=Precision(kv_dtype=kv_dtype))
    expected = [tokens_of(roomy, [request(prompt, max_tokens=40)])[0] for prompt in prompts]
    runner = ModelRunner(directory, blocks=7, precision=Precision(kv_dtype=kv_dtype))
    core = EngineCore(
        runner,
        runner.info,
        SchedulerConfig(7, max_running=4, host_load_tokens=16),
        EngineFeatures(host=runner.host_memory(1 << 20)),
    )
    try:
        for again in range(2):
            for i, prompt in enumerate(prompts):
                core.add(Generate(f"{again}-{i}", prompt, SamplingParams(temperature=0.0, max_tokens=40)))
            answers: dict[str, list[int]] = {str(i): [] for i in range(len(prompts))}
            while not core.idle:
                for output in core.step():
                    answers[output.id.split("-")[1]] += output.tokens
            assert list(answers.values()) == expected
        load = core.load()
        assert load.preemptions and load.host_saved_bytes and load.host_loaded_bytes
    finally:
        core.close()


def test_the_type_is_part_of_what_blocks_are_called(checkpoint: Checkpoint) -> None:
    kinds: tuple[KVDtype, ...] = get_args(KVDtype)
    infos = [ModelRunner(checkpoint("llama"), blocks=BLOCKS, precision=Precision(kv_dtype=kind)).info for kind in kinds]
    roots = [chain_root(info, 5, None, b"") for info in infos]
    assert roots[kinds.index("auto")] == roots[kinds.index("fp32")]
    assert len(set(roots)) == 5


def test_eight_bits_take_half_the_memory(checkpoint: Checkpoint) -> None:
    sizes = {}
    for kind in ("bf16", "fp8", "int8"):
        runner = ModelRunner(checkpoint("llama"), blocks=BLOCKS, precision=Precision(kv_dtype=kind))  # type: ignore[arg-type]
        memory = runner.host_memory(1 << 24)
        sizes[kind] = memory.block_bytes
        close = getattr(memory, "close", None)
        if close is not None:
            close()
    dim = 16
    assert sizes["fp8"] * 2 == sizes["bf16"]
    assert sizes["int8"] == sizes["fp8"] * (dim + 4) // dim
