"""Draws what `roundhouse route calibrate` found: right answers over cost. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

from router.assessment import AutoFigures, TierEvaluation


def draw_frontier(found: TierEvaluation, path: Path) -> Path:
    """Write the plot: the tiers, the best mixtures of them, `auto` along its knob, and the oracle; return its path."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for pool in found.pools:
        below, above = pool.right.value - pool.right.low, pool.right.high - pool.right.value
        axes.errorbar(pool.spent, pool.right.value, yerr=[[below], [above]], fmt="o", color="black", capsize=3)
        axes.annotate(pool.pool, (pool.spent, pool.right.value), xytext=(6, -12), textcoords="offset points")
    mixed = sorted((each.spent.value, each.coin.value) for auto in _autos(found) for each in auto.positions)
    axes.plot(*zip(*mixed, strict=True), "--", color="gray", label="best mixture of the tiers")
    for auto, label in zip(_autos(found), ("in use", "fitted, on questions apart"), strict=False):
        positions = sorted(auto.positions, key=lambda each: each.spent.value)
        costs = [each.spent.value for each in positions]
        (line,) = axes.plot(costs, [each.right.value for each in positions], marker=".", label=f"auto, {label}")
        low, high = ([getattr(each.right, end) for each in positions] for end in ("low", "high"))
        axes.fill_between(costs, low, high, color=line.get_color(), alpha=0.12)
    axes.plot(found.oracle.spent, found.oracle.right, "*", color="green", label="oracle")
    axes.set(xlabel="cost, of all-large", ylabel="right answers", xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return path


def _autos(found: TierEvaluation) -> list[AutoFigures]:
    return [found.in_use, *([found.fitted] if found.fitted else [])]
