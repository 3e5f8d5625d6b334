"""The planner beside an engine, on a tiny model; what is asserted of times is that both sides have some."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import plan
from bench.plan import SkippingClock, main
from tests.engine.checkpoints import write_checkpoint

SHORT = ("--requests", "12", "--seconds", "0.01", "--load-seconds", "0.01")


@pytest.mark.parametrize("mixes", [["chat"], pytest.param([*plan.MIXES], marks=pytest.mark.deep)])
def test_a_tiny_engine_is_served_and_predicted_at_each_load(
    mixes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "LOADS", (0.5,))
    monkeypatch.setattr(plan, "MIXES", {mix: plan.MIXES[mix] for mix in mixes})
    monkeypatch.setattr(plan, "TURN", 0.002)
    model = tmp_path / "tiny"
    write_checkpoint(model, max_position_embeddings=2048)
    main(["--output", str(tmp_path), "--model", str(model), *SHORT])
    [result] = json.loads((tmp_path / "plan.json").read_bytes())["models"]
    assert [(cell["mix"], cell["load"]) for cell in result["cells"]] == [
        (mix, load) for mix in mixes for load in ("50%", "all at once")
    ]
    for cell in result["cells"]:
        for side in (cell["measured"], cell["predicted"], cell["again"]):
            assert 0 < side["ttft"]["p50"] <= side["ttft"]["p95"]
            assert side["tokens_per_second"] > 0
    page = (tmp_path / "plan.md").read_text()
    assert "## tiny" in page and "| h100 | llama-2-70b | 8 |" in page


def test_a_clock_skips_what_would_be_waited_for() -> None:
    times = iter([10.0, 10.0, 11.0, 11.0, 12.0])
    clock = SkippingClock(lambda: next(times))
    assert clock() == 0.0
    clock.skip_to(5.0)
    assert clock() == 5.0
    clock.skip_to(3.0)


def test_a_clock_stands_still_while_other_steps_are_timed() -> None:
    times = iter([10.0, 12.0, 15.0, 15.0])
    clock = SkippingClock(lambda: next(times))
    with clock.stopped():
        pass
    assert clock() == 2.0
