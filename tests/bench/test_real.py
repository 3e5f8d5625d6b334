"""The benchmark of real files: its arithmetic, its page, and a run in miniature; nothing here looks at a time."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader

from bench.checkpoints import cache_folder
from bench.measure import MachineLimits
from bench.peers import python_of
from bench.real import main
from bench.real_cells import QUICK_GROUPS, RealCell
from bench.real_record import ModelSizes, RealFailure, RealResults, RealRow, figures, median
from bench.real_report import markdown
from bench.report import Environment
from bench.subjects.interface import Trace
from tests.engine.checkpoint.gguf.miniature import write_gguf
from tests.engine.checkpoints import write_checkpoint

MACHINE = MachineLimits(1e9, 1e12)
SIZES = ModelSizes(
    file_bytes=120_000_000, read_bytes=100_000_000, parameters=200_000_000, head=50_000_000, kv_bytes=10_000,
    vocabulary=1000,
)  # fmt: skip
LLAMA_CPP = python_of("llama.cpp", cache_folder())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    directory = write_checkpoint(folder / "model", "llama", intermediate_size=128, vocab_size=512)
    return write_gguf(folder / "model.gguf", directory, type_of=lambda name: Type.Q8_0)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests share the cores: threads that wait for one another would cost minutes."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_a_decode_rate_counts_tokens_once_all_requests_have_their_first() -> None:
    traces = [Trace([1, 2, 3], [0.5, 1.0, 2.0]), Trace([1, 2, 3], [1.0, 1.5, 3.0])]
    rate, limit, ttft = figures(RealCell("2", "decode", 2, 100, 40), traces, 9.0, SIZES, MACHINE)
    assert rate == 3 / 2
    assert limit == pytest.approx((100e6 + 2 * 120 * 1e4) / 1e9 * rate / 2)
    assert ttft == 0.75


def test_many_requests_are_limited_by_products() -> None:
    assert SIZES.step_seconds(1000, 0, MACHINE) == pytest.approx(2 * 200e6 * 1000 / 1e12)


def test_a_prompt_is_limited_by_products_with_one_row_of_the_head() -> None:
    value, limit, _ = figures(RealCell("prompt", "prompt", 1, 1000, 1), [Trace([1], [2.0])], 0.0, SIZES, MACHINE)
    assert value == 500
    assert limit == pytest.approx(2 * (150e6 * 1000 + 50e6) / 1e12 / 2)


def test_a_start_counts_from_the_start_of_the_process() -> None:
    assert figures(RealCell("first", "start"), [Trace([1], [0.5])], 1.5, SIZES, MACHINE) == (2.0, 0.0, 0.5)


def test_sizes_are_those_of_the_tensors_that_a_step_reads(file: Path) -> None:
    found = ModelSizes.of(file)
    read = [tensor for tensor in GGUFReader(file).tensors if tensor.name != "token_embd.weight"]
    assert found.read_bytes == sum(int(tensor.n_bytes) for tensor in read)
    assert found.parameters == sum(math.prod(map(int, each.shape)) for each in read if np.size(each.shape) > 1)
    assert found.head == 512 * 64
    assert found.file_bytes == file.stat().st_size


def test_a_turn_s_cached_tokens_have_run_before_and_other_cells_prompts_have_not() -> None:
    cells = {cell.name: cell for group in QUICK_GROUPS for cell in group.cells}
    turn, before = (cells["turn"].batch(500, 3), cells["turn"].warm_up(500, 3))
    assert before is not None
    assert turn.prompts[0][:64] == before.prompts[0]
    assert cells["first token"].warm_up(500, 3) is None
    other, before = (cells["8"].batch(500, 3), cells["8"].warm_up(500, 3))
    assert before is not None
    assert len(before.prompts) == len(other.prompts) == 8
    assert all(ours[:16] != theirs for ours, theirs in zip(other.prompts, before.prompts, strict=True))


def row(subject: str, cell: str, value: float, **more: float) -> RealRow:
    fields = {"limit": 0.9, "ttft": 0.1, "load": 1.0} | more
    return RealRow("A", subject, cell, value, resident=400 << 20, machine=MACHINE, **fields)


def page(*rows: RealRow, failures: list[RealFailure] | None = None, shared: bool = False) -> str:
    environment = Environment("2026-01-01", "a CPU", 1, "2", "5", "abc")
    kv_bytes = {"A": 20_000_000}
    return markdown(RealResults(environment, "avx2", 2, 3, shared, {"A": SIZES}, kv_bytes, [*rows], failures or [], []))


@pytest.mark.parametrize(("ours", "limit", "word"), [(12.0, 0.9, "**yes**"), (11.9, 0.9, "no"), (12.0, 0.8, "no")])
def test_one_request_is_measured_by_llama_cpp_and_the_bandwidth(ours: float, limit: float, word: str) -> None:
    text = page(row("Roundhouse", "1", ours, limit=limit), row("llama.cpp", "1", 10.0))
    assert f"| 1 | tokens/s | {ours:.1f} | {limit:.0%} | 10.0 | {ours / 10:.2f} |" in text
    assert text.count(f"| 1.2 times, 85% of the limit | {word} |") == 1


def test_servers_are_compared_with_servers_and_a_shorter_turn_is_better() -> None:
    rows = [row("Roundhouse", "turn", 0.02), row("Roundhouse, served", "turn", 0.03)]
    assert "| 20 | 90% |  |  | 30 | 60 | 2.00 |" in page(*rows, row("llama.cpp, served", "turn", 0.06))


def test_a_cell_without_ours_shows_the_peers() -> None:
    assert "| A | 8 | tokens/s |  |  | 10.0 |" in page(row("llama.cpp", "8", 10.0))


def test_adapters_are_compared_with_none() -> None:
    text = page(row("Roundhouse", "16", 100.0), row("Roundhouse", "16, adapters", 84.0))
    assert "| ≥ 85% of without | no (84%) |" in text


def test_memory_is_that_of_the_process_beside_file_and_cache() -> None:
    text = page(row("Roundhouse, served", "first token", 1.4), row("Roundhouse, served", "32", 50.0))
    assert "| A | Roundhouse, served | 1.0 | 1.4 | 400 | 133 | ready in 1.5 s, 433 MiB | **yes**, **yes** |" in text


def test_what_failed_and_a_shared_machine_are_told() -> None:
    text = page(failures=[RealFailure("A", "llama.cpp", "8", "first\nlast words")], shared=True)
    assert "Failed: A, llama.cpp, 8: `last words`" in text
    assert "Other programs ran at the same time" in text


def test_medians_are_taken_figure_by_figure() -> None:
    runs = [row("Roundhouse", "1", value, ttft=ttft) for value, ttft in ((1.0, 0.3), (2.0, 0.1), (9.0, 0.2))]
    assert (median(runs).value, median(runs).ttft) == (2.0, 0.2)


def run(file: Path, tmp_path: Path, *arguments: str) -> RealResults:
    main(["--quick", "--files", str(file), "--threads", "1", "--name", "real", "--output", str(tmp_path), *arguments])
    return msgspec.json.decode((tmp_path / "real.json").read_bytes(), type=RealResults)


@pytest.mark.usefixtures("one_thread")
def test_a_run_in_miniature(file: Path, tmp_path: Path) -> None:
    ours = ["Roundhouse", "Roundhouse, served"]
    results = run(file, tmp_path, "--cache", str(tmp_path / "cache"), "--subject", *ours, "OpenVINO")
    cells = [cell.name for group in QUICK_GROUPS for cell in group.cells]
    assert {row.cell for row in results.rows if row.subject == ours[0]} == {*cells} - {"first token"}
    assert {row.cell for row in results.rows if row.subject == ours[1]} == {*cells} - {"16", "16, adapters"}
    assert all(row.value > 0 for row in results.rows)
    assert results.missing == ["OpenVINO"]
    assert (tmp_path / "real.md").read_text().count("| model.gguf |") == len(cells) - 1 + len(ours)
    assert (tmp_path / "real.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.deep
@pytest.mark.skipif(LLAMA_CPP is None, reason="llama.cpp is not set up (python -m bench.peers llama.cpp)")
@pytest.mark.usefixtures("one_thread")
def test_llama_cpp_runs_every_cell(file: Path, tmp_path: Path) -> None:
    results = run(file, tmp_path, "--subject", "llama.cpp", "llama.cpp, served")
    assert len(results.rows) == 3 + 4 + 2 * 3
    assert all(row.value > 0 for row in results.rows)
