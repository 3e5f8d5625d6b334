"""What `auto` would learn from judgements of its answers: regret of several learners on recorded outcomes.

    ROUNDHOUSE_BENCH_DATA=/path/to/data python -m bench.learning

MMLU-Pro questions whose outcomes are known for models of six families come one by one, 10,000 of them in an order that
differs from run to run, the first ones again at the end. Every learner begins with the model of this release, which was
fitted to Llama-2, draws a tier now and then, sees whether the answer was right for a share of the requests, and learns
at certain points. Utility is right answers less the price of their cost at the knob's middle; regret is what the best
choice of each request, known afterwards, has more.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold

from bench.data import data_file, json_lines
from bench.questions import FILE, LabelledQuestion
from bench.report import options, publish, table
from router.evaluation import Interval, Values
from router.features import PromptMessage, extract
from router.off_policy import JudgedAnswer, gain
from router.refit import OFFSET_SPREAD, SLOPE_SPREAD, Opinion, moves
from router.success import Basis, Prediction, calibrated, shipped, standard, vector
from router.tier import NOMINAL, TIERS, Outlook, Terms, ValueSource, choose, price_table, relative

OTHER = "mmlu_pro_other_pools.jsonl.gz"
POOLS = {
    "Llama-2 7B, 13B, 70B": (),
    "Mistral-7B, Mixtral-8x7B, Llama-3-70B": ("Mistral-7B-v0.1", "Mixtral-8x7B-v0.1", "Meta-Llama-3-70B"),
    "Qwen1.5-7B, Yi-34B, Qwen1.5-72B": ("Qwen1.5-7B-Chat", "Yi-34B", "Qwen1.5-72B-Chat"),
    "Phi-3-mini, Llama-3.1-8B, Llama-3.1-70B": (
        "Phi-3-mini-4k-instruct",
        "Meta-Llama-3_1-8B-Instruct",
        "Meta-Llama-3_1-70B-Instruct",
    ),
}
"""Small, medium and large model; Llama-2's outcomes stand with the questions."""
REQUESTS = 10_000
SHOWN = (1000, REQUESTS)
LEARNS_AT = (200, 500, 1000, 2000, 4000, 7000, REQUESTS)
EXPLORE = 0.1
JUDGED = (1.0, 0.1)
"""Share of the answers that somebody judges."""
RUNS = 3
FOLDS = 5
WEIGHT_SPREAD = 0.1
"""Standard deviation of the prior on a weight of a feature, of which all have the spread 1."""
NEWTON_STEPS = 6
BONUS = 0.5
"""Standard errors that LinUCB adds to what it believes."""
Tiers = NDArray[np.intp]


class JudgedRows(Struct, frozen=True):
    """Judged answers; arrays with a request in each row."""

    rows: Tiers
    tiers: Tiers
    good: Values
    propensities: Values


class RecordedTraffic(Struct, frozen=True):
    """Questions, and what three models answer."""

    inputs: Values
    """Features, scaled by their spread."""
    shipped: Values
    """Probabilities by this release's model."""
    right: Values


class Learner(Protocol):
    """Returns the value of each tier for all questions, given the feedback so far."""

    def __call__(self, traffic: RecordedTraffic, feedback: JudgedRows) -> Values: ...


def _odds(probabilities: Values) -> Values:
    inside = np.clip(probabilities, 1e-6, 1 - 1e-6)
    return np.asarray(np.log(inside / (1 - inside)))


def _sigmoid(odds: Values) -> Values:
    return np.asarray(1 / (1 + np.exp(-np.clip(odds, -30, 30))))


def sigmoids(traffic: RecordedTraffic, feedback: JudgedRows) -> Values:
    """As `roundhouse route refit`: slope and offset of each tier."""
    opinions = [
        Opinion(TIERS[tier], float(traffic.shipped[row, tier]), float(propensity), bool(good))
        for row, tier, good, propensity in zip(
            feedback.rows, feedback.tiers, feedback.good, feedback.propensities, strict=True
        )
    ]
    moved = moves(opinions).astype(np.float32)
    return calibrated(traffic.shipped.astype(np.float32), moved).astype(np.float64)


def weights(traffic: RecordedTraffic, feedback: JudgedRows) -> Values:
    """Slope and offset of each tier, and weights of features: common ones and each tier's own, all around those of the
    model (a normal prior); the likeliest ones by Newton's method."""
    odds = _odds(traffic.shipped)
    design = [_design(traffic.inputs, odds[:, tier], tier) for tier in range(len(TIERS))]
    rows = np.stack(design)[feedback.tiers, feedback.rows]
    start, at = odds[feedback.rows, feedback.tiers], np.zeros(rows.shape[1])
    for _ in range(NEWTON_STEPS):
        now = _sigmoid(start + rows @ at)
        gradient = rows.T @ (now - feedback.good) + at
        hessian = rows.T @ (rows * (now * (1 - now))[:, None]) + np.eye(len(at))
        at -= np.linalg.solve(hessian, gradient)
    return np.stack([_sigmoid(odds[:, tier] + design[tier] @ at) for tier in range(len(TIERS))], axis=1)


def _design(inputs: Values, odds: Values, tier: int) -> Values:
    """Return the columns of a tier, by rows of questions, each scaled by the spread of the prior on its coefficient."""
    width = inputs.shape[1]
    found = np.zeros((len(inputs), 2 * len(TIERS) + (1 + len(TIERS)) * width))
    found[:, 2 * tier], found[:, 2 * tier + 1] = SLOPE_SPREAD * odds, OFFSET_SPREAD
    own = 2 * len(TIERS) + (1 + tier) * width
    found[:, 2 * len(TIERS) : 2 * len(TIERS) + width] = found[:, own : own + width] = WEIGHT_SPREAD * inputs
    return found


def linucb(traffic: RecordedTraffic, feedback: JudgedRows) -> Values:
    """A bandit that begins with nothing: ridge regression of each tier's outcomes on the features, and a bonus for what
    it is unsure of (Li et al., WWW 2010)."""
    inputs = np.hstack([np.ones((len(traffic.inputs), 1)), traffic.inputs])
    values = []
    for tier in range(len(TIERS)):
        own = feedback.tiers == tier
        seen = inputs[feedback.rows[own]]
        inverse = np.linalg.inv(seen.T @ seen + np.eye(inputs.shape[1]))
        unsure = np.sqrt(np.einsum("ij,jk,ik->i", inputs, inverse, inputs))
        values.append(inputs @ (inverse @ (seen.T @ feedback.good[own])) + BONUS * unsure)
    return np.stack(values, axis=1)


LEARNERS: dict[str, Learner] = {
    "slopes and offsets, as `route refit`": sigmoids,
    "weights": weights,
    "LinUCB": linucb,
}


def all_outcomes(traffic: RecordedTraffic) -> Values:
    """Return probabilities by models that know the outcomes of all tiers for four fifths of the questions."""
    found = np.zeros_like(traffic.right)
    for rest, fold in KFold(FOLDS, shuffle=True, random_state=0).split(traffic.inputs):
        for tier in range(len(TIERS)):
            model = LogisticRegression(C=0.1).fit(traffic.inputs[rest], traffic.right[rest, tier])
            found[fold, tier] = model.predict_proba(traffic.inputs[fold])[:, 1]
    return found


def _order(traffic: RecordedTraffic, seed: int) -> Tiers:
    return np.resize(np.random.default_rng(seed).permutation(len(traffic.right)), REQUESTS)


def run(traffic: RecordedTraffic, learner: Learner, charged: Values, judged: float, seed: int) -> Values:
    """Return the regret of each request of one run. Args: charged: price of each tier's cost."""
    order, generator = _order(traffic, seed), np.random.default_rng([seed, 1])
    explored, said = generator.random(REQUESTS) < EXPLORE, generator.random(REQUESTS) < judged
    drawn = generator.integers(0, len(TIERS), REQUESTS)
    best = (traffic.right - charged).max(axis=1)
    tiers = np.zeros(REQUESTS, np.intp)
    propensities = np.zeros(REQUESTS)

    def feedback(end: int) -> JudgedRows:
        rows = np.flatnonzero(said[:end])
        asked, given = order[rows], tiers[rows]
        return JudgedRows(asked, given, traffic.right[asked, given], propensities[rows])

    begin = 0
    for end in LEARNS_AT:
        part = slice(begin, end)
        chosen = np.argmax(learner(traffic, feedback(begin)) - charged, axis=1)[order[part]]
        tiers[part] = np.where(explored[part], drawn[part], chosen)
        propensities[part] = EXPLORE / len(TIERS) + (1 - EXPLORE) * (tiers[part] == chosen)
        begin = end
    return np.asarray(best[order] - traffic.right[order, tiers] + charged[tiers])


class RegretLine(Struct, frozen=True):
    """One learner on one set of models."""

    models: str
    learner: str
    judged: float
    """Share of the answers that were judged; 0 where none count."""
    regret: list[tuple[float, float, float]]
    """Mean regret of a request up to each of `SHOWN`; mean, least and most over the runs."""


class GainLine(Struct, frozen=True):
    """Off-policy estimate of what a learner gains, from the log of requests that the release's model has routed."""

    models: str
    learner: str
    judged: int
    """Judged answers, of which two thirds are learnt from and the others estimate."""
    estimate: Interval
    truth: float
    """The gain on all questions, by their outcomes."""


class LearningResults(Struct, frozen=True):
    date: str
    price: float
    lines: list[RegretLine]
    gains: list[GainLine]


class OtherOutcomes(Struct, frozen=True):
    """Outcomes of models of other families for one question."""

    id: int
    correct: dict[str, int]


def read_traffic() -> dict[str, RecordedTraffic]:
    """Read the questions and the outcomes of each set of models."""
    questions = list(json_lines(data_file(FILE), LabelledQuestion))
    others = {each.id: each.correct for each in json_lines(data_file(OTHER), OtherOutcomes)}
    model = shipped()
    vectors = np.stack([vector(extract([PromptMessage("user", each.prompt)])) for each in questions])
    believed = model.estimate(vectors, None)[0].astype(np.float64)
    inputs = standard(vectors, model.arrays).astype(np.float64)
    found = {}
    for name, models in POOLS.items():
        # A few questions lack the outcome of a model.
        outcomes: list[Mapping[str, float]] = [others[each.id] if models else each.correct for each in questions]
        rows = [row for row, known in enumerate(outcomes) if known.keys() >= set(models or TIERS)]
        right = np.array([[outcomes[row][one] for one in models or TIERS] for row in rows], np.float64)
        found[name] = RecordedTraffic(inputs[rows], believed[rows], right)
    return found


def regrets(name: str, traffic: RecordedTraffic, charged: Values) -> list[RegretLine]:
    """Run every learner on one set of models."""

    def line(learner: str, judged: float, runs: Sequence[Values]) -> RegretLine:
        means = [[float(regret[:until].mean()) for regret in runs] for until in SHOWN]
        return RegretLine(name, learner, judged, [(float(np.mean(part)), min(part), max(part)) for part in means])

    found = []
    for learner, learn in LEARNERS.items():
        for judged in JUDGED:
            runs = [run(traffic, learn, charged, judged, seed) for seed in range(RUNS)]
            found.append(line(learner, judged, runs))
    best, orders = (traffic.right - charged).max(axis=1), [_order(traffic, seed) for seed in range(RUNS)]
    known = np.argmax(all_outcomes(traffic) - charged, axis=1)
    fixed = {
        "the model as it is, nothing drawn": np.argmax(traffic.shipped - charged, axis=1),
        "all outcomes of other questions, nothing drawn": known,
        **{f"always {tier}": np.full(len(best), row) for row, tier in enumerate(TIERS)},
    }
    for learner, tiers in fixed.items():
        regret = best - (traffic.right - charged)[np.arange(len(best)), tiers]
        found.append(line(learner, 0.0, [regret[order] for order in orders]))
    return found


def gains(name: str, traffic: RecordedTraffic, price: float, costs: tuple[float, float, float]) -> list[GainLine]:
    """Estimate what learners gain from the log of one run, and compare with what they do gain."""
    terms, generator = Terms(price, price, costs, explore=EXPLORE), np.random.default_rng(0)
    choices = [
        choose(Outlook(ValueSource.LEARNT, 0.0, Prediction(tuple(row), Basis.FEATURES, 0.0)), terms, draw=draw)
        for row, draw in zip(traffic.shipped.tolist(), generator.random(len(traffic.shipped)), strict=True)
    ]
    tiers = np.array([TIERS.index(choice.tier) for choice in choices])
    order, utility = generator.permutation(len(choices)), traffic.right - price * np.array(costs)
    everything, charged = np.arange(len(choices)), price * np.array(costs)
    found = []
    for judged in (1000, len(choices)):
        rows, rest = np.split(order[:judged], [2 * judged // 3])
        propensities = np.array([choices[row].propensity for row in rows])
        feedback = JudgedRows(rows, tiers[rows], traffic.right[rows, tiers[rows]], propensities)
        for learner in ("slopes and offsets, as `route refit`", "weights"):
            believed = LEARNERS[learner](traffic, feedback)
            new, old = (np.argmax(each - charged, axis=1) for each in (believed, traffic.shipped))
            answers = [
                JudgedAnswer(choices[row], tuple(traffic.shipped[row]), bool(traffic.right[row, tiers[row]]))
                for row in rest
            ]
            truth = float((utility[everything, new] - utility[everything, old]).mean())
            estimate = gain(answers, believed[rest])
            assert estimate is not None
            found.append(GainLine(name, learner, judged, estimate, truth))
    return found


def markdown(results: LearningResults) -> str:
    """Return the page."""
    lines = [
        "# Learning from judgements of answers",
        "",
        f"`python -m bench.learning`, {results.date}. Requests are MMLU-Pro questions with recorded outcomes "
        f"(`bench/data.py`). The model begins as fitted to Llama-2, {EXPLORE:.0%} of the tiers are drawn, and a right "
        f"answer is worth {results.price:.1f} answers of the large tier. Regret is of a request, in right answers, "
        f"beside its best choice, which nobody knows before; mean of {RUNS} orders (least, most).",
    ]
    for models in dict.fromkeys(line.models for line in results.lines):
        rows = [
            f"{each.learner} | {f'{each.judged:.0%}' if each.judged else '-'} | "
            + " | ".join(f"{mean:.3f} ({least:.3f}, {most:.3f})" for mean, least, most in each.regret)
            for each in results.lines
            if each.models == models
        ]
        header = "learner | judged | " + " | ".join(f"first {until:,}" for until in SHOWN)
        lines += ["", f"## {models}", "", *table(header, rows)]
    rows = [
        f"{each.models} | {each.learner} | {each.judged:,} | {each.estimate} | {each.truth:+.3f}"
        for each in results.gains
    ]
    lines += [
        "",
        "## What the log says that a learner gains",
        "",
        "The model of the release has routed; two thirds of the judged answers teach, the others estimate the gain per "
        "request (`router/off_policy.py`, 95 % interval). *True*: the same by all outcomes.",
        "",
        *table("models | learner | judged answers | estimate | true", rows, words=2),
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    arguments = options(__doc__).parse_args(argv)
    costs = relative(NOMINAL)
    price = price_table(shipped().calibration, costs)[50]
    charged = price * np.array(costs)
    lines: list[RegretLine] = []
    found: list[GainLine] = []
    for name, traffic in read_traffic().items():
        lines += regrets(name, traffic, charged)
        found += gains(name, traffic, price, costs)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    results = LearningResults(today, 1 / price, lines, found)
    publish(arguments.output / "learning", markdown(results), results)


if __name__ == "__main__":
    main()
