"""The page of `bench.peek`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from bench.report import Environment, table
from router.evaluation import Interval


class Signal(Struct, frozen=True):
    """What one signal tells by itself."""

    tier: str
    name: str
    questions: int
    right: Interval
    """Probability that a right answer of the tier shows it more than a wrong one (area under the ROC curve)."""
    gap: Interval
    """APGR towards the large tier, lowest signal first."""


class Method(Struct, frozen=True):
    """A figure of one way of believing or routing."""

    name: str
    figure: Interval
    above: Interval
    """The figure less that of the best method that reads the prompt alone, on the same resamples."""


class PeekResults(Struct, frozen=True):
    environment: Environment
    questions: int
    right: list[float]
    signals: list[Signal]
    order: dict[str, list[Method]]
    """APGR by pair of tiers."""
    gain: dict[str, list[Method]]
    """Right answers above a coin of equal cost, on average over all costs, by the cost of a prompt's token."""
    spent: dict[str, list[float]]
    """Mean cost of a peek at the small and the medium tier, as a share of a large answer's, by its length; first with
    prompt tokens that cost as much as others, then at a quarter."""
    seconds: dict[str, dict[int, float]]
    """Median seconds to the first tokens by tier."""


def markdown(results: PeekResults) -> str:
    small, medium, large = results.right
    lines = [
        "# What a small tier's first tokens tell",
        "",
        f"`python -m bench.peek`, {results.environment}. The catalogue's three models on {results.questions} "
        f"questions, which they answer right in {small:.0%}, {medium:.0%} and {large:.0%} of the cases. Half of the "
        "questions teach, the others are judged, and the other way round, in ten splits; 95 % intervals by paired "
        "bootstrap over questions.",
        "",
        "## One signal alone",
        "",
        "*ROC*: probability that a right answer of the tier shows more of it than a wrong one; 0.5 is chance. *APGR*: "
        "of sending questions on to the large tier, lowest signal first; 0.5 is chance. Nothing is learnt.",
        "",
        *table(
            "tier | signal | questions | ROC | APGR",
            [f"{s.tier} | {s.name} | {s.questions} | {s.right} | {s.gap}" for s in results.signals],
            2,
        ),
        "",
        "## With what the prompt tells",
        "",
        "APGR, without costs. *Above*: less that of the best method that reads the prompt alone.",
    ]
    for pair, found in results.order.items():
        lines += ["", f"### {pair.capitalize()}", "", *_methods("probabilities by", "APGR", found)]
    lines += ["", "## At equal cost", "", _EQUAL_COST]
    for share, found in results.gain.items():
        points = [Method(each.name, _points(each.figure), _points(each.above)) for each in found]
        lines += [
            "",
            f"### A prompt's token costs {share} of an answer's",
            "",
            *_methods("routing", "points", points, 1),
        ]
    lines += ["", "## What a peek costs", "", _COSTS, ""]
    rows = [
        f"{count} | " + " | ".join(f"{100 * share:.1f} %" for share in shares)
        for count, shares in results.spent.items()
    ]
    lines += table("tokens | small | medium | small, prompt at 1/4 | medium, prompt at 1/4", rows)
    if not results.seconds:
        return "\n".join(lines) + "\n"
    lines += ["", "Median seconds from sending a question, one at a time:", ""]
    counts = list(next(iter(results.seconds.values())))
    rows = [
        f"{tier} | " + " | ".join(f"{found[count]:.2f}" for count in counts) for tier, found in results.seconds.items()
    ]
    lines += table("tier | " + " | ".join(f"token {count}" for count in counts), rows)
    return "\n".join(lines) + "\n"


_EQUAL_COST = (
    "Points of right answers above a coin of equal cost, on average over all costs from all-small to all-large. A tier "
    "that *begins* gives its first tokens; then the tier is chosen by them, too. *Given up*: the whole answer is "
    "replaced by one of the next tier if its mean log-probability is lower, and the next tier is worth its whole cost."
)
_COSTS = "Mean cost of prompt and first tokens at a tier, as a share of an answer of the large tier."


def _points(figure: Interval) -> Interval:
    return Interval(100 * figure.value, 100 * figure.low, 100 * figure.high)


def _methods(header: str, figure: str, found: Sequence[Method], digits: int = 3) -> list[str]:
    def shown(value: Interval, sign: str = "") -> str:
        form = f"{sign}.{digits}f"
        return f"{value.value:{form}} [{value.low:{form}}, {value.high:{form}}]"

    return table(
        f"{header} | {figure} | above", [f"{m.name} | {shown(m.figure)} | {shown(m.above, '+')}" for m in found]
    )
