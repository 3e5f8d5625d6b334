"""A draft model always works on KV of its own that is right, and never computes twice what it knows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint.errors import CheckpointError
from engine.core import EngineCore, EngineFeatures, SchedulerConfig
from engine.execution.draft_model import DraftModel
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from engine.plan import Row
from engine.speculation.speculator import Speculator
from engine.wire import Generate, SamplingParams
from tests.engine.checkpoints import random_prompt
from tests.engine.composition import serve
from tests.engine.conftest import Checkpoint
from tests.engine.tokenizer_zoo import byte_level, write_tokenizer


class Counted(ModelRunner):
    """Counts the tokens that a draft model runs."""

    tokens = 0

    def guess(self, rows: Sequence[Row], drafted: Sequence[Sequence[int]]) -> list[int]:
        self.tokens += sum(row.tokens for row in rows)
        return super().guess(rows, drafted)


class Engine:
    """A model that drafts for itself: every guess must be right, or it worked on KV that is wrong."""

    def __init__(self, directory: Path, device: str, *, blocks: int = 32, **config: int) -> None:
        runner = ModelRunner(directory, blocks=blocks, device=device, precision=Precision("float32"))
        self.drafter = Counted(directory, blocks=blocks, device=device, precision=Precision("float32"))
        self.speculator = Speculator(ngrams=False, model=DraftModel(self.drafter), tokens=4, adaptive=False)
        sizes = SchedulerConfig(blocks, **{"step_tokens": 64, "max_running": 4} | config)
        self.core = EngineCore(runner, runner.info, sizes, EngineFeatures(speculator=self.speculator))

    def run(self, arrivals: list[tuple[int, Generate]], cancellations: dict[str, int] | None = None) -> None:
        serve(self.core, arrivals, cancellations)
        assert self.speculator.accepted == self.speculator.drafted > 0


def ask(id: str, prompt: list[int], **sampling: Any) -> Generate:
    return Generate(id, prompt, SamplingParams(**({"max_tokens": 21, "ignore_eos": True, "seed": 5} | sampling)))


@pytest.fixture
def directory(checkpoint: Checkpoint) -> Path:
    return checkpoint("llama")


def test_every_token_is_run_once(directory: Path, device: str) -> None:
    """One prompt and its answer: 21 tokens come in steps of five, of which the draft model runs all but the last two.

    It never sees its own last guess before that is confirmed.
    """
    engine = Engine(directory, device)
    engine.run([(0, ask("a", random_prompt(30)))])
    assert engine.drafter.tokens == 30 + 21 - 2


def test_a_prefix_that_it_knows_is_not_run_again(directory: Path, device: str) -> None:
    engine = Engine(directory, device)
    prompt = random_prompt(40)
    engine.run([(0, ask("a", prompt))])
    before = engine.drafter.tokens
    engine.run([(0, ask("b", prompt))])
    assert engine.drafter.tokens - before == 40 + 21 - 2 - 32


def test_it_reads_a_prefix_that_only_the_target_knows(directory: Path, device: str) -> None:
    engine = Engine(directory, device)
    prompt = random_prompt(40)
    quiet = Generate("a", prompt, SamplingParams(max_tokens=3), speculate=False)
    serve(engine.core, [(0, quiet)])
    assert engine.drafter.tokens == 0
    engine.run([(0, ask("b", prompt))])
    assert engine.core.load().prefix_hit_tokens == 32
    assert engine.drafter.tokens == 40 + 21 - 2


def test_it_is_right_through_preemptions_and_shared_prefixes(directory: Path, device: str) -> None:
    engine = Engine(directory, device, blocks=6)
    shared = random_prompt(20)
    requests = [ask(str(index), [*shared, *random_prompt(4 + index)], max_tokens=40, seed=index) for index in range(5)]
    engine.run([(3 * index, request) for index, request in enumerate(requests)], {"2": 9})
    load = engine.core.load()
    assert load.preemptions > 0
    assert load.prefix_hit_tokens > 0


def test_blocks_that_were_written_anew_are_not_taken_for_what_they_held(directory: Path, device: str) -> None:
    """The target brings a prefix back into blocks in which the draft model has meanwhile read something else."""
    engine = Engine(directory, device, blocks=5)
    first, second = random_prompt(34), random_prompt(40, seed=1)
    engine.run([(0, ask("a", first))])
    engine.run([(0, ask("b", second))])
    serve(engine.core, [(0, Generate("c", first, SamplingParams(max_tokens=1)))])
    engine.run([(0, ask("d", first))])
    assert engine.core.load().prefix_hit_tokens > 0


def test_a_long_text_is_read_in_pieces(directory: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.execution.draft_model._CATCH_UP_TOKENS", 16)
    engine = Engine(directory, device)
    engine.run([(0, ask("long", random_prompt(100), max_tokens=40)), (0, ask("short", random_prompt(4)))])
    # As many steps without a draft as it takes to read the prompt, and the tokens that come meanwhile.
    assert engine.speculator.drafted < 40 + 21 - 7


def test_it_drafts_within_its_own_context(checkpoint: Checkpoint, device: str) -> None:
    target = ModelRunner(checkpoint("llama"), blocks=32, device=device)
    small = ModelRunner(checkpoint("llama", max_position_embeddings=64, seed=1), blocks=32, device=device)
    speculator = Speculator(ngrams=False, model=DraftModel(small), tokens=4, adaptive=False)
    core = EngineCore(target, target.info, SchedulerConfig(32), EngineFeatures(speculator=speculator))
    [transcript] = serve(core, [(0, ask("a", random_prompt(50), max_tokens=60))]).values()
    assert len(transcript.tokens) == 60
    assert speculator.drafted <= 4 * (64 - 50)


def test_nothing_is_kept_of_requests_that_are_gone(directory: Path, device: str) -> None:
    engine = Engine(directory, device)
    engine.run([(0, ask(str(index), random_prompt(9), frequency_penalty=1.0)) for index in range(3)], {"1": 4})
    model = engine.speculator._model
    assert isinstance(model, DraftModel)
    assert not model._progress
    assert not engine.speculator._histories
    assert len(engine.drafter._sampler._penalties) == 0


def test_it_has_as_many_bits_as_the_model(directory: Path, device: str) -> None:
    target = ModelRunner(
        directory, blocks=4, device=device, precision=Precision("bfloat16", quantize="int4", kv_dtype="fp8")
    )
    assert DraftModel.from_directory(directory, target, directory).runner.info == target.info


def _load(draft: Path, target: Path) -> DraftModel:
    return DraftModel.from_directory(draft, ModelRunner(target, blocks=4), target)


def test_a_model_with_another_vocabulary_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="the draft model has 300 tokens and the model 320; choose one of its"):
        _load(checkpoint("llama", vocab_size=300), checkpoint("llama"))


def test_a_model_with_another_tokenizer_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for name in ("target", "draft"):
        shutil.copytree(checkpoint("llama"), tmp_path / name)
        shutil.copy(write_tokenizer(tmp_path, byte_level()) / "tokenizer.json", tmp_path / name)
    assert _load(tmp_path / "draft", tmp_path / "target").costs.seconds(1) == 0
    tokenizer = json.loads((tmp_path / "draft" / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    one, other = list(vocabulary)[-2:]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    (tmp_path / "draft" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match="the draft model's tokenizer is not the model's"):
        _load(tmp_path / "draft", tmp_path / "target")
