"""Recorded arrivals are read from both formats."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from load.traces import TraceError, TracePoint, mean_rate, paced, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:05.4799600,3180,8
2023-11-16 18:17:04.0299600,110,27
"""
MOONCAKE = """{"timestamp": 3000, "input_length": 1000, "output_length": 500, "hash_ids": [0, 1]}
{"timestamp": 3052, "input_length": 600, "output_length": 26, "hash_ids": [0, 2], "more": true}
"""


def test_azure_s_columns_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    file = tmp_path / "conv.csv"
    file.write_text(AZURE)
    points = read_trace(file)
    assert [(each.input_tokens, each.output_tokens) for each in points] == [(4808, 10), (110, 27), (3180, 8)]
    assert [each.start for each in points] == pytest.approx([0.0, 0.05, 1.5])


def test_mooncake_s_lines_are_read_with_their_blocks(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl.gz"
    file.write_bytes(gzip.compress(MOONCAKE.encode()))
    first, second = read_trace(file)
    assert first == TracePoint(0.0, 1000, 500, (0, 1))
    assert (second.start, second.blocks) == (pytest.approx(0.052), (0, 2))


def test_lengths_are_scaled_and_stay_above_zero(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(MOONCAKE)
    assert [(each.input_tokens, each.output_tokens) for each in read_trace(file, 0.01)] == [(10, 5), (6, 1)]


def test_a_trace_is_played_at_another_rate() -> None:
    points = [TracePoint(float(at), 1, 1) for at in range(11)]
    assert mean_rate(points) == pytest.approx(1.1)
    assert [each.start for each in paced(points, 2.0)] == [at / 2 for at in range(11)]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "TIME,Tokens\n1,2\n", "line 2"),
        ("a.csv", AZURE + "soon,1,1\n", "line 5"),
        ("a.jsonl", MOONCAKE + '{"timestamp": "soon"}\n', "line 3"),
        ("a.jsonl", "", "no arrivals"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(TraceError, match=says):
        read_trace(file)
