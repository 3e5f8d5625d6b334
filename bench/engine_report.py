"""The engine's benchmark as Markdown and as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from bench.cells import ADAPTERS, AIMS, CELLS, Aim, Cell
from bench.checkpoints import SHAPES
from bench.engine_record import EngineResults, MeasuredSubject
from bench.measure import Measurement
from bench.report import picture, table
from bench.subjects.interface import PRECISIONS
from bench.subjects.registry import OURS

_PEFT = "peft"
_ANY = "any"
"""Precision of an aim that compares each side's best."""


class AimVerdict(msgspec.Struct, frozen=True):
    """How ours compares in one cell. `value` is the figure that the aim bounds."""

    aim: Aim
    peer: Measurement | None
    """Row of the best peer."""
    ours: Measurement
    value: float | None
    """The figure that the aim bounds; None if there is no peer."""

    @property
    def reached(self) -> bool:
        if self.value is None:
            return False
        return self.value <= self.aim.bound if self.aim.quantity == "TTFT" else self.value >= self.aim.bound


def verdicts(rows: Sequence[Measurement]) -> list[AimVerdict]:
    """Return one verdict per aim whose cell ours was measured in."""
    found = []
    for aim in AIMS:
        cell = [
            row
            for row in rows
            if (row.model, row.cell) == (aim.model, aim.cell) and aim.precision in (None, row.precision)
        ]
        ours = _best(aim, [row for row in cell if row.subject == OURS])
        peer = _best(aim, [row for row in cell if not row.subject.startswith(OURS)])
        if ours is not None:
            found.append(AimVerdict(aim, peer, ours, _value(aim, ours, peer, rows)))
    return found


def _best(aim: Aim, rows: Sequence[Measurement]) -> Measurement | None:
    if aim.quantity == "TTFT":
        return min(rows, key=lambda row: row.ttft_p50, default=None)
    if aim.quantity == "roofline":
        return max(rows, key=lambda row: row.roofline, default=None)
    return max(rows, key=lambda row: row.tokens_per_second, default=None)


def _value(aim: Aim, ours: Measurement, peer: Measurement | None, rows: Sequence[Measurement]) -> float | None:
    if aim.quantity == "roofline":
        return ours.roofline
    if aim.quantity == "adapters":
        return _kept(ours, rows)
    if peer is None:
        return None
    if aim.quantity == "TTFT":
        return ours.ttft_p50 / peer.ttft_p50
    return ours.tokens_per_second / peer.tokens_per_second


def _kept(row: Measurement, rows: Sequence[Measurement]) -> float | None:
    """Return the throughput with adapters over that of the same subject without."""
    key = (row.model, row.precision, "32", row.subject)
    without = next((each for each in rows if each.key == key), None)
    return None if without is None else row.tokens_per_second / without.tokens_per_second


def markdown(results: EngineResults) -> str:
    """Return the page: ours beside the best peer and the aims, then everything that was measured."""
    lines = ["# The engine beside its peers", "", _conditions(results), ""]
    found = verdicts(results.rows)
    if found:
        lines += table(
            "model | precision | load | best peer | ours | ratio | aim | reached | ours, of the decode roofline",
            (_verdict(each, results.rows) for each in found),
            words=5,
        )
        lines += [""]
    for model in dict.fromkeys(row.model for row in results.rows):
        lines += _matrix(model, results)
    if results.missing:
        lines += [f"Not set up: {', '.join(results.missing)}.", ""]
    for failure in results.failures:
        last = failure.words.strip().splitlines()[-1]
        entry = failure.entry
        lines += [f"Failed: {entry.subject}, {entry.model} {entry.precision}, cell {failure.cell}: `{last}`", ""]
    return "\n".join(lines)


def _verdict(verdict: AimVerdict, rows: Sequence[Measurement]) -> str:
    aim, ours, peer = verdict.aim, verdict.ours, verdict.peer
    cells = (
        aim.model,
        aim.precision or _ANY,
        f"{_label(CELLS[aim.cell])}{', TTFT' if aim.quantity == 'TTFT' else ''}",
        "none" if peer is None else f"{_figure(aim, peer, rows)} ({peer.subject}{_of(aim, peer)})",
        f"{_figure(aim, ours, rows)}{f' ({ours.precision})' if aim.precision is None else ''}",
        "" if verdict.value is None else f"{verdict.value:.2f}",
        f"{'≤' if aim.quantity == 'TTFT' else '≥'} {aim.bound:g}{_of_roofline(aim)}",
        "**yes**" if verdict.reached else "no",
        f"{ours.roofline:.0%}",
    )
    return " | ".join(cells)


def _of_roofline(aim: Aim) -> str:
    return " of the roofline" if aim.quantity == "roofline" else ""


def _of(aim: Aim, row: Measurement) -> str:
    return f", {row.precision}" if aim.precision is None else ""


def _figure(aim: Aim, row: Measurement, rows: Sequence[Measurement]) -> str:
    if aim.quantity == "TTFT":
        return f"{row.ttft_p50:.2f} s"
    rate = f"{_rate(row.tokens_per_second)} tokens/s"
    if aim.quantity == "roofline":
        return f"{rate}, {row.roofline:.0%}"
    kept = _kept(row, rows) if aim.quantity == "adapters" else None
    return rate if kept is None else f"{rate}, {kept:.0%} of none"


def _matrix(model: str, results: EngineResults) -> list[str]:
    """Return a table with a line per subject and precision, a column per cell."""
    rows = {row.key: row for row in results.rows if row.model == model}
    entries = list(dict.fromkeys(MeasuredSubject(row.model, row.precision, row.subject) for row in rows.values()))
    entries.sort(key=lambda entry: PRECISIONS.index(entry.precision))
    loads = dict(results.load_seconds)
    agreement = {each.entry: each for each in results.agreement}
    head = [_label(cell) for cell in results.cells]
    lines = []
    for entry in entries:
        found = [rows.get((model, entry.precision, cell.name, entry.subject)) for cell in results.cells]
        memory = max(row.peak_memory for row in found if row is not None)
        name = f"**{entry.subject}**" if entry.subject.startswith(OURS) else entry.subject
        cells = [entry.precision, name, *map(_cell, found), f"{memory / 2**20:,.0f}", f"{loads[entry]:.1f}"]
        cells.append(f"{agreement[entry].first_tokens:.0%}" if entry in agreement else "")
        lines.append(" | ".join(cells))
    columns = ["precision", "subject", *head, "memory (MiB)", "load (s)", "first tokens as transformers"]
    return [
        f"## {model}",
        "",
        "Output tokens/s (TTFT p50 / ITL p50 in ms; share of the decode roofline, of the matmul limit for prompts).",
        "",
        *table(" | ".join(columns), lines, words=2 + len(head)),
        "",
    ]


def _cell(row: Measurement | None) -> str:
    if row is None:
        return ""
    times = f"{_milliseconds(row.ttft_p50)} / {_milliseconds(row.itl_p50)}"
    return f"{_rate(row.tokens_per_second)} ({times}; {row.roofline:.0%}, {row.prefill:.0%})"


def _label(cell: Cell) -> str:
    if cell.shared_tokens:
        return f"{cell.requests}, {cell.shared_tokens} shared tokens"
    return f"{cell.requests}, {cell.adapters} adapters" if cell.adapters else f"{cell.requests}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _milliseconds(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _conditions(results: EngineResults) -> str:
    """Return the conditions of the run."""
    place = results.environment
    bandwidths = [row.machine.read_bandwidth / 1e9 for row in results.rows] or [math.nan]
    products = [row.machine.matmul / 1e12 for row in results.rows] or [math.nan]
    loads = "; ".join(
        f"{_label(cell)}: {cell.prompt_tokens} {'own ' if cell.shared_tokens else ''}tokens in, {cell.new_tokens} out"
        for cell in results.cells
    )
    machine = f"transformers {place.transformers}, {results.threads} threads"
    machine += "" if results.kv_dtype == "auto" else f", our KV cache in {results.kv_dtype}"
    reading = f"{min(bandwidths):.1f}-{max(bandwidths):.1f} GB/s"
    limits = f"{reading}, {min(products):.2f}-{max(products):.2f} TFLOP/s in a square product"
    return (
        f"{place}, {machine}. Requests at once, greedy, the same token ids for all ({loads}). Medians of "
        f"{results.repeats}, subjects take turns. The machine's limits, measured around the runs: {limits}."
    )


def plot(results: EngineResults, path: Path) -> None:
    """Plot every subject's throughput over the best peer's, cell by cell; cells without a peer are left out."""
    groups = _groups(results.rows)
    places = {group: place for place, group in enumerate(sorted(groups, key=_order))}
    bounds = {(aim.model, aim.precision or _ANY, aim.cell): aim.bound for aim in AIMS if aim.quantity == "tokens/s"}
    with picture(path, figsize=(8, 1.5 + 0.32 * len(groups))) as axes:
        for number, subject in enumerate(dict.fromkeys(row.subject for rows in groups.values() for row in rows)):
            points = [
                (row.tokens_per_second / _best_peer(rows), places[group])
                for group, rows in groups.items()
                for row in rows
                if row.subject == subject
            ]
            ratios, heights = zip(*points, strict=True)
            marker, size = ("D", 60) if subject.startswith(OURS) else ("o", 26)
            axes.scatter(ratios, heights, label=subject, color=f"C{number}", marker=marker, s=size)
        for group, place in places.items():
            if group in bounds:
                axes.plot([bounds[group]] * 2, [place - 0.35, place + 0.35], color="black", linewidth=1.5)
        axes.axvline(1, color="#999", linewidth=0.8)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("{x:g}")
        axes.set_yticks(list(places.values()), [" ".join(group) for group in places])
        axes.invert_yaxis()
        axes.set_xlabel("output tokens/s over the best peer's; black: the aim")
        axes.grid(alpha=0.3, which="both", axis="x")
        if groups:
            axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))


def _groups(rows: Sequence[Measurement]) -> dict[tuple[str, str, str], list[Measurement]]:
    """Group rows to compare: by model, precision and cell, or each subject's best where an aim allows any precision."""
    shown = [row for row in rows if row.cell != ADAPTERS and row.subject != _PEFT]
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for row in shown:
        groups.setdefault((row.model, row.precision, row.cell), []).append(row)
    for aim in AIMS:
        best: dict[str, Measurement] = {}
        for row in sorted(shown, key=lambda row: row.tokens_per_second):
            if aim.precision is None and (row.model, row.cell) == (aim.model, aim.cell):
                best[row.subject] = row
        if best:
            groups[aim.model, _ANY, aim.cell] = list(best.values())
    return {group: found for group, found in groups.items() if any(not row.subject.startswith(OURS) for row in found)}


def _order(group: tuple[str, str, str]) -> list[int]:
    known: tuple[Iterable[str], ...] = (SHAPES, (*PRECISIONS, _ANY), CELLS)
    return [list(names).index(name) for names, name in zip(known, group, strict=True)]


def _best_peer(rows: Sequence[Measurement]) -> float:
    return max(row.tokens_per_second for row in rows if not row.subject.startswith(OURS))
