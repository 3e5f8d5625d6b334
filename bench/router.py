"""What the router's learnt choice of tiers is worth, beside simpler ways, on questions with known outcomes.

    ROUNDHOUSE_BENCH_DATA=/path/to/data python -m bench.router [--held-out FILE]

Every probability is of a question that its model had not seen: in five folds by question, and again with each category
left out as a whole. All methods route by the same rule (`router.tier`) at the same prices and differ only in what they
believe. A token costs 7, 13 or 70, the billions of parameters that work on it; of an answer's length the router knows
the mean of the training questions, what counts is the real one. Intervals are paired bootstraps over questions.

`--held-out` judges the model file of this release on other questions of the same format.
"""

from __future__ import annotations

import datetime
import gzip
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, LeaveOneGroupOut

from bench.data import data_file, embed
from bench.questions import FILE, TIERS, Questions, read
from bench.report import options, picture, publish, table
from bench.spending import BUDGET, COSTS, KNOB, budget_table, budgets, knob, knob_table
from router import evaluation
from router.complexity import score
from router.evaluation import Interval, RoutingCurve, Values, interval
from router.features import PromptMessage, extract
from router.fit import trained
from router.success import Array, neighbours, shipped, vector

RESAMPLES = 1000
FOLDS = 5
OURS = "ours"
PAIRS = (("small", "large"), ("small", "medium"), ("medium", "large"))
METHODS = {
    "static mixture": "the mean outcome of each tier, the same for every question",
    "prompt length": "logistic on the length",
    "complexity score": "logistic on `router/complexity.py`",
    "category prior": "mean outcomes of the question's category, which is given",
    "kNN": "mean outcomes of the 100 nearest embeddings",
    "ours, no embedding": "the features alone",
    OURS: "",
}
Rows = NDArray[np.intp]


class Believed(msgspec.Struct):
    """One method's probabilities for every question that it did not learn from."""

    probabilities: Values
    note: str


class Split(msgspec.Struct):
    """All methods under one way of splitting the questions."""

    name: str
    methods: dict[str, Believed]
    expected: Values
    """Costs that the router expects of tiers, (questions, tiers)."""
    familiar: Values
    """Whether the model of the fold finds a question like those it learnt from: with an embedding, and without."""


def probabilities(questions: Questions, splits: Iterator[tuple[Rows, Rows]], name: str) -> Split:
    """Fit every method on each fold's rest, and predict the fold."""
    examples, size = questions.examples, len(questions)
    outcomes = examples.outcomes.astype(np.float64)
    lengths = np.log1p(questions.prompt_tokens)[:, None]
    complexities = np.array([[score(extract([PromptMessage("user", text)])).score] for text in questions.prompts])
    methods = {method: Believed(np.zeros_like(outcomes), note) for method, note in METHODS.items()}
    expected, familiar = np.zeros_like(outcomes), np.zeros((size, 2))
    for rest, fold in splits:
        print(f"{name}: {len(rest)} to learn from, {len(fold)} to judge", file=sys.stderr)

        def say(method: str, values: Values, fold: Rows = fold) -> None:
            methods[method].probabilities[fold] = values

        mean = outcomes[rest].mean(axis=0)
        say("static mixture", np.tile(mean, (len(fold), 1)))
        say("prompt length", _logistic(lengths[rest], outcomes[rest], lengths[fold]))
        say("complexity score", _logistic(complexities[rest], outcomes[rest], complexities[fold]))
        priors = {
            c: outcomes[rest][questions.categories[rest] == c].mean(axis=0) for c in set(questions.categories[rest])
        }
        say("category prior", np.array([priors.get(c, mean) for c in questions.categories[fold]]))
        near, _ = neighbours(examples.embeddings[rest], examples.outcomes[rest], examples.embeddings[fold])
        say("kNN", near.astype(np.float64))
        model = trained(examples.take(rest))
        for column, (method, embeddings) in enumerate(
            ((OURS, examples.embeddings[fold]), ("ours, no embedding", None))
        ):
            believed, strangeness, _ = model.estimate(examples.vectors[fold], model.project(embeddings))
            say(method, believed.astype(np.float64))
            familiar[fold, column] = strangeness <= 1.0
        expected[fold] = costs_of(questions, questions.output_tokens[rest].mean(axis=0))[fold]
    methods["oracle"] = Believed(outcomes, "knows the outcome")
    return Split(name, methods, expected, familiar)


def _logistic(inputs: Values, outcomes: Values, asked: Values) -> Values:
    scale = inputs.mean(axis=0), inputs.std(axis=0) + 1e-9
    models = [LogisticRegression().fit((inputs - scale[0]) / scale[1], column) for column in outcomes.T]
    return np.stack([model.predict_proba((asked - scale[0]) / scale[1])[:, 1] for model in models], axis=1)


def costs_of(questions: Questions, output_tokens: Values) -> Values:
    """Return the cost of each question at each tier: tokens, weighted with the tier's price."""
    return np.asarray((questions.prompt_tokens[:, None] + output_tokens) * np.array(COSTS))


class RouterLine(msgspec.Struct):
    """Results of one method in one split."""

    method: str
    note: str
    area: Interval
    behind: Interval | None
    """Area under our curve less the area under this one's."""
    apgr: list[Interval]
    """Average performance gap recovered, for each of `PAIRS`."""
    brier: Interval
    calibration_error: list[float]
    cost_of_quality: list[Interval]
    """Share of all-large cost for 100, 95 and 90 % of the gap from all-small to all-large quality."""


SHARES = (1.0, 0.95, 0.9)


def judge(questions: Questions, split: Split, drawn: Values) -> tuple[list[RouterLine], dict[str, RoutingCurve]]:
    """Compute the figures of every method, and their curves."""
    outcomes = questions.examples.outcomes.astype(np.float64)
    costs = costs_of(questions, questions.output_tokens)
    curves = {"random": evaluation.random_mixture(outcomes, costs)} | {
        name: evaluation.route_all(believed.probabilities, outcomes, split.expected, costs)
        for name, believed in split.methods.items()
    }
    ours = evaluation.area(curves[OURS]), evaluation.area(curves[OURS], drawn)
    lines = []
    for name, curve in curves.items():
        area = evaluation.area(curve), evaluation.area(curve, drawn)
        known = split.methods.get(name)
        beliefs = known.probabilities if known else np.random.default_rng(1).random(outcomes.shape)
        apgr = []
        for weak, strong in PAIRS:
            a, b = TIERS.index(weak), TIERS.index(strong)
            gain = beliefs[:, b] - beliefs[:, a]
            ends = outcomes[:, a], outcomes[:, b]
            apgr.append(interval(evaluation.apgr(gain, *ends), evaluation.apgr(gain, *ends, drawn)))
        lines.append(
            RouterLine(
                method=name,
                note=known.note if known else "small or large by the toss of a coin",
                area=interval(*area),
                behind=None if name == OURS else interval(ours[0] - area[0], ours[1] - area[1]),
                apgr=apgr,
                brier=interval(evaluation.brier(beliefs, outcomes), evaluation.brier(beliefs, outcomes, drawn)),
                calibration_error=[
                    evaluation.calibration_error(evaluation.reliability(beliefs[:, tier], outcomes[:, tier]))
                    for tier in range(len(TIERS))
                ],
                cost_of_quality=[
                    interval(evaluation.cost_of_quality(curve, share), evaluation.cost_of_quality(curve, share, drawn))
                    for share in SHARES
                ],
            )
        )
    return lines, curves


def markdown(lines: Sequence[RouterLine], outcomes: Values | Array) -> str:
    """Return one split as Markdown."""

    def row(line: RouterLine) -> str:
        name = f"**{line.method}**" if line.method == OURS else line.method
        brier = str(line.brier), " / ".join(f"{error:.3f}" for error in line.calibration_error)
        judged = ("", "") if line.method == "random" else brier
        return " | ".join([name, str(line.area), str(line.behind or ""), *map(str, line.apgr), *judged])

    text = [
        *table(
            "method | area | ours less it | APGR small→large | small→medium | medium→large | Brier | ECE s/m/l",
            map(row, lines),
            words=8,
        ),
        "",
        "Cost of a part of the gap between all-small and all-large quality, as a share of all-large cost:",
        "",
        *table(
            "method | 100 % | 95 % | 90 %",
            (f"{line.method} | {' | '.join(map(str, line.cost_of_quality))}" for line in lines),
            words=4,
        ),
    ]
    means = ", ".join(f"{tier} {value:.3f}" for tier, value in zip(TIERS, outcomes.mean(axis=0), strict=True))
    return "\n".join([f"{len(outcomes)} questions; right answers: {means}.", "", *text])


def notes(lines: Sequence[RouterLine]) -> str:
    return "\n".join(f"- {line.method}: {line.note}" for line in lines if line.note)


def familiarity(questions: Questions, splits: Sequence[Split]) -> str:
    """Return how often the model finds requests like those it learnt from."""
    rows = [f"MMLU-Pro, {split.name} | {_pair(split.familiar.mean(axis=0))}" for split in splits]
    rows += _chat_familiarity()
    return "\n".join(table("requests | with an embedding | without", rows, words=3))


def _chat_familiarity() -> list[str]:
    """Return the row of questions as people ask them in a chat; none without their file."""
    try:
        path = data_file(CHAT)
    except SystemExit:
        return []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["a"] for _, line in zip(range(CHAT_QUESTIONS), lines, strict=False)]
    vectors = np.stack([vector(extract([PromptMessage("user", text)])) for text in texts])
    model = shipped()
    shares = [
        float(np.mean([each.probabilities is not None for each in model.predict_all(vectors, embeddings)]))
        for embeddings in (embed(texts), None)
    ]
    return [f"Quora questions, as people ask in a chat | {_pair(shares)}"]


CHAT, CHAT_QUESTIONS = "qqp_pairs.jsonl.gz", 1000


def _pair(shares: Sequence[float] | Values) -> str:
    return " | ".join(f"{share:.1%}" for share in shares)


def plot(curves: Mapping[str, RoutingCurve], believed: Values, outcomes: Values, title: str, path: Path) -> None:
    """Plot quality over cost, and reliability."""
    with picture(path, columns=2, figsize=(13, 5.5)) as (left, right):
        for name, curve in curves.items():
            if name != "oracle":
                cost = curve.cost.mean(axis=1) / curve.cost[-1].mean()
                width = 2.5 if name == OURS else 1.0
                left.plot(cost, curve.quality.mean(axis=1), label=name, linewidth=width)
        left.set(xlabel="share of all-large cost", ylabel="right answers", title=title)
        left.legend()
        for tier, name in enumerate(TIERS):
            bins = evaluation.reliability(believed[:, tier], outcomes[:, tier])
            right.plot([each.expected for each in bins], [each.observed for each in bins], marker="o", label=name)
        right.plot([0, 1], [0, 1], color="grey", linestyle=":")
        right.set(xlabel="probability", ylabel="right answers", title="reliability of ours, ten bins of equal size")
        right.legend()


def held_out(questions: Questions) -> Split:
    """Judge the model file of this release on questions that it may not have seen."""
    model = shipped()
    outcomes = questions.examples.outcomes.astype(np.float64)
    methods = {"static mixture": Believed(np.tile(model.calibration.mean(axis=0), (len(questions), 1)), "")}
    familiar = np.zeros((len(questions), 2))
    for column, (name, embeddings) in enumerate(((OURS, questions.examples.embeddings), ("ours, no embedding", None))):
        values, strangeness, _ = model.estimate(questions.examples.vectors, model.project(embeddings))
        methods[name] = Believed(values.astype(np.float64), "")
        familiar[:, column] = strangeness <= 1.0
    methods["oracle"] = Believed(outcomes, "")
    expected = costs_of(questions, questions.output_tokens.mean(axis=0))
    return Split("held out", methods, expected, familiar)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--held-out", type=Path, help="other questions for the model file of this release")
    parser.add_argument("--resamples", type=int, default=RESAMPLES)
    chosen = parser.parse_args(arguments)
    if chosen.held_out:
        others = read(chosen.held_out)
        lines, _ = judge(others, held_out(others), evaluation.resamples(len(others), chosen.resamples))
        print(markdown(lines, others.examples.outcomes))
        return
    questions = read(data_file(FILE))
    outcomes = questions.examples.outcomes.astype(np.float64)
    drawn = evaluation.resamples(len(questions), chosen.resamples)
    suite = np.flatnonzero(questions.frozen)
    drawn_suite = evaluation.resamples(len(suite), chosen.resamples)
    rows = np.arange(len(questions))
    splits = [
        probabilities(questions, KFold(FOLDS, shuffle=True, random_state=0).split(rows), "by question"),
        probabilities(questions, LeaveOneGroupOut().split(rows, groups=questions.categories), "by category"),
    ]
    page = [f"# Router: which tier answers, {datetime.datetime.now(datetime.UTC).date().isoformat()}", "", _ABOUT]
    record: dict[str, object] = {}
    for split in splits:
        lines, curves = judge(questions, split, drawn)
        record[split.name] = msgspec.to_builtins(lines)
        page += ["", f"## Kept apart {split.name}", "", markdown(lines, outcomes)]
        picture = f"router-{split.name.replace(' ', '-')}.png"
        plot(curves, split.methods[OURS].probabilities, outcomes, f"kept apart {split.name}", chosen.output / picture)
        page += ["", f"![quality over cost, and reliability]({picture})"]
    page += ["", "## What the methods are", "", notes(lines)]
    turned = knob(questions.take(suite), drawn_suite)
    spent = budgets(questions, splits[0].methods[OURS].probabilities, max(2, chosen.resamples // 10))
    record["knob"], record["budgets"] = msgspec.to_builtins(turned), msgspec.to_builtins(spent)
    page += ["", "## The knob", "", KNOB, "", knob_table(turned), "", "## Budgets", "", BUDGET, "", budget_table(spent)]
    page += ["", "## What is taken for familiar", "", _FAMILIAR, "", familiarity(questions, splits)]
    frozen = questions.take(suite)
    lines, _ = judge(frozen, held_out(frozen), drawn_suite)
    record["frozen suite"] = msgspec.to_builtins(lines)
    page += ["", "## The model file of this release on the frozen suite", "", markdown(lines, frozen.examples.outcomes)]
    publish(chosen.output / "router", "\n".join(page) + "\n", record)


_ABOUT = """`python -m bench.router`: MMLU-Pro questions with the outcomes of Llama-2 7B (small), 13B (medium) and 70B
(large). Area: between all-small quality and the quality-cost curve, as a share of the box up to all-large; 0.5 is a
coin. APGR: the same over the share of questions sent on, for two tiers. ECE: expected calibration error, ten bins. All
with 95 % intervals (paired bootstrap over questions)."""

_FAMILIAR = """Share of requests for which the model gives probabilities. The rest is routed by the complexity score."""


if __name__ == "__main__":
    main()
