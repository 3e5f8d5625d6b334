"""The results of `bench.gateway` as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.report import picture, table

KEY = "roundhouse-bench"


class GatewaySubject(msgspec.Struct, frozen=True):
    """A gateway to measure: its name, and what a client sends it."""

    name: str
    dialect: str
    path: str = "/v1/chat/completions"
    headers: tuple[str, ...] = ()
    model: str = "auto"
    behind: str | None = None
    """Name of the stub, `STUB` or `FRAMES`, that stands behind the gateway."""
    processes: int = 1
    """Processes of ours that share the port."""


STUB, FRAMES = "stub", "stub, frames"
SUBJECTS = {
    each.name: each
    for each in (
        GatewaySubject(STUB, "chat"),
        GatewaySubject(FRAMES, "frames"),
        GatewaySubject("starlette", "chat", path="/"),
        GatewaySubject("starlette, socket", "echo", path="/"),
        GatewaySubject("roundhouse", "chat", headers=(f"Authorization: Bearer {KEY}",), behind=FRAMES),
        GatewaySubject(
            "roundhouse, socket",
            "responses",
            path="/v1/responses",
            headers=(f"Authorization: Bearer {KEY}",),
            behind=FRAMES,
        ),
        GatewaySubject(
            "roundhouse, two processes",
            "responses",
            path="/v1/responses",
            headers=(f"Authorization: Bearer {KEY}",),
            behind=FRAMES,
            processes=2,
        ),
        GatewaySubject(
            "portkey", "chat", headers=("Authorization: Bearer none", "x-portkey-provider: openai"), behind=STUB
        ),
        GatewaySubject("litellm", "chat", headers=(f"Authorization: Bearer sk-{KEY}",), behind=STUB),
    )
}


class GatewayRow(msgspec.Struct, frozen=True):
    """One subject under one number of clients. Milliseconds; CPU over all its processes but Redis."""

    subject: str
    clients: int
    rate: float | None
    """Turns per second that were requested; None: every client was always busy."""
    ttft_p50: float
    ttft_p95: float
    ttft_p99: float
    turns_per_second: float
    events_per_second: float
    cpu_per_turn: float | None
    """CPU per turn; None for the stub, which is not measured."""
    cpu_per_chunk: float | None
    """The same in microseconds, shared out over the turn's chunks."""
    turns_per_core: float | None
    errors: int


def markdown(rows: Sequence[GatewayRow]) -> list[str]:
    """Return what each subject adds to the stub's own latency, and its CPU, in Markdown."""
    by_place = {(row.subject, row.clients): row for row in rows}
    lines = []
    for row in sorted(rows, key=lambda each: (each.clients, list(SUBJECTS).index(each.subject))):
        base = by_place.get((SUBJECTS[row.subject].behind or "", row.clients))
        added = "" if base is None else f"{row.ttft_p50 - base.ttft_p50:.2f}"
        name = f"**{row.subject}**" if row.subject.startswith("roundhouse") else row.subject
        lines.append(
            f"{row.clients} | {name} | {row.ttft_p50:.2f} / {row.ttft_p95:.2f} / {row.ttft_p99:.2f} | {added} | "
            f"{row.turns_per_second:,.0f} | {row.events_per_second:,.0f} | {_figure(row.cpu_per_turn, '.2f')} | "
            f"{_figure(row.cpu_per_chunk, '.0f')} | "
            f"{_figure(row.turns_per_core, ',.0f')} | {row.errors}"
        )
    return table(
        "clients | subject | first token p50 / p95 / p99 (ms) | added p50 (ms) | turns/s | events/s | "
        "CPU per turn (ms) | per chunk (µs) | turns/s per core | errors",
        lines,
        words=2,
    )


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def plot(rows: Sequence[GatewayRow], path: Path) -> None:
    """Plot first tokens over the number of clients, and turns per second of one core."""
    with picture(path, columns=2, figsize=(11, 4.2)) as (latency, rate):
        for subject in SUBJECTS.values():
            mine = sorted((row for row in rows if row.subject == subject.name), key=lambda row: row.clients)
            if not mine:
                continue
            clients = [row.clients for row in mine]
            style = "-" if subject.name.startswith("roundhouse") else "--"
            p50, p99 = [row.ttft_p50 for row in mine], [row.ttft_p99 for row in mine]
            (line,) = latency.plot(clients, p50, style, marker="o", label=subject.name)
            latency.fill_between(clients, p50, p99, color=line.get_color(), alpha=0.1)
            if not subject.name.startswith(STUB):
                rate.plot(clients, [row.turns_per_core or 0 for row in mine], style, marker="o", color=line.get_color())
        latency.set(title="first token, p50 to p99 (ms)", xlabel="clients, always busy", yscale="log")
        rate.set(title="streamed turns per second of CPU", xlabel="clients, always busy", yscale="log")
        for axis in (latency, rate):
            axis.set_xscale("log", base=2)
            axis.grid(alpha=0.3)
        latency.legend(fontsize=8)
