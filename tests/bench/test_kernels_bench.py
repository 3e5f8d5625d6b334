"""The measurement of kernels on CUDA, on the CPU: that all cases run, and how figures become a table."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.kernel_cases import KernelCase
from bench.kernel_sizes import CUDA
from bench.kernels import KernelLimits, KernelRow, main, markdown, measure
from kernels.registry import Cost


def test_every_op_is_measured_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick", "--out", str(tmp_path)])
    lines = [line for line in (tmp_path / "kernels-cpu-quick.md").read_text().splitlines() if line.startswith("|")]
    measured = msgspec.json.decode((tmp_path / "kernels-cpu-quick.json").read_bytes())
    assert len(measured["rows"]) == len(lines) - 2
    ops = {row["op"] for row in measured["rows"]}
    expected = "rms_norm, silu_and_mul, rope_and_store fp8, attention int8, linear W4A16, adapt_linear, experts W8A16"
    assert set(expected.split(", ")) | {"sample, all"} <= ops
    assert all(row["time"] > 0 and row["bytes"] > 0 and row["share"] > 0 for row in measured["rows"])


def test_one_op_can_be_chosen(tmp_path: Path) -> None:
    main(["--quick", "--ops", "norm", "--out", str(tmp_path)])
    rows = msgspec.json.decode((tmp_path / "kernels-cpu-quick.json").read_bytes())["rows"]
    assert {row["op"] for row in rows} == {"rms_norm", "add_rms_norm"}


def test_the_share_is_of_the_longer_limit() -> None:
    limits = KernelLimits(1000.0, {"bfloat16": 100.0})
    case = KernelCase("op", "shape", Cost(bytes=100, flops=30), [bool], [bool, bool], 0.7)
    row = measure(case, limits, lambda calls: 0.5 * len(calls))
    assert row == KernelRow("op", "shape", 0.5, 100, 30, 0.6, 1.0, 0.7)
    case = KernelCase("op", "shape", Cost(bytes=400, flops=30), [bool], [], None)
    row = measure(case, limits, lambda calls: 0.5 * len(calls))
    assert row == KernelRow("op", "shape", 0.5, 400, 30, 0.8, None, None)


def test_the_table_says_what_reaches_its_aim() -> None:
    rows = [
        KernelRow("norm", "a", 1e-5, 40_000_000, 10**9, 0.9, 2e-5, 0.85),
        KernelRow("attention", "b", 1e-3, 10**9, 10**12, 0.5, None, 0.85),
    ]
    text = markdown(rows, KernelLimits(4e12, {"bfloat16": 8e14}), "CUDA", ["some GPU"])
    assert "| norm | a | 10.0 | 4,000 | 100.0 | 90% | 85% ✓ | 20.0 | 2.00 |" in text
    assert "| attention | b | 1,000.0 | 1,000 | 1,000.0 | 50% | 85% ✗ |  |  |" in text
    assert "4,000 GB/s" in text and "800.00 TFLOP/s" in text and "some GPU" in text


def test_decodes_read_more_than_caches_hold() -> None:
    assert min(CUDA.input_bytes, CUDA.weight_bytes) >= 100 << 20
    decodes = [one for one in CUDA.attention if one.kind == "decode"]
    assert len(decodes) == 4
    for one in decodes:
        assert 2 * one.rows * (one.start + one.count) * one.kv_heads * one.dim * 2 >= 100 << 20
