"""The simulation of large pools from end to end, with small ones."""

from __future__ import annotations

import json
from pathlib import Path

from bench.large_pool import index_cost, main


def test_pools_of_several_sizes_are_measured_and_published(tmp_path: Path) -> None:
    main(["--output", str(tmp_path), "--replicas", "2", "6"])
    small, larger = json.loads((tmp_path / "large-pool.json").read_bytes())["pools"]
    assert (small["replicas"], larger["replicas"]) == (2, 6)
    assert larger["requests"] > 2 * small["requests"]
    for pool in (small, larger):
        assert pool["by_load"] < pool["hit_ratio"] <= pool["ceiling"]
        assert 1 <= pool["imbalance"] < 2
        assert 0 < pool["decision_p50"] <= pool["decision_p99"]
    assert "| 6 |" in (tmp_path / "large-pool.md").read_text()


def test_an_index_takes_memory_for_each_block() -> None:
    assert 50 < index_cost(20).bytes < 2000
