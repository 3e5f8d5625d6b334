"""What answers cost: tokens of the prompt, of its cached part and of the answer, at each tier's rates.

The router charges a request what it is expected to cost, and a budget compares what was spent with what the dearest
tier would have cost, whose answers may be longer or shorter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from router.success import SuccessModel
from router.tier import price_table

FADE = 0.999
"""What is left of an answer's weight after each further answer of its tier."""
PRIOR = 3.0
"""Answers that a tier counts as having given at the mean length of all tiers."""

Three = tuple[float, float, float]


class TokenRates(Struct, frozen=True):
    """Cost of a token at one tier, in a unit that all tiers share."""

    input: float
    cached: float
    """Of a prompt token that the prefix cache holds."""
    output: float

    def cost(self, input: float, cached: float, output: float) -> float:
        """Return the cost of an answer. Args: input: tokens of the prompt, cached ones included."""
        return (input - cached) * self.input + cached * self.cached + output * self.output


Rates = tuple[TokenRates, TokenRates, TokenRates]


def flat(costs: Three) -> Rates:
    """Return rates at which all tokens of a tier cost the same."""
    small, medium, large = (TokenRates(cost, cost, cost) for cost in costs)
    return small, medium, large


class ExpectedCosts(Struct, frozen=True):
    """Expects what an answer costs at each tier, relative to that of an average request at the dearest."""

    rates: Rates
    answers: Three
    """Mean tokens of an answer."""
    unit: float
    """Cost of an average request at the dearest tier."""

    @classmethod
    def learnt(cls, rates: Rates, model: SuccessModel) -> ExpectedCosts | None:
        """Return what a model of success expects; None if it holds no tokens."""
        if model.tokens is None:
            return None
        inputs, answers = model.tokens
        small, medium, large = answers.tolist()
        return cls(rates, (small, medium, large), rates[-1].cost(float(inputs[:, -1].mean()), 0.0, large))

    def of(self, inputs: Sequence[float], *, cached: Three = (0.0, 0.0, 0.0), limit: float | None = None) -> Three:
        """Return the expected costs of one request.

        Args:
            inputs: tokens of its prompt at each tier.
            cached: those of them that are expected in the prefix cache.
            limit: most tokens of the answer.
        """
        small, medium, large = (
            rate.cost(input, min(held, input), answer if limit is None else min(answer, limit)) / self.unit
            for rate, input, held, answer in zip(self.rates, inputs, cached, self.answers, strict=True)
        )
        return small, medium, large


def prices(
    model: SuccessModel, costs: Three, expected: ExpectedCosts | None, most: int | None = None
) -> tuple[float, ...]:
    """Return the price at each position of the quality knob by a model's calibration set, see `price_table`.

    Args:
        costs: of a token at each tier, which count if no costs are expected.
        most: requests of the set that are looked at; None: all.
    """
    every = math.ceil(len(model.calibration) / most) if most else 1
    if expected is None or model.tokens is None:
        return price_table(model.calibration[::every], costs)
    spread = np.array([expected.of(row) for row in model.tokens[0][::every].tolist()])
    return price_table(model.calibration[::every], spread)


class AnswerLengths(Struct, frozen=True):
    """Answers of each tier so far, older ones with less weight."""

    tokens: Three = (0.0, 0.0, 0.0)
    answers: Three = (0.0, 0.0, 0.0)

    def mean(self, tier: int) -> float:
        """Return the mean length at a tier, held back towards that of all tiers; 0 if nothing was answered."""
        overall = sum(self.tokens) / sum(self.answers) if any(self.answers) else 0.0
        return (self.tokens[tier] + PRIOR * overall) / (self.answers[tier] + PRIOR)

    def ratio(self, tier: int, dearest: int = -1) -> float:
        """Return how many times as long the dearest tier's answers are."""
        mean = self.mean(tier)
        return self.mean(dearest) / mean if mean else 1.0


def answered(lengths: AnswerLengths, tier: int, tokens: float) -> AnswerLengths:
    """Return the lengths with one more answer of a tier."""
    sums, counts = list(lengths.tokens), list(lengths.answers)
    sums[tier], counts[tier] = FADE * sums[tier] + tokens, FADE * counts[tier] + 1.0
    return AnswerLengths((sums[0], sums[1], sums[2]), (counts[0], counts[1], counts[2]))
