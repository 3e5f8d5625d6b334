"""The benchmark of real files as Markdown and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.real_cells import ADAPTERS_AIM, AIMS, GROUPS, LOAD_AIM_SECONDS, MEMORY_AIM_BYTES, QUICK_GROUPS, RealCell
from bench.real_record import RealResults, RealRow
from bench.report import picture, table

_OURS, _SERVED = "Roundhouse", "Roundhouse, served"
_CELLS = {cell.name: cell for group in (*QUICK_GROUPS, *GROUPS) for cell in group.cells}
_UNITS = {"decode": "tokens/s", "prompt": "prompt tokens/s", "turn": "ms", "start": "s"}
_PEERS = (("llama.cpp", _OURS), ("llama.cpp, served", _SERVED), ("OpenVINO", _OURS))
"""Each peer with that of our subjects which runs in the same way."""
_MIB = 1 << 20


def markdown(results: RealResults) -> str:
    """Return the page: a row for each cell of each file, then starts and memory."""
    lines = ["### Real models", "", _conditions(results), ""]
    lines += table(
        "file | load | unit | ours | of the limit | llama.cpp | ratio | ours, served | llama.cpp, served | ratio | "
        "OpenVINO int4 | ratio | aim | reached",
        _cells(results),
        words=3,
    )
    lines += [
        "",
        *table(
            "file | subject | ready, s | first token, s | resident, MiB | file and KV, MiB | aim | reached",
            _starts(results),
            words=2,
        ),
        "",
    ]
    if results.missing:
        lines += [f"Not set up: {', '.join(results.missing)}.", ""]
    for failure in results.failures:
        last = failure.words.strip().splitlines()[-1]
        lines += [f"Failed: {failure.file}, {failure.subject}, {failure.cell}: `{last}`", ""]
    return "\n".join(lines)


def _conditions(results: RealResults) -> str:
    bandwidths = [row.machine.read_bandwidth for row in results.rows]
    between = f"{min(bandwidths) / 1e9:.1f} to {max(bandwidths) / 1e9:.1f} GB/s" if bandwidths else "not measured"
    text = (
        f"{results.environment}; our kernels for {results.isa}, {results.threads} threads, medians of "
        f"{results.repeats} repeats; read bandwidth {between}."
    )
    return text + (" **Other programs ran at the same time.**" if results.shared else "")


def _cells(results: RealResults) -> Iterator[str]:
    for file in results.sizes:
        for name, cell in _CELLS.items():
            if cell.quantity == "start" or not any((row.file, row.cell) == (file, name) for row in results.rows):
                continue
            ours = results.row(file, _OURS, name)
            share = "" if ours is None else f"{ours.limit:.0%}"
            cells = [file, name, _UNITS[cell.quantity], _figure(cell, ours), share]
            ratio = None
            for peer, beside in _PEERS:
                row, mine = results.row(file, peer, name), results.row(file, beside, name)
                if beside == _SERVED:
                    cells.append(_figure(cell, mine))
                found = None if row is None or mine is None else _ratio(cell, mine, row)
                cells += [_figure(cell, row), _times(found)]
                ratio = found if peer == "llama.cpp" else ratio
            yield " | ".join([*cells, *_verdict(results, ours, cell, ratio)])


def _verdict(results: RealResults, ours: RealRow | None, cell: RealCell, ratio: float | None) -> tuple[str, str]:
    """Return the aim of a cell and whether it is reached; `ratio` is that to llama.cpp."""
    if ours is None:
        return "", ""
    if cell.adapters:
        without = results.row(ours.file, _OURS, str(cell.requests))
        if without is None:
            return "", ""
        share = ours.value / without.value
        return f"≥ {ADAPTERS_AIM:.0%} of without", f"{_word(share >= ADAPTERS_AIM)} ({share:.0%})"
    aim = AIMS.get(cell.name)
    if aim is None:
        return "", ""
    asked = [] if aim.ratio is None else [f"{aim.ratio:g} times"]
    asked += [] if aim.limit is None else [f"{aim.limit:.0%} of the limit"]
    reached = aim.limit is None or ours.limit >= aim.limit
    if aim.ratio is not None:
        if ratio is None:
            return ", ".join(asked), ""
        reached = reached and ratio >= aim.ratio
    return ", ".join(asked), _word(reached)


def _starts(results: RealResults) -> Iterator[str]:
    for file, sizes in results.sizes.items():
        for subject in dict.fromkeys(row.subject for row in results.rows):
            first, most = results.row(file, subject, "first token"), results.row(file, subject, "32")
            if most is None:
                continue
            packed = sizes.file_bytes + results.kv_bytes[file]
            asked, reached = "", ""
            if first is not None and subject == _SERVED:
                asked = f"ready in {LOAD_AIM_SECONDS} s, {(packed + MEMORY_AIM_BYTES) // _MIB:,} MiB"
                reached = _word(first.load <= LOAD_AIM_SECONDS, most.resident <= packed + MEMORY_AIM_BYTES)
            cells = [file, subject, f"{most.load:.1f}", "" if first is None else f"{first.value:.1f}"]
            yield " | ".join([*cells, f"{most.resident // _MIB:,}", f"{packed // _MIB:,}", asked, reached])


def _figure(cell: RealCell, row: RealRow | None) -> str:
    if row is None:
        return ""
    return f"{1000 * row.value:.0f}" if cell.quantity == "turn" else f"{row.value:.1f}"


def _ratio(cell: RealCell, ours: RealRow, peer: RealRow) -> float:
    """Return a ratio that is above 1 where ours is better."""
    return peer.value / ours.value if cell.quantity == "turn" else ours.value / peer.value


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _word(*reached: bool) -> str:
    return ", ".join("**yes**" if each else "no" for each in reached)


def plot(results: RealResults, path: Path) -> None:
    """Draw tokens per second of every subject by number of requests, a picture per file, with the machine's limit."""
    files = list(results.sizes)
    names = [name for name, cell in _CELLS.items() if cell.quantity == "decode" and not cell.adapters and name != "16"]
    subjects = list(dict.fromkeys(row.subject for row in results.rows))
    with picture(path, columns=len(files), figsize=(4.5 * len(files), 3.6), squeeze=False) as axes:
        for axis, file in zip(axes[0], files, strict=True):
            for number, subject in enumerate(subjects):
                rows = [(at, row) for at, name in enumerate(names) if (row := results.row(file, subject, name))]
                places = [at + (number + 0.5) / (len(subjects) + 1) - 0.5 for at, _ in rows]
                axis.bar(places, [row.value for _, row in rows], 1 / (len(subjects) + 1), label=subject)
            limits = [(at, row) for at, name in enumerate(names) if (row := results.row(file, _OURS, name))]
            for at, row in limits:
                axis.hlines(row.value / row.limit, at - 0.5, at + 0.4, colors="black", linestyles="dotted")
            axis.set_xticks(range(len(names)), names)
            axis.set_title(file)
            axis.set_xlabel("requests")
            axis.set_ylabel("tokens/s (dotted: the machine's limit)")
        axes[0][0].legend(fontsize="small")
