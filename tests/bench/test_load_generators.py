"""Our load generator says of a stub what guidellm says."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from bench import load_generators
from bench.checkpoints import cache_folder
from bench.load_generators import CHUNKS, ITL, STALL, TTFT, GeneratorRow, difference, expected
from bench.peers import python_of


def test_what_there_is_to_see_of_a_stop_is_arithmetic() -> None:
    """Of evenly spread turns: those due in the stop wait for its end, those that run for what is due in it."""
    rate, turns, length = 200.0, 6000, TTFT + (CHUNKS - 1) * ITL
    found = expected(rate, turns)
    ttft = TTFT + rate / turns * (STALL**2 / 2 + TTFT * (STALL - TTFT / 2))
    e2e = length + rate / turns * (STALL**2 / 2 + length * (STALL - length / 2))
    assert found.ttft_mean == pytest.approx(1000 * ttft, rel=0.001)
    assert found.e2e_mean == pytest.approx(1000 * e2e, rel=0.001)
    assert found.tpot_mean == pytest.approx(1000 * (e2e - ttft) / (CHUNKS - 1), rel=0.001)
    assert found.ttft_max == pytest.approx(1000 * (TTFT + STALL), rel=0.01)
    assert found.ttft_p50 == pytest.approx(1000 * TTFT)


@pytest.mark.deep
@pytest.mark.skipif(
    python_of("guidellm", cache_folder()) is None, reason="guidellm is not set up: python -m bench.peers guidellm"
)
def test_both_say_the_same_of_one_stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a short run on a machine that may be busy; bench/results/load.md has the difference of long ones."""
    arguments = ["--seconds", "6", "--repeats", "1", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["bench.load_generators", *arguments])
    load_generators.main()
    rows = msgspec.json.decode((tmp_path / "load.json").read_bytes(), type=list[GeneratorRow])
    assert [row.generator for row in rows] == [
        "roundhouse load",
        "guidellm",
        "what there is to see",
        "roundhouse load",
        "guidellm",
    ]
    assert {row.turns for row in rows} == {120}
    ours, theirs, known, stalled, _ = rows
    assert difference(ours, theirs) < 0.1
    assert stalled.ttft_max > known.ttft_max - 1000 / 20
