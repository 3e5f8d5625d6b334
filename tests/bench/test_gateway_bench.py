"""The gateway's benchmark, in its smallest form: real processes, every turn answered, a row for each subject."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from bench import gateway
from bench.gateway_report import GatewayRow

SUBJECTS = ("stub, frames", "starlette, socket", "roundhouse", "roundhouse, socket")


@pytest.mark.deep
def test_it_measures_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [part for name in SUBJECTS for part in ("--subject", name)]
    monkeypatch.setattr(sys, "argv", ["bench.gateway", *arguments, "--quick", "--output", str(tmp_path)])
    gateway.main()
    rows = msgspec.json.decode((tmp_path / "gateway.json").read_bytes(), type=list[GatewayRow])
    assert {(row.subject, row.clients) for row in rows} == {(name, clients) for name in SUBJECTS for clients in (1, 4)}
    assert all(row.errors == 0 and row.turns_per_second > 0 for row in rows)
    # A turn gives the stub's 32 chunks; how many of them a gateway puts into one event is its own.
    assert all(row.events_per_second == pytest.approx(32 * row.turns_per_second) for row in rows[:4])
    table = (tmp_path / "gateway.md").read_text("utf-8")
    assert all(name in table for name in SUBJECTS)
    assert (tmp_path / "gateway.png").stat().st_size > 10_000
