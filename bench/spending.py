"""What `auto` spends: at each position of the quality knob, and under a budget. For `bench.router`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.questions import TIERS, Questions
from bench.report import table
from router.budget import Budget, charge
from router.evaluation import Interval, Values, choices, interval
from router.expense import AnswerLengths, answered
from router.success import shipped
from router.tier import NOMINAL, price_table, relative

COSTS = relative(NOMINAL)
BUDGETS = (0.2, 0.35, 0.5, 0.65, 0.8)
POSITIONS = (0, 10, 25, 40, 50, 60, 75, 90, 100)
Rows = NDArray[np.intp]


class Position(msgspec.Struct):
    """Results of one position of the knob."""

    quality: int
    spent: Interval
    """Share of what the dearest tier would have cost."""
    right: Interval
    tiers: tuple[float, float, float]
    """Share of the questions that each tier answers."""


def knob(questions: Questions, drawn: Values) -> list[Position]:
    """Measure this release's model file and its table of prices, on questions that it has not seen."""
    model, every = shipped(), np.arange(len(questions))
    estimated, _, _ = model.estimate(questions.examples.vectors, model.project(questions.examples.embeddings))
    believed = estimated.astype(np.float64)
    costs = np.array(COSTS) * (questions.prompt_tokens[:, None] + questions.output_tokens)
    outcomes = questions.examples.outcomes.astype(np.float64)
    table = price_table(model.calibration, COSTS)
    positions = []
    for quality in POSITIONS:
        tiers = choices(believed, np.broadcast_to(COSTS, believed.shape), table[quality])
        spent, right, dearest = costs[every, tiers], outcomes[every, tiers], costs[:, -1]
        small, medium, large = (np.bincount(tiers, minlength=len(TIERS)) / len(tiers)).tolist()
        positions.append(
            Position(
                quality,
                interval(np.array([spent.sum() / dearest.sum()]), (drawn @ spent) / (drawn @ dearest)),
                interval(np.array([right.mean()]), drawn @ right / len(right)),
                (small, medium, large),
            )
        )
    return positions


def knob_table(positions: Sequence[Position]) -> str:
    """Return the table in Markdown."""
    rows = (
        f"{each.quality} | {_percent(each.spent)} | {each.right} | {' | '.join(f'{share:.0%}' for share in each.tiers)}"
        for each in positions
    )
    return "\n".join(table("quality | spent | right answers | small | medium | large", rows, words=6))


class Spent(msgspec.Struct):
    """Results of a budget. Intervals are over streams of resampled questions."""

    budget: float
    order: str
    realised: Interval
    quality: Interval
    fixed: Interval
    """Share that a price fixed beforehand would have spent."""


def budgets(questions: Questions, believed: Values, streams: int) -> list[Spent]:
    """Send streams of questions through the budget's price, shuffled and with one category after the other.

    The price starts at what calibration suggests: that of the frozen questions, while others are judged.
    """
    table = price_table(believed[questions.frozen], COSTS)
    stream = np.flatnonzero(~questions.frozen)
    generator = np.random.default_rng(0)
    drawn = [stream, *(generator.choice(stream, len(stream)) for _ in range(streams))]
    results = []
    for share in BUDGETS:
        price = table[round(100 * (share - COSTS[0]) / (1 - COSTS[0]))]
        for order in ("shuffled", "by category"):
            spent = np.array(
                [_spend(questions, believed, _order(questions, rows, order), share, price) for rows in drawn]
            )
            figures = (interval(column[:1], column[1:]) for column in spent.T)
            results.append(Spent(share, order, *figures))
    return results


def _order(questions: Questions, rows: Rows, order: str) -> Rows:
    rows = np.random.default_rng(1).permutation(rows)
    return rows if order == "shuffled" else rows[np.argsort(questions.categories[rows], kind="stable")]


def _spend(
    questions: Questions, believed: Values, rows: Rows, share: float, price: float
) -> tuple[float, float, float]:
    """Return the realised share, quality, and the share that a fixed price would have spent, of one stream.

    Shares are of what the same questions would have cost at the dearest tier, not of the tokens that were used.
    """
    prompts, answers = questions.prompt_tokens[rows], questions.output_tokens[rows]
    tokens = prompts[:, None] + answers
    outcomes, probabilities = questions.examples.outcomes[rows], believed[rows].tolist()
    state, lengths, right = Budget(share, price), AnswerLengths(), 0.0
    for number, row in enumerate(probabilities):
        tier = cheapest_best(row, state.price)
        dearest = prompts[number] + answers[number, tier] * lengths.ratio(tier)
        state = charge(state, COSTS[tier] * float(tokens[number, tier]), float(dearest))
        lengths = answered(lengths, tier, float(answers[number, tier]))
        right += float(outcomes[number, tier])
    every = np.arange(len(rows))
    still = choices(believed[rows], np.broadcast_to(COSTS, believed[rows].shape), price)
    dearest = float(tokens[:, -1].sum())
    return (
        state.spent / dearest,
        right / len(rows),
        float((np.array(COSTS)[still] * tokens[every, still]).sum()) / dearest,
    )


def cheapest_best(probabilities: Sequence[float], price: float) -> int:
    """Return the tier that `router.tier.choose` takes."""
    order = -1 if price > 0 else 1
    return max(range(len(COSTS)), key=lambda tier: (probabilities[tier] - price * COSTS[tier], order * tier))


def budget_table(spent: Sequence[Spent]) -> str:
    """Return the table in Markdown."""
    rows = (
        f"{each.budget:.0%} | {each.order} | {_percent(each.realised)} | {each.quality} | {_percent(each.fixed)}"
        for each in spent
    )
    lines = table("budget | order | spent | right answers | spent at a fixed price", rows, words=5)
    furthest = max(abs(end / each.budget - 1) for each in spent for end in (each.realised.low, each.realised.high))
    lines += ["", f"The furthest end of an interval of what was spent is {furthest:.1%} of its budget away from it."]
    return "\n".join(lines)


def _percent(figure: Interval) -> str:
    return f"{figure.value:.1%} [{figure.low:.1%}, {figure.high:.1%}]"


KNOB = """The model file of this release on the frozen questions. Spent: of what the dearest tier would have cost."""
BUDGET = """Questions as a stream; the price starts where the frozen questions put it and follows what is spent
(`router/budget.py`). Spent: of what the dearest tier would have cost for the same questions. Intervals are over streams
of resampled questions, each in an order of its own."""
