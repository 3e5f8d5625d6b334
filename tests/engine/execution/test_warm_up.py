"""Before an engine is ready it has run its largest steps, and says what to lower if it cannot."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.adapters.manifest import Manifest
from engine.adapters.residency import ResidencyConfig
from engine.cache.blocks import BLOCK_SIZE
from engine.execution import readout
from engine.execution import warm_up as module
from engine.execution.runner import ModelRunner
from engine.execution.warm_up import NotEnoughMemory, available_bytes, check_room, warm_up
from engine.plan import Row
from engine.scheduling.config import SchedulerConfig
from engine.server.host import EngineServer
from engine.wire import TokenIdLogprob
from kernels import LoraAdapter, LoraPlan, can_record, library
from tests.engine.checkpoints import CONTEXT, VOCABULARY, random_prompt
from tests.engine.conftest import Checkpoint
from tests.engine.driver import BLOCKS, request, tokens_of
from tests.engine.ledger_runner import LedgerRunner
from tests.engine.server.test_host import make_core

_CONFIG = SchedulerConfig(blocks=BLOCKS, step_tokens=300, max_running=6)


@pytest.fixture
def runner(checkpoint: Checkpoint) -> ModelRunner:
    return ModelRunner(checkpoint("llama"), blocks=BLOCKS)


def dry_runs(
    runner: ModelRunner, config: SchedulerConfig, monkeypatch: pytest.MonkeyPatch, **how: Any
) -> list[list[Row]]:
    """The steps that warming up runs."""
    steps: list[list[Row]] = []
    run = runner.dry_run

    def dry_run(rows: Sequence[Row], *, layers: int | None = None, sample: bool = True) -> None:
        steps.append(list(rows))
        run(rows, layers=layers, sample=sample)

    monkeypatch.setattr(runner, "dry_run", dry_run)
    warm_up([runner], config, **how)
    return steps


@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen3"])
def test_answers_are_the_same_after_it(checkpoint: Checkpoint, name: str) -> None:
    directory = checkpoint(name)
    cold, warm = (ModelRunner(directory, blocks=BLOCKS) for _ in range(2))
    warm_up([warm], _CONFIG)
    requests = [[request(random_prompt(length), str(length), max_tokens=12) for length in (5, 40)] for _ in range(2)]
    assert tokens_of(warm, requests[0], chunk=0) == tokens_of(cold, requests[1], chunk=0)


@pytest.mark.parametrize("drafts", [0, 4])
def test_it_runs_as_much_as_a_step_may_have(runner: ModelRunner, drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, decodes, one = dry_runs(runner, _CONFIG, monkeypatch, draft_tokens=drafts)
    assert sum(row.tokens for row in prompts) == _CONFIG.step_tokens
    assert len(prompts) == len(decodes) == _CONFIG.max_running
    assert all(row.sample and len(row.draft) == drafts for row in prompts)
    assert {row.start + row.tokens for row in decodes} == {CONTEXT}
    assert [row.tokens for row in one] == [1]


@pytest.mark.parametrize(("blocks", "step_tokens", "max_running"), [(1, 64, 64), (2, 500, 3), (BLOCKS, 1, 1)])
def test_it_runs_with_any_configuration(
    checkpoint: Checkpoint, blocks: int, step_tokens: int, max_running: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = ModelRunner(checkpoint("llama"), blocks=blocks)
    config = SchedulerConfig(blocks=blocks, step_tokens=step_tokens, max_running=max_running)
    for rows in dry_runs(runner, config, monkeypatch, draft_tokens=8):
        assert sum(row.tokens for row in rows) <= max(step_tokens, max_running)
        assert all(row.start + row.tokens <= blocks * BLOCK_SIZE and row.count > 0 for row in rows)


def test_memory_that_a_step_cannot_have_is_named_with_what_to_lower(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dry_run(rows: Sequence[Row], *, layers: int | None = None, sample: bool = True) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes.")

    monkeypatch.setattr(runner, "dry_run", dry_run)
    with pytest.raises(NotEnoughMemory, match=r"step of 300 tokens and 6 requests .*; lower --step-tokens"):
        warm_up([runner], _CONFIG)


def test_memory_that_only_the_largest_steps_need_is_given_back(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what malloc would keep, because something that stays lies behind it."""
    stays: list[bytearray] = []

    def dry_run(rows: Sequence[Row], *, layers: int | None = None, sample: bool = True) -> None:
        blocks = [bytearray(100_000) for _ in range(2000)]
        stays.append(blocks.pop())

    monkeypatch.setattr(runner, "dry_run", dry_run)
    before = module._resident_bytes()
    warm_up([runner], _CONFIG)
    assert module._resident_bytes() - before < 50_000_000


def test_other_errors_are_not_taken_for_want_of_memory(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def dry_run(rows: Sequence[Row], *, layers: int | None = None, sample: bool = True) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(runner, "dry_run", dry_run)
    with pytest.raises(RuntimeError, match="a fault"):
        warm_up([runner], _CONFIG)


def test_a_kv_cache_that_would_run_out_later_is_refused(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_bytes", lambda: runner.kv_bytes - runner.kv_bytes_taken - 1)
    with pytest.raises(NotEnoughMemory, match=r"the KV cache .* do not fit .* lower --kv-tokens"):
        warm_up([runner], _CONFIG)


def test_all_that_is_taken_up_later_counts(
    checkpoint: Checkpoint, adapted: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the model, of the one that guesses for it, and in host memory; and nothing else does."""
    drafter = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    needed: list[Mapping[str, int]] = []
    monkeypatch.setattr(module, "check_room", lambda available, parts: needed.append(parts))
    residency = ResidencyConfig(share=0.5, host_bytes=12_345)
    warm_up([adapted, drafter], _CONFIG, residency=residency, kv_host_bytes=678)
    warm_up([drafter], _CONFIG)
    both, alone = ({name: size for name, size in parts.items() if name != "the largest step"} for parts in needed)
    recorded = 64 << 20 if can_record(torch.device("cpu")) else 0
    assert both == {
        "the KV cache": adapted.kv_bytes + drafter.kv_bytes,
        "recorded steps": recorded if adapted.config.experts else 2 * recorded,  # a mixture's are not
        "prefixes in host memory": 678,
        "adapters in host memory": 12_345,
    }
    assert alone == {
        "the KV cache": drafter.kv_bytes,
        "recorded steps": recorded,
        "prefixes in host memory": 0,
        "adapters in host memory": 0,
    }


def test_what_does_not_fit_is_told_with_what_makes_it_smaller() -> None:
    needed = {"the KV cache": 60 << 20, "recorded steps": 10 << 20, "prefixes in host memory": 30 << 20}
    check_room(100 << 20, needed)
    with pytest.raises(NotEnoughMemory) as caught:
        check_room((100 << 20) - 1, needed | {"adapters in host memory": 0})
    assert str(caught.value) == (
        "the KV cache (60 MiB), recorded steps (10 MiB), prefixes in host memory (30 MiB) do not fit into the memory "
        "that is left (100 MiB); lower --kv-tokens, --kv-host-bytes"
    )


def test_the_longest_prompt_wants_all_log_probabilities(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    find = readout.token_logprobs

    def count(logits: torch.Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenIdLogprob]:
        computed.append(len(tokens))
        return find(logits, tokens, tops)

    monkeypatch.setattr(readout, "token_logprobs", count)
    prompts, *others = dry_runs(runner, _CONFIG, monkeypatch)
    assert prompts[0].count == max(row.count for row in prompts) == CONTEXT - 1
    assert [row.request.sampling.prompt_logprobs for row in prompts] == [20, *[None] * (len(prompts) - 1)]
    assert {row.request.sampling.logprobs for rows in (prompts, *others) for row in rows} == {20}
    assert computed == [CONTEXT - 2]  # the last token has no successor


def test_of_a_long_prompt_s_log_probabilities_only_the_first_are_computed(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others would need the same memory again."""
    monkeypatch.setattr(readout, "_LOGITS_BYTES", 4 * VOCABULARY * 10)
    runner = ModelRunner(checkpoint("llama"), blocks=BLOCKS)
    rows: list[int] = []
    project = runner._model.logits

    def logits(hidden: torch.Tensor, lora: LoraPlan | None = None) -> torch.Tensor:
        rows.append(len(hidden))
        return project(hidden, lora)

    monkeypatch.setattr(runner._model, "logits", logits)
    warm_up([runner], _CONFIG)
    assert rows == [6, 10, 1]


@pytest.fixture(params=["llama", "mixtral"])
def adapted(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> ModelRunner:
    """A model that serves adapters, of which there are none yet."""
    return ModelRunner(checkpoint(request.param), blocks=2 * BLOCKS, adapters=NoAdapters())


class NoAdapters:
    def manifest(self, version: str) -> Manifest:
        raise AssertionError("nobody asked for an adapter")

    def path(self, version: str) -> Path:
        raise AssertionError("nobody asked for an adapter")


@pytest.mark.parametrize("built", [True, False], ids=["built bodies", "plain torch"])
def test_steps_with_as_many_and_large_adapters_as_fit_are_run_first(
    adapted: ModelRunner, built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert adapted.bank is not None
    bank, held = adapted.bank, []
    hold = adapted._lora._workspace.hold

    def note(adapters: Sequence[LoraAdapter | None]) -> None:
        held.append({each for each in adapters if each is not None})
        hold(adapters)

    monkeypatch.setattr(adapted._lora._workspace, "hold", note)
    with nullcontext() if built else library.using(None):
        prompts, decodes, *others = dry_runs(adapted, _CONFIG, monkeypatch, residency=ResidencyConfig(share=0.4))
    lent = int(0.4 * adapted.blocks)
    (some, _) = (adapters for adapters in held if adapters)
    sectors = [sector for adapter in some for sector in adapter.sectors.tolist()]
    size = len(sectors) // len(some)
    assert len(set(sectors)) == len(sectors) and min(sectors) >= adapted.blocks - lent
    assert len(some) == min(lent // size, _CONFIG.max_running)
    (adapter, *_) = some
    per_layer = 4 if adapted.config.experts == 0 else 5
    assert len(adapter.layout.sites) == per_layer * adapted.config.layers + 1 and adapter.layout.embedding is not None
    for rows in (prompts, decodes):
        assert {row.request.adapter for row in rows} == {f"stand-in {number}" for number in range(len(some))}
        assert max(row.start + row.tokens for row in rows) <= (adapted.blocks - lent) * BLOCK_SIZE
    assert not any(row.request.adapter for rows in others for row in rows)
    # And nothing is left of them.
    with pytest.raises(RuntimeError, match="not on the device"):
        bank.adapter("stand-in 0")
    assert held[-1] == set()


def test_keys_and_values_stay_finite(adapted: ModelRunner) -> None:
    """The plain torch body of attention reads what it masks."""
    warm_up([adapted], _CONFIG, residency=ResidencyConfig(share=0.5))
    assert all(part.isfinite().all() for layer in adapted._cache.layers for part in layer[:2])


def test_an_adapter_that_fits_nowhere_is_not_run(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ModelRunner(checkpoint("llama"), blocks=4, adapters=NoAdapters())
    steps = dry_runs(runner, _CONFIG, monkeypatch, residency=ResidencyConfig(share=0.5))
    assert not any(row.request.adapter for rows in steps for row in rows)


def test_a_container_s_limit_counts_without_what_it_could_drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CGROUP", tmp_path)
    for name, content in (("max", "1000\n"), ("current", "700\n"), ("stat", "anon 300\ninactive_file 400\n")):
        (tmp_path / f"memory.{name}").write_text(content)
    assert available_bytes() == 700
    (tmp_path / "memory.max").write_text("max\n")
    unlimited = available_bytes()
    assert unlimited is not None and unlimited > 1_000_000


def test_a_kv_cache_beyond_all_memory_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(
        ValueError, match=r"KV cache for \d+ tokens needs .* GiB, which cannot be had; lower --kv-tokens"
    ):
        ModelRunner(checkpoint("llama"), blocks=1 << 36)


@pytest.mark.anyio
async def test_a_server_prepares_in_its_core_s_thread_before_anybody_can_connect(tmp_path: Path) -> None:
    seen: list[tuple[str, bool]] = []
    path = tmp_path / "socket"
    server = EngineServer(
        make_core(LedgerRunner(64)), prepare=lambda: seen.append((threading.current_thread().name, path.exists()))
    )
    async with server.listening(f"unix://{path}"):
        assert seen == [("engine core", False)]


@pytest.mark.anyio
async def test_a_server_that_cannot_prepare_does_not_listen(tmp_path: Path) -> None:
    def prepare() -> None:
        raise NotEnoughMemory("lower it")

    path, others = tmp_path / "socket", {*threading.enumerate()}
    with pytest.raises(NotEnoughMemory, match="lower it"):
        async with EngineServer(make_core(LedgerRunner(64)), prepare=prepare).listening(f"unix://{path}"):
            raise AssertionError("it listens")
    assert not path.exists()
    assert "engine core" not in {thread.name for thread in {*threading.enumerate()} - others}
