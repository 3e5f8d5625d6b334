"""What the first tokens of a small tier's answer tell about where a question belongs, and whether that pays.

    roundhouse route calibrate --max-tokens 160      the answers of all tiers, in route-outcomes.jsonl
    python -m bench.peek --outcomes route-outcomes.jsonl

The catalogue's three models and the questions of `deploy/questions`. Half of them teach, the other half is judged and
the other way round, in ten splits; figures are means over the splits, intervals are paired bootstraps over questions.
A peek asks a tier for its first tokens: they are shown if the tier is chosen then, else thrown away and paid in vain.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench import peek_evidence
from bench.data import embed
from bench.peek_beliefs import COUNTS, METHODS, OURS, Rows, Seen, agreement, beliefs, by_prompt, halves, signals
from bench.peek_evidence import LONGEST, PEEK, FirstTokens, TierEvidence
from bench.peek_policies import (
    LARGE,
    MEDIUM,
    OF_BOTH,
    OF_SMALL,
    SMALL,
    PeekBeliefs,
    PeekCosts,
    doubtful,
    route,
    straight,
)
from bench.peek_report import Method, PeekResults, Signal, markdown
from bench.real_files import real_file
from bench.report import Environment, options, publish
from gateway.cli.calibrate import EXAM
from router.assessment import GradedAnswers, grade
from router.crossfit import features, vectors
from router.evaluation import Interval, Values, apgr, interval, resamples
from router.fit import Examples
from router.knob import RoutedQuestions, means
from router.questions import AnswerKey, PoolAnswer, Question, read_answers, read_questions
from router.tier import TIERS

MODELS = dict(zip(TIERS, "ABC", strict=True))
COSTS = (0.135, 0.5, 1.5)
"""Costs of a token: billions of parameters, as those of the pools."""
BOUNDS = (-0.2, -0.5, -1.0)
"""Mean log-probabilities below which a whole answer is given up."""
PAIRS = ((SMALL, LARGE), (SMALL, MEDIUM), (MEDIUM, LARGE))
SHOWN = (4, PEEK, LONGEST)
"""Numbers of first tokens that are routed by."""
PROMPT_SHARES = (1.0, 0.25)
"""Costs of a prompt's token beside those of an answer's: alike, as pools count; and a quarter, as many sellers ask."""
TIMED = 8
"""Questions whose first tokens are timed."""
TIMES = (1, 4, PEEK)
RESAMPLES = 1000


def seen_of(
    questions: Sequence[Question],
    graded: GradedAnswers,
    found: dict[tuple[str, str, str], TierEvidence],
    pools: Sequence[str],
) -> Seen:
    prompts = [each.prompt for each in questions]
    examples = Examples(vectors(features(prompts)), embed(prompts), graded.right.astype(np.float32))

    evidence = [[found[each.id, each.digest, pool] for each in questions] for pool in pools]
    kinds = np.array([each.kind for each in questions])
    return Seen(examples, kinds, np.log(graded.input_tokens[:, LARGE]), evidence)


def signal_figures(seen: Seen, drawn: Values) -> list[Signal]:
    """Return what each signal of a tier is worth by itself, with nothing learnt."""
    found = []
    for tier, (evidence, pair) in enumerate(zip(seen.evidence, ((SMALL, LARGE), (MEDIUM, LARGE)), strict=False)):
        columns: dict[str, list[float]] = {}
        for count in (1, PEEK, LONGEST):
            rows = [signals(each, count) for each in evidence]
            columns |= {f"{signal}, {first(count)}": [row[signal] for row in rows] for signal in rows[0]}
        asked = np.array([number for number, each in enumerate(evidence) if each.samples], np.intp)
        columns["two samples agree"] = [agreement(evidence[row]) for row in asked]
        for number, what in enumerate((f"its first {PEEK} tokens", "its whole answer")):
            columns[f"says Yes of {what}"] = [each.says[number] for each in evidence if each.says]
        for name, column in columns.items():
            values, of = np.array(column), np.arange(len(evidence)) if len(column) == len(evidence) else asked
            if len(values) and np.ptp(values) > 0:
                weak, strong, weights = seen.right[of, pair[0]], seen.right[of, pair[1]], drawn[:, of]
                gap = interval(apgr(-values, weak, strong), apgr(-values, weak, strong, weights))
                found.append(Signal(TIERS[tier], name, len(values), _auroc(values, weak, weights), gap))
    return found


def _auroc(values: Values, right: Values, drawn: Values) -> Interval:
    """Return the probability that a right answer has a higher value than a wrong one."""
    good, bad = right > 0, right == 0
    order = np.sign(values[good][:, None] - values[bad][None]) / 2 + 0.5

    def mean(weights: Values) -> Values:
        by_bad = np.einsum("sg,gb,sb->s", weights[:, good], order, weights[:, bad], optimize=True)
        return np.asarray(by_bad / (weights[:, good].sum(axis=1) * weights[:, bad].sum(axis=1)))

    return interval(mean(np.ones((1, len(values)))), mean(drawn))


def costs_of(graded: GradedAnswers, count: int, prompt_share: float) -> PeekCosts:
    """Return what answers and their first tokens cost."""
    prompt, output = prompt_share * graded.input_tokens, graded.output_tokens
    mean = np.broadcast_to(output.mean(axis=0), output.shape)
    whole = (prompt + output) * COSTS
    unit = whole[:, LARGE].mean()
    begun, usual = np.minimum(count, output), np.minimum(count, mean)
    return PeekCosts(
        whole=whole / unit,
        peek=(prompt + begun) * COSTS / unit,
        expected_whole=(prompt + mean) * COSTS / unit,
        expected_peek=(prompt + usual) * COSTS / unit,
    )


Figures = dict[str, list[tuple[Values, Values]]]
"""A figure of each way in each split, and its resamples."""


class Splits:
    """Judges all ways of believing and of routing in all splits."""

    def __init__(self, seen: Seen, graded: GradedAnswers, drawn: Values) -> None:
        self._seen = seen
        self._drawn = drawn
        self._costs = {(count, share): costs_of(graded, count, share) for count in COUNTS for share in PROMPT_SHARES}
        self._both = len(seen.evidence) == 2
        doubts = [
            -np.array([signals(each, LONGEST)["mean log-probability"] for each in part]) for part in seen.evidence
        ]
        # Answers without evidence are never given up.
        self._doubts = doubts if self._both else [*doubts, np.full(len(seen.right), -np.inf)]
        self.order: list[Figures] = [{} for _ in PAIRS]
        """APGR of each of `PAIRS`."""
        self.gain: list[Figures] = [{} for _ in PROMPT_SHARES]
        """Right answers above a coin of equal cost, with each of `PROMPT_SHARES`."""

    def run(self) -> None:
        for one, other in halves(len(self._seen.right)):
            believed: dict[str, PeekBeliefs] = {}
            for learn, judge in ((one, other), (other, one)):
                for name, each in self._half(learn, judge).items():
                    believed.setdefault(name, PeekBeliefs.empty(len(self._seen.right))).fill(judge, each)
            for figures, (weak, strong) in zip(self.order, PAIRS, strict=True):
                self._rank(figures, believed, weak, strong)
            for figures, share in zip(self.gain, PROMPT_SHARES, strict=True):
                self._route(figures, believed, share)

    def _half(self, learn: Rows, judge: Rows) -> dict[str, PeekBeliefs]:
        prompt = by_prompt(self._seen, learn, judge)
        found = {name: PeekBeliefs(values, values, values, values) for name, values in prompt.asked.items()}
        for count in COUNTS:
            found[first(count)] = beliefs(self._seen, prompt.ours, (learn, judge), count)
        return found

    def _rank(self, figures: Figures, believed: dict[str, PeekBeliefs], weak: int, strong: int) -> None:
        right = self._seen.right

        def add(name: str, values: Values) -> None:
            score = values[:, strong] - values[:, weak]
            exact, sampled = (apgr(score, right[:, weak], right[:, strong], drawn) for drawn in (None, self._drawn))
            figures.setdefault(name, []).append((exact, sampled))

        for name, each in believed.items():
            if name in METHODS:
                add(name, each.before)
            else:
                add(f"small, {name}", each.small)
                if self._both:
                    add(f"medium, {name}", each.medium)
                    add(f"small and medium, {name}", each.both)

    def _route(self, figures: Figures, believed: dict[str, PeekBeliefs], share: float) -> None:
        right, costs = self._seen.right, self._costs[LONGEST, share]

        def add(name: str, routed: RoutedQuestions) -> None:
            exact, sampled = (means(routed, right, costs.whole, drawn).gain for drawn in (None, self._drawn))
            figures.setdefault(name, []).append((exact, sampled))

        for name in METHODS:
            add(name, route(straight, believed[name], costs, right))
        for count in SHOWN:
            for name, policy in (OF_SMALL | OF_BOTH if self._both else OF_SMALL).items():
                add(f"{name}, {first(count)}", route(policy, believed[first(count)], self._costs[count, share], right))
        for bound in BOUNDS:
            policy = doubtful(-bound, self._doubts)
            add(f"whole answer, given up below {bound:g}", route(policy, believed[OURS], costs, right))


def first(count: int) -> str:
    return f"first {count}"


def spent(graded: GradedAnswers, count: int) -> list[float]:
    """Return mean costs of a peek at the small and the medium tier, with each of `PROMPT_SHARES`."""
    peeks = [costs_of(graded, count, share).peek.mean(axis=0) for share in PROMPT_SHARES]
    return [float(peek[tier]) for peek in peeks for tier in (SMALL, MEDIUM)]


def medians(timed: Sequence[FirstTokens]) -> dict[str, dict[int, float]]:
    return {
        pool: {count: statistics.median(each.seconds[count] for each in timed if each.pool == pool) for count in TIMES}
        for pool in TIERS
        if timed
    }


def methods(figures: Figures) -> list[Method]:
    """Return the figures over all splits, and how much they are above the best of the methods that read the prompt
    alone."""
    averaged = {
        name: (np.mean([exact for exact, _ in splits], axis=0), np.mean([sampled for _, sampled in splits], axis=0))
        for name, splits in figures.items()
    }
    best, best_sampled = averaged[max(METHODS, key=lambda name: float(averaged[name][0][0]))]
    return [
        Method(name, interval(exact, sampled), interval(exact - best, sampled - best_sampled))
        for name, (exact, sampled) in averaged.items()
    ]


async def _gather(
    arguments: argparse.Namespace, questions: Sequence[Question], answers: Mapping[AnswerKey, PoolAnswer]
) -> list[FirstTokens]:
    """Gather the evidence that is missing, and time first tokens of every few questions."""
    timed = [] if arguments.untimed else questions[:: max(1, len(questions) // TIMED)]
    found = []
    for pool in TIERS:
        model = real_file(MODELS[pool])
        if pool in arguments.pools:
            await peek_evidence.gather(
                pool,
                model,
                questions,
                answers,
                arguments.evidence,
                arguments.threads,
                scores_only=arguments.scores_only,
            )
        if timed:
            found += await peek_evidence.times(pool, model, timed, TIMES, arguments.threads)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--outcomes", type=Path, required=True, help="answers of `roundhouse route calibrate`")
    parser.add_argument("--max-tokens", type=int, default=160, help="limit of these answers")
    parser.add_argument("--evidence", type=Path, default=Path("peek-evidence.jsonl"), help="file that keeps evidence")
    parser.add_argument("--pools", nargs="+", choices=TIERS[:2], default=TIERS[:2], help="tiers that show evidence")
    parser.add_argument("--untimed", action="store_true", help="do not measure first tokens")
    parser.add_argument("--scores-only", action="store_true", help="gather no samples, and ask tiers nothing")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args(argv)
    questions = read_questions(EXAM.read_bytes())
    answers = read_answers(arguments.outcomes.read_bytes(), arguments.max_tokens)
    graded = grade(questions, TIERS, answers)
    timed = asyncio.run(_gather(arguments, questions, answers))
    seen = seen_of(questions, graded, peek_evidence.read(arguments.evidence), arguments.pools)
    drawn = resamples(len(questions), RESAMPLES)
    splits = Splits(seen, graded, drawn)
    splits.run()
    results = PeekResults(
        environment=Environment.here(),
        questions=len(questions),
        right=graded.right.mean(axis=0).tolist(),
        signals=signal_figures(seen, drawn),
        order=dict(
            zip(("small to large", "small to medium", "medium to large"), map(methods, splits.order), strict=True)
        ),
        gain={f"{share:g}": methods(figures) for share, figures in zip(PROMPT_SHARES, splits.gain, strict=True)},
        spent={first(count): spent(graded, count) for count in SHOWN},
        seconds=medians(timed),
    )
    publish(arguments.output / "peek", markdown(results), results)


if __name__ == "__main__":
    main()
