"""The tables and plots of `bench.host_kv`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.measure import quantile
from bench.report import Environment, picture, table
from engine.cache.blocks import BLOCK_SIZE


class Copies(msgspec.Struct, frozen=True):
    """Speed of copies of single blocks."""

    block_bytes: int
    save_bandwidth: float
    """Bytes per second to host memory; the next field is back from it."""
    load_bandwidth: float


class Known(msgspec.Struct, frozen=True):
    """Seconds to the first token of a prompt that begins with so many known blocks."""

    blocks: int
    computed: float
    loaded: float
    found: float
    """Seconds if the blocks are found in the KV cache."""


class HostKvLine(msgspec.Struct, frozen=True):
    """Results of one setup."""

    setup: str
    kv_tokens: int
    host_bytes: int
    hit_share: float
    """Share of prompt tokens that were not computed; the next field is the part of it that came from host memory."""
    host_share: float
    prompt_tokens: int
    again_tokens: int
    """Tokens per repeat that were computed although an earlier turn had computed them."""
    ttfts: list[float]
    """Seconds to the first token of all turns, ascending."""
    tokens_per_second: float
    """Tokens of answers per second; median over the repeats."""
    saved_bytes: int
    loaded_bytes: int
    """Bytes loaded per repeat."""
    same: float
    """Share of answers that equal those of the setup that holds all."""


class HostKvComparison(msgspec.Struct, frozen=True):
    """All that was measured."""

    model: str
    dtype: str
    conversations: int
    turns: int
    at_once: int
    kv_tokens: int
    repeats: int
    copies: Copies
    known: list[Known]
    lines: list[HostKvLine]


def break_even(known: Sequence[Known]) -> int | None:
    """Return from how many blocks on loading is never slower than computing, as far as was measured."""
    slower = [one.blocks for one in known if one.loaded > one.computed]
    faster = [one.blocks for one in known if one.blocks > max(slower, default=0)]
    return min(faster, default=None)


def block_seconds(known: Sequence[Known]) -> tuple[float, float]:
    """Return the seconds per further block, computed and loaded: the slope between the ends of the curve."""
    first, last = known[0], known[-1]
    count = last.blocks - first.blocks
    return (last.computed - first.computed) / count, (last.loaded - first.loaded) / count


def markdown(comparison: HostKvComparison, environment: Environment) -> str:
    """Return the tables, and the conditions."""
    lines = [
        f"# KV in host memory, {comparison.model} model, {comparison.dtype}, {environment.date}",
        "",
        "![](host-kv.png)",
        "",
        *_prefixes(comparison),
        "",
        "## Conversations",
        "",
        f"{comparison.conversations} conversations, {comparison.turns} turns of them in a random order, "
        f"{comparison.at_once} at once; "
        f"{comparison.lines[0].prompt_tokens / comparison.turns:,.0f} prompt tokens in the mean. "
        f"The KV cache holds {comparison.kv_tokens:,} tokens, host memory as much as all conversations have.",
        "",
        *table(
            "setup | prompt tokens cached | of these from the host | computed again | TTFT p50 (ms) | TTFT p99 (ms) | "
            "output tokens/s | saved, loaded (MB) | same answers",
            map(_line, comparison.lines),
        ),
        "",
        _gain(*comparison.lines),
        "",
        f"{environment}, one thread; {comparison.repeats} repeats, shares and times over all of them, tokens/s their "
        "median.",
        "",
    ]
    return "\n".join(lines)


def _prefixes(comparison: HostKvComparison) -> list[str]:
    copies = comparison.copies
    computing, loading = block_seconds(comparison.known)
    least = break_even(comparison.known)
    if least is None:
        pays = "A load never paid here."
    elif least == comparison.known[0].blocks:
        pays = f"A load pays from the first block ({BLOCK_SIZE * least} tokens) on."
    else:
        pays = f"A load pays from {least} blocks ({BLOCK_SIZE * least} tokens) on."
    needed = copies.block_bytes / computing
    return [
        "## A prefix alone",
        "",
        *table(
            "known blocks | tokens | computed (ms) | loaded (ms) | in the KV cache (ms)",
            (
                f"{one.blocks} | {one.blocks * BLOCK_SIZE:,} | {_ms(one.computed)} | {_ms(one.loaded)} | "
                f"{_ms(one.found)}"
                for one in comparison.known
            ),
            words=0,
        ),
        "",
        f"**Break-even.** {pays} A block of {BLOCK_SIZE} tokens is {copies.block_bytes / 1024:,.0f} KiB; computing it "
        f"takes {1e3 * computing:.2f} ms and loading it {1e3 * loading:.3f} ms of a request's time, of which the copy "
        f"itself is {1e3 * copies.block_bytes / copies.load_bandwidth:.3f} ms ({copies.load_bandwidth / 1e9:.1f} GB/s; "
        f"saving {copies.save_bandwidth / 1e9:.1f} GB/s). Copying beats computing on any link faster than "
        f"{needed / 1e6:,.0f} MB/s, which is the bytes of a token's KV times the prompt tokens that the model computes "
        "per second.",
    ]


def _line(line: HostKvLine) -> str:
    from_host = line.host_share / line.hit_share if line.hit_share else 0.0
    return (
        f"{line.setup} | {line.hit_share:.1%} | {from_host:.1%} | {line.again_tokens:,} | "
        f"{_ms(quantile(line.ttfts, 0.5))} | {_ms(quantile(line.ttfts, 0.99))} | {line.tokens_per_second:,.0f} | "
        f"{line.saved_bytes / 1e6:,.0f}, {line.loaded_bytes / 1e6:,.0f} | {line.same:.0%}"
    )


def _gain(alone: HostKvLine, host: HostKvLine, full: HostKvLine) -> str:
    ratio = quantile(alone.ttfts, 0.5) / quantile(host.ttfts, 0.5)
    speed = host.tokens_per_second / alone.tokens_per_second
    return (
        f"Host memory takes the median TTFT from {_ms(quantile(alone.ttfts, 0.5))} to "
        f"{_ms(quantile(host.ttfts, 0.5))} ms ({ratio:.1f} times) and output from {alone.tokens_per_second:,.0f} to "
        f"{host.tokens_per_second:,.0f} tokens/s ({speed:.2f} times); a KV cache that holds all has "
        f"{_ms(quantile(full.ttfts, 0.5))} ms and {full.tokens_per_second:,.0f} tokens/s. Where both memories "
        "are one, as on a CPU, a larger KV cache is the better use of it."
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}" if seconds < 0.1 else f"{1e3 * seconds:,.0f}"


def plot(comparison: HostKvComparison, path: Path) -> None:
    """Plot a prefix computed and loaded, and how long the setups' turns waited."""
    from matplotlib import ticker

    with picture(path, columns=2, figsize=(10, 4)) as (left, right):
        tokens = [one.blocks * BLOCK_SIZE for one in comparison.known]
        for field, label, style in (
            ("computed", "computed", "o-"),
            ("loaded", "from host memory", "s-"),
            ("found", "in the KV cache", "^:"),
        ):
            left.plot(tokens, [1e3 * getattr(one, field) for one in comparison.known], style, label=label)
        left.set(xscale="log", yscale="log", xlabel="known prefix (tokens)", ylabel="time to first token (ms)")
        left.set_xticks(tokens, [str(count) for count in tokens])
        left.set_title("A prefix alone")
        for line, style in zip(comparison.lines, ("-", "-", ":"), strict=True):
            shares = [(at + 1) / len(line.ttfts) for at in range(len(line.ttfts))]
            right.plot(
                [1e3 * ttft for ttft in line.ttfts],
                shares,
                style,
                label=f"{line.setup}, median {_ms(quantile(line.ttfts, 0.5))} ms",
            )
        right.set(xscale="log", xlabel="time to first token (ms)", ylabel="share of turns", ylim=(0, 1))
        right.set_title(f"{comparison.conversations} conversations, {comparison.at_once} turns at once")
        for axis in (left.yaxis, right.xaxis):
            axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:,.0f}")
            axis.set_minor_formatter(ticker.NullFormatter())
        for axes in (left, right):
            axes.grid(alpha=0.3)
            axes.legend(fontsize=8)
