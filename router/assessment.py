"""What three tiers are worth on questions, and what `auto` makes of them: all figures of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from router.evaluation import Interval, Values, interval
from router.grading import Grader, right
from router.knob import KnobPosition, RoutedQuestions, RouterComparison, coin, compare, positions
from router.pairwise import JudgeFigures
from router.questions import AnswerKey, PoolAnswer, Question


class GradedAnswers(Struct, frozen=True):
    """Graded answers of all pools; arrays of shape (questions, pools)."""

    pools: tuple[str, ...]
    models: tuple[str, ...]
    """Model that answered for each pool."""
    right: Values
    """NaN where a question has no grader, until a judge has compared the answers (`router.pairwise`)."""
    input_tokens: Values
    output_tokens: Values
    seconds: Values
    cut: Values
    """1 where an answer ended at its limit of tokens."""
    characters: Values

    @property
    def tokens(self) -> Values:
        return np.asarray(self.input_tokens + self.output_tokens)

    def take(self, rows: NDArray[np.intp]) -> GradedAnswers:
        """Return those to some of the questions."""
        fields = msgspec.structs.asdict(self).items()
        return msgspec.structs.replace(
            self, **{name: value[rows] for name, value in fields if isinstance(value, np.ndarray)}
        )


class PoolFigures(Struct, frozen=True):
    """Figures of one pool."""

    pool: str
    model: str
    right: Interval
    spent: float
    """Cost as a share of the dearest pool's."""
    input_tokens: float
    """Mean tokens of a prompt."""
    output_tokens: float
    seconds: float
    """Mean seconds of an answer, with as many at the same time as were asked for."""
    cut: float
    """Share of answers that ended at their limit of tokens."""
    above: float
    """`right` less what the best mixture of the other pools answers for the same cost; below 0 the pool is not on the
    frontier."""
    kinds: dict[str, float]
    """Share of right answers by kind of question."""


class Oracle(Struct, frozen=True):
    """The cheapest right answer of each question, known afterwards; the cheapest pool where none is right."""

    right: float
    spent: float


class AutoFigures(Struct, frozen=True):
    """What `auto` does with one model of success."""

    model: str
    """The model, in words."""
    familiar: float
    """Share of the questions that it gives probabilities for."""
    positions: list[KnobPosition]


class TierEvaluation(Struct, frozen=True):
    """All figures of an evaluation."""

    questions: int
    kinds: dict[str, int]
    """Number of questions by kind."""
    costs: tuple[float, ...]
    """Costs of a token at each pool, relative to the dearest."""
    pools: list[PoolFigures]
    oracle: Oracle
    in_use: AutoFigures
    fitted: AutoFigures | None = None
    """Every question judged by a model that was fitted without its fold."""
    comparison: RouterComparison | None = None
    judge: JudgeFigures | None = None
    """Null if every question has a grader."""
    notes: tuple[str, ...] = ()


def grade(
    questions: Sequence[Question], pools: Sequence[str], answers: Mapping[AnswerKey, PoolAnswer]
) -> GradedAnswers:
    """Grade what the pools answered."""
    found = [[answers[each.id, each.digest, pool] for pool in pools] for each in questions]

    def table(value: Callable[[PoolAnswer], float]) -> Values:
        return np.array([[value(answer) for answer in row] for row in found], np.float64)

    def graded(grader: Grader | None, answer: PoolAnswer) -> float:
        return float("nan") if grader is None else right(grader, answer.answer)

    rights = [[graded(each.grade, answer) for answer in row] for each, row in zip(questions, found, strict=True)]
    return GradedAnswers(
        pools=tuple(pools),
        models=tuple(found[-1][column].model for column in range(len(pools))),
        right=np.array(rights, np.float64),
        input_tokens=table(lambda answer: answer.input_tokens),
        output_tokens=table(lambda answer: answer.output_tokens),
        seconds=table(lambda answer: answer.seconds),
        cut=table(lambda answer: answer.finish == "length"),
        characters=table(lambda answer: len(answer.answer)),
    )


def assess(
    questions: Sequence[Question],
    graded: GradedAnswers,
    costs: tuple[float, float, float],
    spent: Values,
    in_use: tuple[str, float, RoutedQuestions],
    fitted: tuple[str, float, RoutedQuestions] | None,
    drawn: Values,
) -> TierEvaluation:
    """Compute all figures.

    Args:
        costs: of a token at each pool, relative to the dearest.
        spent: what each answer cost, (questions, pools).
        in_use, fitted: name of a model of success, share of questions familiar to it, and what `auto` did with it.
        drawn: resamples of the questions.
    """
    kinds: dict[str, list[int]] = {}
    for row, question in enumerate(questions):
        kinds.setdefault(question.kind, []).append(row)

    def auto(name: str, familiar: float, routed: RoutedQuestions) -> AutoFigures:
        return AutoFigures(name, familiar, positions(routed, graded.right, spent, drawn))

    return TierEvaluation(
        questions=len(questions),
        kinds={kind: len(rows) for kind, rows in kinds.items()},
        costs=costs,
        pools=[_pool(graded, spent, column, kinds, drawn) for column in range(len(graded.pools))],
        oracle=_oracle(graded.right, spent),
        in_use=auto(*in_use),
        fitted=None if fitted is None else auto(*fitted),
        comparison=None if fitted is None else compare(fitted[2], in_use[2], graded.right, spent, drawn),
    )


def _pool(
    graded: GradedAnswers, spent: Values, column: int, kinds: Mapping[str, Sequence[int]], drawn: Values
) -> PoolFigures:
    rights = graded.right[:, column]
    others = [other for other in range(len(graded.pools)) if other != column]
    cost, quality = spent.mean(axis=0)[None], graded.right.mean(axis=0)[None]
    mixed = coin(cost[:, column : column + 1], cost[:, others], quality[:, others])
    # A cost below all others': no mixture of them is as cheap.
    best = float(mixed[0, 0]) if cost[0, column] >= cost[0, others].min() else 0.0
    return PoolFigures(
        pool=graded.pools[column],
        model=graded.models[column],
        right=interval(rights.mean(keepdims=True), drawn @ rights / len(rights)),
        spent=float(cost[0, column] / cost.max()),
        input_tokens=float(graded.input_tokens[:, column].mean()),
        output_tokens=float(graded.output_tokens[:, column].mean()),
        seconds=float(graded.seconds[:, column].mean()),
        cut=float(graded.cut[:, column].mean()),
        above=float(rights.mean()) - best,
        kinds={kind: float(rights[list(rows)].mean()) for kind, rows in kinds.items()},
    )


def _oracle(rights: Values, spent: Values) -> Oracle:
    cheapest_right: NDArray[np.intp] = np.where(rights > 0, spent, np.inf).argmin(axis=1)
    solved = rights.max(axis=1) > 0
    taken = np.where(solved, cheapest_right, spent.argmin(axis=1))
    return Oracle(
        right=float(solved.mean()),
        spent=float(spent[np.arange(len(spent)), taken].sum() / spent.sum(axis=0).max()),
    )
