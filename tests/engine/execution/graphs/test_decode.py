"""Steps that run from recordings give what they give without, bit for bit, and leave the same keys and values behind.

On the CPU a recording is the call itself: what is proven here is that it reads nothing but its buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.execution.graphs.decode import Run
from engine.execution.graphs.policy import CapturePolicy
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from engine.plan import Row, StepPlan
from engine.request import Request
from kernels import library
from tests.amounts import crossed
from tests.engine.checkpoints import ARCHITECTURES, CONTEXT, MIXTURES, random_prompt
from tests.engine.conftest import Checkpoint
from tests.engine.driver import BLOCKS, drive, request

pytestmark = pytest.mark.skipif(library.cpu is None, reason="the plain torch body of attention is not recorded")

LENGTHS = (75, 1, 33, 15, 16, 120, 2, 40, 9, 60)
"""The sequences begin new blocks while they are decoded, at different steps, and end one after the other."""


class Recorder:
    """Runs eagerly what it records, and counts."""

    def __init__(self, size: int = 0) -> None:
        self.recorded = self.replayed = 0
        self._size = size

    def __call__(self, run: Run) -> tuple[Run, int]:
        self.recorded += 1

        def replay() -> torch.Tensor:
            self.replayed += 1
            return run()

        return replay, self._size


def requests_of(lengths: Sequence[int], **sampling: object) -> list[Request]:
    return [
        request(random_prompt(length, seed), str(seed), max_tokens=6 + 3 * seed, **sampling)
        for seed, length in enumerate(lengths)
    ]


def same(
    directory: Path,
    recorder: Recorder,
    policy: CapturePolicy,
    lengths: Sequence[int] = LENGTHS,
    precision: Precision | None = None,
) -> None:
    """Compare a runner that records with one that does not: every log-probability, and every byte of the cache."""
    plain, recording = (ModelRunner(directory, blocks=BLOCKS, precision=precision) for _ in range(2))
    recording.record_decodes(policy, recorder)
    given = [drive(runner, requests_of(lengths, logprobs=3)) for runner in (plain, recording)]
    assert given[0] == given[1]
    ours, theirs = (runner._cache.sectors.view(torch.uint8) for runner in (recording, plain))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    crossed([name for name in ARCHITECTURES if name not in MIXTURES], ["float32", "bfloat16"]),
)
def test_recorded_steps_are_those_that_were_recorded(checkpoint: Checkpoint, architecture: str, dtype: str) -> None:
    recorder = Recorder()
    same(checkpoint(architecture), recorder, CapturePolicy(len(LENGTHS), CONTEXT, uses=1), precision=Precision(dtype))
    # Batches of 10, 8, 4, 2 and 1 rows; all but the first use of each and the step of prompts.
    assert recorder.recorded == 5
    assert recorder.replayed == 6 + 3 * (len(LENGTHS) - 1) - 1 - 5


@pytest.mark.parametrize("options", [{"kv_dtype": "int8"}, {"kv_dtype": "fp8"}, {"quantize": "int8"}], ids=str)
def test_quantised_steps_are_the_same(checkpoint: Checkpoint, options: dict[str, str]) -> None:
    recorder = Recorder()
    policy = CapturePolicy(len(LENGTHS), CONTEXT, uses=0)
    same(checkpoint("llama"), recorder, policy, precision=Precision("bfloat16", **options))
    assert recorder.replayed


def test_the_cuda_bodies_follow_buffers_and_fixed_limits(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the emulator: grids and scratch memory are those of the longest row that a shape may have."""
    try:
        emulator = library.load_cuda(library.EMULATOR)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    shape = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    directory = checkpoint("llama", max_position_embeddings=600, **shape)
    recorder = Recorder()
    with library.using(emulator):
        same(directory, recorder, CapturePolicy(4, 600, uses=0), (260, 3, 1), Precision("bfloat16", "int8"))
    assert recorder.replayed


def test_a_step_with_drafts_or_larger_than_any_shape_is_run_as_it_is(checkpoint: Checkpoint) -> None:
    recorder = Recorder()
    same(checkpoint("llama"), recorder, CapturePolicy(2, CONTEXT, uses=0), (5, 20, 9))
    assert recorder.recorded == 2
    drafting = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    recorder = Recorder()
    drafting.record_decodes(CapturePolicy(2, CONTEXT, uses=0), recorder)
    drive(drafting, requests_of((9,)), draft=lambda _: (1, 2))
    assert recorder.replayed <= 1  # the last token has no draft


def test_no_more_is_recorded_than_memory_allows(checkpoint: Checkpoint) -> None:
    recorder = Recorder(size=1000)
    same(checkpoint("llama"), recorder, CapturePolicy(len(LENGTHS), CONTEXT, uses=0, memory=1500))
    assert recorder.recorded == 2


def test_an_engine_without_memory_for_recordings_goes_on_without(checkpoint: Checkpoint) -> None:
    class Full(Recorder):
        def __call__(self, run: Run) -> tuple[Run, int]:
            super().__call__(run)
            raise torch.OutOfMemoryError

    recorder = Full()
    same(checkpoint("llama"), recorder, CapturePolicy(len(LENGTHS), CONTEXT, uses=0))
    assert recorder.recorded == 1


def test_prompts_of_one_token_that_sample_nothing_are_not_waited_for(checkpoint: Checkpoint) -> None:
    """Nothing may then be written into buffers that the device may still read."""
    recorder = Recorder()
    runner = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    runner.record_decodes(CapturePolicy(2, CONTEXT, uses=0), recorder)
    one = request(random_prompt(9))
    one.block_table = [3]
    runner.launch(StepPlan([Row(one, 0, 1, sample=False)])).result()
    assert not recorder.recorded


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("mixtral", {}),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    ],
)
def test_what_cannot_be_recorded_runs_as_it_is(
    checkpoint: Checkpoint, architecture: str, overrides: dict[str, Any]
) -> None:
    recorder = Recorder()
    same(checkpoint(architecture, **overrides), recorder, CapturePolicy(4, CONTEXT, uses=0), (5, 9))
    assert not recorder.recorded


def test_on_the_cpu_nothing_is_recorded_unless_asked(checkpoint: Checkpoint) -> None:
    runner = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    runner.record_decodes(CapturePolicy(4, CONTEXT))
    assert runner._graphs is None
