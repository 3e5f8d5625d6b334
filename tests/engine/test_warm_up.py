"""Before an engine is ready it has run its largest steps, and says what to lower if it cannot."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine import warm_up as module
from engine.kv import BLOCK_SIZE
from engine.plan import Row
from engine.runner import ModelRunner
from engine.scheduling.config import SchedulerConfig
from engine.server import EngineServer
from engine.warm_up import NotEnoughMemory, available_bytes, check_room, warm_up
from tests.engine.checkpoints import CONTEXT, random_prompt
from tests.engine.conftest import Checkpoint
from tests.engine.driver import BLOCKS, request, tokens_of
from tests.engine.ledger_runner import LedgerRunner
from tests.engine.test_server import make_core

_CONFIG = SchedulerConfig(blocks=BLOCKS, step_tokens=300, max_running=6)


@pytest.fixture
def runner(checkpoint: Checkpoint) -> ModelRunner:
    return ModelRunner(checkpoint("llama"), blocks=BLOCKS)


def rehearsed(
    runner: ModelRunner, config: SchedulerConfig, monkeypatch: pytest.MonkeyPatch, **how: int
) -> list[list[Row]]:
    """The steps that warming up runs."""
    steps: list[list[Row]] = []
    run = runner.rehearse

    def rehearse(rows: Sequence[Row], *, layers: int | None = None) -> None:
        steps.append(list(rows))
        run(rows, layers=layers)

    monkeypatch.setattr(runner, "rehearse", rehearse)
    warm_up(runner, config, **how)
    return steps


@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen3"])
def test_answers_are_the_same_after_it(checkpoint: Checkpoint, name: str) -> None:
    directory = checkpoint(name)
    cold, warm = (ModelRunner(directory, blocks=BLOCKS) for _ in range(2))
    warm_up(warm, _CONFIG)
    requests = [[request(random_prompt(length), str(length), max_tokens=12) for length in (5, 40)] for _ in range(2)]
    assert tokens_of(warm, requests[0], chunk=0) == tokens_of(cold, requests[1], chunk=0)


@pytest.mark.parametrize("drafts", [0, 4])
def test_it_runs_as_much_as_a_step_may_have(runner: ModelRunner, drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, decodes, one = rehearsed(runner, _CONFIG, monkeypatch, draft_tokens=drafts)
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
    for rows in rehearsed(runner, config, monkeypatch, draft_tokens=8):
        assert sum(row.tokens for row in rows) <= max(step_tokens, max_running)
        assert all(row.start + row.tokens <= blocks * BLOCK_SIZE and row.count > 0 for row in rows)


def test_memory_that_a_step_cannot_have_is_named_with_what_to_lower(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rehearse(rows: Sequence[Row], *, layers: int | None = None) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes.")

    monkeypatch.setattr(runner, "rehearse", rehearse)
    with pytest.raises(NotEnoughMemory, match=r"step of 300 tokens and 6 requests .*; lower --step-tokens"):
        warm_up(runner, _CONFIG)


def test_other_errors_are_not_taken_for_want_of_memory(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def rehearse(rows: Sequence[Row], *, layers: int | None = None) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(runner, "rehearse", rehearse)
    with pytest.raises(RuntimeError, match="a fault"):
        warm_up(runner, _CONFIG)


def test_a_kv_cache_that_would_run_out_later_is_refused(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_bytes", lambda: runner.kv_bytes - runner.kv_bytes_taken - 1)
    with pytest.raises(NotEnoughMemory, match=r"the KV cache .* do not fit .* lower --kv-tokens"):
        warm_up(runner, _CONFIG)
    check_room(100, 60, 40)
    with pytest.raises(NotEnoughMemory):
        check_room(99, 60, 40)


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

    path = tmp_path / "socket"
    with pytest.raises(NotEnoughMemory, match="lower it"):
        async with EngineServer(make_core(LedgerRunner(64)), prepare=prepare).listening(f"unix://{path}"):
            raise AssertionError("it listens")
    assert not path.exists()
    assert "engine core" not in {thread.name for thread in threading.enumerate()}
