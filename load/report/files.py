"""The files of a report: a page that needs no other file, JSON, and CSV with a line for each turn."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from load.records import MeasuredTurn
from load.report.document import LoadReport
from load.report.page import page

_COLUMNS = (
    "number", "start", "late", "ttft", "tpot", "e2e", "resumed", "stopped", "end", "tenant", "model", "protocol",
    "input_tokens", "output_tokens", "pieces", "characters", "digest", "repeats", "error", "fault",
)  # fmt: skip


def write_report(report: LoadReport, turns: Sequence[MeasuredTurn], folder: Path) -> None:
    """Write `report.html`, `report.json` and `turns.csv`.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    encoded = msgspec.json.format(msgspec.json.encode(report), indent=1)
    (folder / "report.json").write_bytes(encoded + b"\n")
    (folder / "turns.csv").write_text(turns_csv(turns), "utf-8")
    (folder / "report.html").write_text(page(report, turns), "utf-8")


def turns_csv(turns: Iterable[MeasuredTurn]) -> str:
    """Return one line per turn, by number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for turn in sorted(turns, key=lambda each: each.plan.number):
        writer.writerow(_cell(getattr(turn if hasattr(turn, name) else turn.plan, name)) for name in _COLUMNS)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6f}"
    return getattr(value, "value", value)
