"""`roundhouse top`: what all gateways of an installation do now, as a live table in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import time
import tty
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from time import monotonic

from redis.asyncio import Redis
from redis.exceptions import RedisError
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.engines.heartbeat import Overview, ReplicaStatus, overview
from gateway.storage import presence
from gateway.telemetry import latencies
from gateway.telemetry.activity import TenantActivity
from gateway.telemetry.latencies import Buckets

SORTS: dict[str, Callable[[TenantActivity], float]] = {
    "tokens": lambda each: each.minute.input_tokens + each.minute.output_tokens,
    "turns": lambda each: each.minute.turns,
    "running": lambda each: each.running,
    "refused": lambda each: each.minute.refused,
}
"""Columns by which tenants can be sorted."""
MAX_PAGE_BYTES = 8 * 1024 * 1024
_MAX_TENANTS = 30


class TopError(Exception):
    """There is nothing to show; the message says why."""


async def read(redis: Redis) -> Overview:
    """Read what all gateways say of themselves.

    Raises:
        TopError: no gateway is alive.
        RedisError, OSError: Redis does not answer.
    """
    seen = overview(await presence.read(redis))
    if not seen.gateways and not seen.unreadable:
        raise TopError("no gateway is alive; start one with: roundhouse serve")
    return seen


async def read_page(url: str) -> str:
    """Read a gateway's `/metrics`.

    Raises:
        TopError: it does not answer.
    """

    def fetch() -> str:
        with urllib.request.urlopen(f"{url.rstrip('/')}/metrics", timeout=5) as answer:
            page: bytes = answer.read(MAX_PAGE_BYTES)
            return page.decode()

    try:
        return await asyncio.to_thread(fetch)
    except (OSError, ValueError) as error:
        raise TopError(f"{url} does not answer: {getattr(error, 'reason', error)}") from error


def render(seen: Overview, *, sort: str = "tokens", times: Mapping[str, Buckets] | None = None) -> RenderableType:
    """Draw the tables. `times`: histograms of one gateway, see `gateway.telemetry.latencies`."""
    parts: list[RenderableType] = [_summary(seen), _replicas(seen.replicas), _tenants(seen.tenants, sort)]
    if len(seen.gateways) > 1 or seen.unreadable:
        parts.insert(1, _gateways(seen))
    if times is not None:
        parts.append(_times(times))
    return Group(*parts)


def _summary(seen: Overview) -> Text:
    minute = seen.minute
    words = [
        f"{len(seen.gateways)} gateway{'s' if len(seen.gateways) != 1 else ''}",
        f"{seen.turns} turns running",
        f"{seen.connections} sockets",
        f"{minute.turns} turns/min ({minute.refused} refused, {minute.failed} failed)",
        f"{minute.input_tokens + minute.output_tokens} tokens/min",
        f"answers cached {_share(minute.hits, minute.hits + minute.misses)}",
        f"prompt tokens cached {_share(minute.cached_tokens, minute.input_tokens)}",
    ]
    return Text("  ".join(words), style="bold")


def _gateways(seen: Overview) -> Table:
    table = _table("gateway", "host", "turns>", "sockets>", "turns/min>", "up for>", "state")
    for gateway in seen.gateways:
        table.add_row(
            gateway.id,
            f"{gateway.host}:{gateway.process}",
            str(gateway.turns),
            str(gateway.connections),
            str(gateway.minute.turns),
            _duration(time.time() - gateway.started),
            "draining" if gateway.draining else f"version {gateway.version}",
        )
    for id in seen.unreadable:
        table.add_row(id, "", "", "", "", "", "another version; upgrade this command or that gateway")
    return table


def _replicas(replicas: list[ReplicaStatus]) -> Table:
    table = _table(
        *("replica", "model", "state", "running>", "waiting>", "queue>", "tokens/s>"),
        *("KV used>", "KV cached>", "adapters>"),
    )
    for each in replicas:
        state = "down" if not each.up else "up" if each.breaker == "closed" else f"breaker {each.breaker}"
        table.add_row(
            each.name,
            each.model,
            Text(state, style="green" if state == "up" else "red"),
            str(each.running),
            str(each.waiting),
            f"{each.predicted_queue_seconds:.1f} s",
            f"{each.tokens_per_second:.0f}",
            f"{each.kv_used:.0%}",
            f"{each.kv_cached:.0%}",
            str(each.adapters),
        )
    return table


def _tenants(tenants: list[TenantActivity], sort: str) -> Table:
    table = _table(
        *("tenant", "running>", "turns/min>", "input/min>", "output/min>"),
        *("answers cached>", "prompt cached>", "refused>", "failed>"),
    )
    for each in sorted(tenants, key=lambda each: (-SORTS[sort](each), each.name))[:_MAX_TENANTS]:
        minute = each.minute
        table.add_row(
            each.name,
            str(each.running),
            str(minute.turns),
            str(minute.input_tokens),
            str(minute.output_tokens),
            _share(minute.hits, minute.hits + minute.misses),
            _share(minute.cached_tokens, minute.input_tokens),
            str(minute.refused),
            str(minute.failed),
        )
    if len(tenants) > _MAX_TENANTS:
        table.caption = f"{len(tenants) - _MAX_TENANTS} more"
    return table


def _times(times: Mapping[str, Buckets]) -> Table:
    table = _table("time", "p50>", "p95>", "p99>")
    for name, buckets in times.items():
        values = [latencies.quantile(buckets, share) for share in (0.5, 0.95, 0.99)]
        table.add_row(name, *("-" if value is None else f"{1000 * value:.2f} ms" for value in values))
    return table


def _table(*columns: str) -> Table:
    """Make an empty table; a column whose name ends in > is aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column.removesuffix(">"), justify="right" if column.endswith(">") else "left", no_wrap=True)
    return table


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def _duration(seconds: float) -> str:
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    return f"{days:.1f} d" if days >= 1 else f"{hours:.1f} h" if hours >= 1 else f"{max(0, minutes):.0f} min"


async def watch(redis: Redis, *, interval: float, sort: str, url: str | None, console: Console) -> None:
    """Show and refresh until q is pressed; s sorts by the next column, p pauses.

    Raises:
        TopError, RedisError, OSError: the first look failed. Later failures are shown, and it goes on.
    """
    seen = await read(redis)
    keys: asyncio.Queue[str] = asyncio.Queue()
    before: dict[str, Buckets] = {}
    times = latencies.read(await read_page(url)) if url else None
    paused, problem = False, ""
    with _keyboard(keys), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            state = Text(f"q quit  s sort ({sort})  p {'go on' if paused else 'pause'}  {problem}", style="dim")
            live.update(Group(render(seen, sort=sort, times=times), state), refresh=True)
            due = monotonic() + interval
            with contextlib.suppress(TimeoutError):
                key = await asyncio.wait_for(keys.get(), None if paused else interval)
                if key == "q":
                    return
                if key == "s":
                    names = list(SORTS)
                    sort = names[(names.index(sort) + 1) % len(names)]
                paused ^= key == "p"
            if paused or monotonic() < due:
                continue
            try:
                seen, problem = await read(redis), ""
                if url:
                    page = latencies.read(await read_page(url))
                    times = {name: latencies.since(page[name], before.get(name, {})) for name in page}
                    before = page
            except (TopError, RedisError, OSError) as error:
                problem = f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _keyboard(keys: asyncio.Queue[str]) -> Iterator[None]:
    """Put every key that is pressed into `keys`, without waiting for the end of a line."""
    if not sys.stdin.isatty():
        yield
        return
    loop, number = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)

    def pressed() -> None:
        for key in os.read(number, 64).decode(errors="replace") or "q":  # nothing: the terminal is gone
            keys.put_nowait(key)

    loop.add_reader(number, pressed)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)
