"""Charts as SVG: lines and points over linear or logarithmic axes, in a few hundred bytes and without a library."""

from __future__ import annotations

import html
import math
import sys
from collections.abc import Callable, Sequence

import msgspec

WIDTH, HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 34, 46
_COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df")
Point = tuple[float, float]


class ChartLine(msgspec.Struct, frozen=True):
    """Values of one name."""

    name: str
    points: Sequence[Point]
    scattered: bool = False
    """Dots instead of a line."""


class ChartAxis(msgspec.Struct, frozen=True):
    """One direction of a chart."""

    label: str
    logarithmic: bool = False
    at_least: float | None = None
    """A value that must be seen."""


def chart(title: str, x: ChartAxis, y: ChartAxis, lines: Sequence[ChartLine], bound: float | None = None) -> str:
    """Return a chart; `bound` is a value of `y` that is drawn as a dashed line. Empty without any points."""
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    x_ticks, to_x = _scale(x, [each for each, _ in points], _LEFT, WIDTH - _RIGHT)
    ys = [each for _, each in points] + ([] if bound is None else [bound])
    y_ticks, to_y = _scale(y, ys, HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}" '
        'xmlns="http://www.w3.org/2000/svg">',
        f'<text x="{_LEFT}" y="16" class="title">{html.escape(title)}</text>',
    ]
    for tick in x_ticks:
        at = to_x(tick)
        parts.append(f'<line x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{HEIGHT - _BOTTOM}" class="grid"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - _BOTTOM + 15}" text-anchor="middle">{tick:g}</text>')
    for tick in y_ticks:
        at = to_y(tick)
        parts.append(f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{WIDTH - _RIGHT}" y2="{at:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>')
    middle = (_TOP + HEIGHT - _BOTTOM) / 2
    parts.append(f'<text x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{_text(x)}</text>')
    parts.append(
        f'<text transform="translate(14 {middle:.0f}) rotate(-90)" text-anchor="middle">{html.escape(y.label)}</text>'
    )
    if bound is not None:
        at = to_y(bound)
        parts.append(f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{WIDTH - _RIGHT}" y2="{at:.1f}" class="bound"/>')
    for number, line in enumerate(lines):
        parts += _drawn(line, number, to_x, to_y)
    return "".join([*parts, "</svg>"])


def _drawn(line: ChartLine, number: int, to_x: Callable[[float], float], to_y: Callable[[float], float]) -> list[str]:
    colour, left = _COLOURS[number % len(_COLOURS)], WIDTH - _RIGHT - 110 * (number + 1)
    placed = [f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in line.points]
    parts = [
        f'<rect x="{left}" y="8" width="10" height="10" fill="{colour}"/>',
        f'<text x="{left + 14}" y="17">{html.escape(line.name)}</text>',
    ]
    if line.scattered:
        # One path of zero-length strokes with round ends: a circle element each would be five times as long.
        path = "".join(f"M{each}h0" for each in placed)
        return [*parts, f'<path d="{path}" stroke="{colour}" stroke-width="4" stroke-linecap="round" opacity=".5"/>']
    return [*parts, f'<polyline points="{" ".join(placed)}" fill="none" stroke="{colour}" stroke-width="2"/>']


def _text(axis: ChartAxis) -> str:
    return html.escape(axis.label)


def _scale(
    axis: ChartAxis, values: Sequence[float], begin: float, end: float
) -> tuple[list[float], Callable[[float], float]]:
    """Return the ticks of an axis, and where on the page a value is."""
    if axis.logarithmic:
        positive = [each for each in values if each > 0] or [1.0]
        low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        high = max(high, low + 1)
        ticks = [10.0**power for power in range(low, high + 1)]
        return ticks, lambda value: begin + (end - begin) * (math.log10(max(value, 10.0**low)) - low) / (high - low)
    lowest = min(values) if axis.at_least is None else min(axis.at_least, *values)
    # Ticks that are too close to each other for floating point would be none.
    step = _step(max((max(values) - lowest) / 5, 1e-9 * max(map(abs, values))))
    first, last = math.floor(lowest / step), max(math.ceil(max(values) / step), math.floor(lowest / step) + 1)
    least, most = first * step, last * step
    return (
        [each * step for each in range(first, last + 1)],
        lambda value: begin + (end - begin) * (value - least) / (most - least),
    )


def _step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below `least`."""
    if least < sys.float_info.min:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(each * power for each in (1, 2, 5, 10) if each * power >= least * (1 - 1e-9))
