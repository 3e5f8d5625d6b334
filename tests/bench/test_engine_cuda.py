"""The measurement on a GPU, in miniature on the CPU, and its table."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from bench.checkpoints import LLAMA_2, SHAPES, config_alone
from bench.engine import main
from bench.engine_cuda import ALONE, OURS, PEER, TOGETHER, CudaFailure, CudaResults, CudaRow, markdown
from bench.measure import MachineLimits
from bench.report import Environment
from engine.checkpoint.config import ModelConfig
from engine.model.decoder import Decoder


@pytest.mark.deep
def test_all_models_run_alone_and_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--device", "cpu", "--quick", "--threads", "1", "--cache", str(tmp_path), "--output", str(tmp_path)])
    results = msgspec.json.decode((tmp_path / "engine-cpu-quick.json").read_bytes(), type=CudaResults)
    assert results.failures == []
    alone = {(row.model, row.subject) for row in results.rows if row.company == ALONE}
    assert alone == {("mini", OURS), ("mini", PEER), ("mini 4", OURS)}
    assert {row.model for row in results.rows if row.company == TOGETHER} == {"mini", "mini 4"}
    assert all(row.tokens_per_second > 0 and row.itl_p50 > 0 and row.roofline > 0 for row in results.rows)
    assert len((tmp_path / "engine-cpu-quick.md").read_text().splitlines()) == len(results.rows) + 8


def test_the_table_compares_with_transformers_in_the_same_cell() -> None:
    def row(model: str, subject: str, company: str, rate: float) -> CudaRow:
        return CudaRow(model, "bf16", "8", subject, company, rate, 0.05, 0.06, 0.01, 0.02, 0.81, 0.5)

    rows = [row("7B", OURS, ALONE, 900), row("7B", PEER, ALONE, 300), row("7B", OURS, TOGETHER, 400)]
    failure = CudaFailure("70B", OURS, ALONE, "no memory")
    text = markdown(CudaResults(Environment.here(), "some GPU", MachineLimits(4e12, 8e14), rows, [failure]))
    assert f"| 7B bf16 | 8 | {OURS} | alone | 900 | 3.00 | 50.0 | 10.00 | 20.00 | 81% | 50% |" in text
    assert f"| {PEER} | alone | 300 |  |" in text and f"| {OURS} | together | 400 |  |" in text
    assert "copying 4,000 GB/s" in text and "not measured: 70B, Roundhouse, alone: no memory" in text


def test_the_shapes_are_llamas() -> None:
    billions = {name: shape.read_parameters / 1e9 for name, shape in LLAMA_2.items()}
    assert {name: round(each, 1) for name, each in billions.items()} == {"7B": 6.6, "13B": 12.9, "70B": 68.7}


def test_random_weights_are_those_of_the_shape(tmp_path: Path) -> None:
    config = ModelConfig.from_directory(config_alone("mini", SHAPES["mini"], tmp_path))
    one, other = (Decoder.random(config, torch.device("cpu"), torch.bfloat16) for _ in range(2))
    hidden = torch.randn(3, config.hidden_size).bfloat16()
    logits = one.logits(hidden)
    assert logits.shape == (3, config.vocabulary) and logits.isfinite().all() and logits.float().std() > 0.05
    assert torch.equal(other.logits(hidden), logits)
