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


def simulated(rate: float, turns: int, stop: float) -> GeneratorRow:
    """The stub's timers, one after the other, as a stopped process runs them."""

    def fired(due: float) -> float:
        return stop + STALL if stop <= due < stop + STALL else due

    ttft, tpot, e2e = [], [], []
    for number in range(turns):
        start = (number + 0.5) / rate
        first = last = fired(fired(start) + TTFT)
        for _ in range(CHUNKS - 1):
            last = fired(last + ITL)
        ttft.append(first - start)
        tpot.append((last - first) / (CHUNKS - 1))
        e2e.append(last - start)
    means = {name: 1000 * sum(values) / turns for name, values in (("ttft", ttft), ("tpot", tpot), ("e2e", e2e))}
    middle = 1000 * sorted(ttft)[turns // 2]
    return GeneratorRow(
        "simulated", True, turns, means["ttft"], middle, middle, 1000 * max(ttft), means["tpot"], means["e2e"]
    )


@pytest.mark.parametrize("stop", [10.0, 10.017, 9.99])
def test_the_arithmetic_of_a_stop_is_that_of_a_simulation(stop: float) -> None:
    known = expected(200.0, 6000)
    found = simulated(200.0, 6000, stop)
    assert difference(found, known) < 0.002
    assert found.ttft_max == pytest.approx(known.ttft_max, rel=0.01)


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
        "arithmetic",
        "roundhouse load",
        "guidellm",
    ]
    assert {row.turns for row in rows} == {120}
    ours, theirs, known, stalled, _ = rows
    assert difference(ours, theirs) < 0.1
    assert stalled.ttft_max > known.ttft_max - 1000 / 20
