"""Measures the semantic cache beside a global threshold and pure per-entry learning, on streams of labelled questions.

    ROUNDHOUSE_BENCH_DATA=/path/to/data OMP_NUM_THREADS=1 python -m bench.semantic_cache

reads `qqp_pairs.jsonl.gz` there; `--pairs` names another file. The shipped model was fitted on the calibration part;
thresholds are chosen on it by the same rule as our cutoffs, and once more on the test part itself, as an oracle. All
methods meet the same requests. Embeddings take minutes the first time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench import question_pairs
from bench.data import Vectors, data_file, embed
from bench.question_edits import KINDS, edits
from bench.question_pairs import QuestionPool, QuestionStream
from bench.report import options, publish
from bench.semantic_audit import Audit, known
from bench.semantic_model import DELTAS, upper
from bench.semantic_policies import (
    GlobalThreshold,
    PerEntry,
    Perfect,
    Profiles,
    Roundhouse,
    SemanticOutcome,
    SemanticPolicy,
    simulate,
)
from bench.semantic_report import (
    Adversarial,
    Ceilings,
    ReaderVerdict,
    SemanticResult,
    SemanticRow,
    TrafficVariant,
    markdown,
    plot,
)
from cache.semantic.decision import Action, Exploration, SemanticCandidate, ServingTerms, decide
from cache.semantic.entry import EntryState, Observation
from cache.semantic.model import CorrectnessModel, offset_of, shipped
from cache.semantic.profile import profile

THRESHOLDS = tuple(round(0.8 + 0.0025 * step, 4) for step in range(80))
VARIANTS = {
    "as above": QuestionStream(),
    "60 % one-off": QuestionStream(one_off=0.6),
    "80 % one-off": QuestionStream(one_off=0.8),
    "popularity falls off slowly (zipf 0.7)": QuestionStream(zipf=0.7),
    "popularity falls off fast (zipf 1.3)": QuestionStream(zipf=1.3),
    "popular by chance": QuestionStream(bias=0.0),
    "a quarter of the traffic": QuestionStream(requests=5000),
}
EDITED = 0.05
"""Share of edited questions in the stream with edits."""
_TRUSTED = tuple(Observation(1.0, True) for _ in range(20))


def run(
    pool: QuestionPool, streams: Sequence[list[int]], policy: Callable[[int], SemanticPolicy]
) -> list[SemanticOutcome]:
    """Return a fresh policy's outcome on each stream."""
    return [simulate(pool, requests, policy(seed)) for seed, requests in enumerate(streams)]


def calibrated_threshold(sweep: Callable[[float], list[SemanticOutcome]], delta: float) -> float:
    """Return the lowest threshold from which on the error stays within the bound, by the rule of our cutoffs."""
    best = 1.01
    for threshold in reversed(THRESHOLDS):
        if upper(sweep(threshold)) > delta:
            break
        best = threshold
    return best


def oracle_threshold(sweep: Callable[[float], list[SemanticOutcome]], error: float) -> float:
    """Return the threshold with the most hits among those with at most that error, chosen on the test streams."""
    fitting = [threshold for threshold in THRESHOLDS if _share(sweep(threshold), "wrong") <= error]
    return max(fitting, key=lambda threshold: _share(sweep(threshold), "hits"), default=1.01)


def hits_at(
    sweep: Callable[[float], list[SemanticOutcome]],
    error: float,
    measure: Callable[[Sequence[SemanticOutcome]], float] | None = None,
) -> float:
    """The hit rate of a threshold with just that error on the test streams, between the two nearest that were tried.

    Args:
        measure: the error of outcomes, by default wrong answers per request by the labels.
    """
    measured = measure or (lambda outcomes: _share(outcomes, "wrong"))
    curve = sorted((measured(sweep(threshold)), _share(sweep(threshold), "hits")) for threshold in THRESHOLDS)
    return float(np.interp(error, [wrong for wrong, _ in curve], [hits for _, hits in curve]))


def compare(
    pool: QuestionPool,
    streams: Sequence[list[int]],
    calibration: QuestionPool,
    model: CorrectnessModel,
    seeds: int,
    verdicts: Sequence[ReaderVerdict],
) -> list[SemanticRow]:
    """Return the results of every method at every bound."""
    calibrating = [question_pairs.draw(calibration, QuestionStream(), 100 + seed) for seed in range(seeds)]
    on_calibration = functools.cache(lambda t: run(calibration, calibrating, lambda _: GlobalThreshold(t)))
    on_test = functools.cache(lambda t: run(pool, streams, lambda _: GlobalThreshold(t)))
    profiles = Profiles(pool.texts)
    audit = Audit(pool, profiles, verdicts)
    rows = []
    for delta in DELTAS:
        ours, estimates = ours_on(pool, streams, model, profiles, delta)
        error = _share(ours, "wrong")
        threshold = calibrated_threshold(on_calibration, delta)
        same_error = oracle_threshold(on_test, error)
        bound = oracle_threshold(on_test, delta)
        learning = run(pool, streams, lambda seed, delta=delta: PerEntry(delta, seed))  # type: ignore[misc]
        own = SemanticRow.of("ours", delta, ours, rival=hits_at(on_test, error))
        own.estimate = float(np.mean(estimates))
        own.truth = audit.truth(ours)
        own.true_rival = hits_at(on_test, own.truth.error, lambda outcomes: audit.truth(outcomes).error)
        rows += [
            own,
            SemanticRow.of("threshold, calibrated", delta, on_test(threshold), setting=threshold),
            SemanticRow.of("threshold, best on test at our error", delta, on_test(same_error), setting=same_error),
            SemanticRow.of("threshold, best on test at delta", delta, on_test(bound), setting=bound),
            SemanticRow.of("per entry (vCache's way)", delta, learning),
        ]
        print(*rows[-5:], sep="\n")
    return rows


def ceilings(pool: QuestionPool, streams: Sequence[list[int]]) -> Ceilings:
    """Return the hit rates that no verifier of the five nearest candidates can exceed."""
    profiles = Profiles(pool.texts)
    return Ceilings(
        alone=_share(run(pool, streams, lambda _: Perfect(pool)), "hits"),
        guarded=_share(run(pool, streams, lambda _: Perfect(pool, profiles)), "hits"),
    )


def ours_on(
    pool: QuestionPool,
    streams: Sequence[list[int]],
    model: CorrectnessModel,
    profiles: Profiles,
    delta: float,
    *,
    mistakes: float = 0.0,
    exploration: Exploration = Exploration(),  # noqa: B008  frozen
) -> tuple[list[SemanticOutcome], list[float]]:
    """Run ours; also returns its monitor's estimates of the error of each stream."""
    made: list[Roundhouse] = []

    def policy(seed: int) -> Roundhouse:
        made.append(Roundhouse(model, profiles, delta=delta, seed=seed, mistakes=mistakes, exploration=exploration))
        return made[-1]

    outcomes = run(pool, streams, policy)
    return outcomes, [policy.monitor.estimate().error for policy in made]


def with_edits(
    pool: QuestionPool, streams: Sequence[list[int]], embed: Callable[[Sequence[str]], Vectors]
) -> tuple[QuestionPool, list[list[int]]]:
    """Add edited questions to pool and streams, among the later requests, each some time after its source."""
    texts, components, clusters = list(pool.texts), list(pool.components), list(pool.clusters)
    longer = []
    fresh = max(clusters) + 1
    for seed, requests in enumerate(streams):
        asked = sorted(set(requests))
        wanted = int(EDITED * len(requests)) // 4
        made = [
            edit
            for kind in KINDS
            if kind != "word"
            for edit in edits([pool.texts[q] for q in asked], kind, wanted, seed)
        ]
        when = {question: time for time, question in enumerate(requests)}
        random = np.random.default_rng(seed)
        inserted = []
        for edit in made:
            source = asked[edit.source]
            inserted.append((float(random.uniform(when[source] + 1, len(requests) + 1)), len(texts)))
            texts.append(edit.text)
            components.append(pool.components[source])
            clusters.append(fresh)
            fresh += 1
        timed = [(float(time), question) for time, question in enumerate(requests)] + inserted
        longer.append([question for _, question in sorted(timed)])
    added = embed(texts[len(pool.texts) :])
    neighbours = question_pairs.nearest(np.concatenate([embed(pool.texts), added]))
    bigger = QuestionPool(texts, clusters, components, neighbours, pool.phrasings, pool.singles)
    return bigger, longer


def adversarial(
    pool: QuestionPool,
    model: CorrectnessModel,
    embed: Callable[[Sequence[str]], Vectors],
    thresholds: dict[float, float],
    count: int,
) -> list[Adversarial]:
    """Count edits that are answered by their source, at the loosest bound, even if the source is trusted for years."""
    rows = []
    trusted = offset_of(_TRUSTED, model.sigma)
    for kind in KINDS:
        made = edits(pool.texts, kind, count, 0)
        vectors = embed([text for edit in made for text in (pool.texts[edit.source], edit.text)])
        cosines = (vectors[::2] * vectors[1::2]).sum(axis=1)
        served = 0
        for edit, cosine in zip(made, cosines, strict=True):
            source = SemanticCandidate(
                id="source",
                answer="source",
                similarity=float(cosine),
                profile=profile(pool.texts[edit.source]),
                state=EntryState.VERIFIED,
                offset=trusted,
                support=len(_TRUSTED),
            )
            decision = decide(
                profile(edit.text),
                [source],
                model=model,
                terms=ServingTerms(delta=max(DELTAS), exploration=Exploration(verified=0)),
                draw=0.5,
            )
            served += decision.action is Action.SERVE
        rows.append(
            Adversarial(
                kind=kind,
                questions=len(made),
                ours=served,
                thresholds={str(delta): int((cosines >= threshold).sum()) for delta, threshold in thresholds.items()},
            )
        )
    return rows


def sensitivity(
    pool: QuestionPool, model: CorrectnessModel, seeds: int, delta: float, threshold: float
) -> list[TrafficVariant]:
    """Run ours and the calibrated threshold on other kinds of traffic, and ours with a worse comparison of answers."""
    profiles = Profiles(pool.texts)
    rows = []
    for name, stream in VARIANTS.items():
        streams = [question_pairs.draw(pool, stream, seed) for seed in range(seeds)]
        ours, _ = ours_on(pool, streams, model, profiles, delta)
        fixed = run(pool, streams, lambda _: GlobalThreshold(threshold))
        rows.append(
            TrafficVariant(
                name, SemanticRow.of("ours", delta, ours), SemanticRow.of("threshold, calibrated", delta, fixed)
            )
        )
    streams = [question_pairs.draw(pool, QuestionStream(), seed) for seed in range(seeds)]
    fixed_row = rows[0].threshold
    for mistakes in (0.02, 0.05):
        ours, _ = ours_on(pool, streams, model, profiles, delta, mistakes=mistakes)
        rows.append(
            TrafficVariant(f"{mistakes:.0%} of comparisons wrong", SemanticRow.of("ours", delta, ours), fixed_row)
        )
    return rows


def _share(outcomes: Sequence[SemanticOutcome], what: str) -> float:
    return float(sum(getattr(outcome, what) for outcome in outcomes) / sum(outcome.requests for outcome in outcomes))


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--pairs", type=Path, help=f"pairs instead of {question_pairs.FILE} in ROUNDHOUSE_BENCH_DATA")
    parser.add_argument("--seeds", type=int, default=5, help="streams of each kind")
    parser.add_argument("--requests", type=int, default=20_000, help="requests of each stream")
    parser.add_argument("--edits", type=int, default=500, help="edited questions of each kind")
    arguments = parser.parse_args(argv)
    model = shipped()
    pairs = question_pairs.read(data_file(question_pairs.FILE, arguments.pairs))
    calibration = question_pairs.split(pairs, "calibration", embed)
    pool = question_pairs.split(pairs, "test", embed)
    streams = [
        question_pairs.draw(pool, QuestionStream(requests=arguments.requests), seed) for seed in range(arguments.seeds)
    ]
    verdicts = known()
    rows = compare(pool, streams, calibration, model, arguments.seeds, verdicts)
    thresholds = {row.delta: row.setting or 1.01 for row in rows if row.method == "threshold, calibrated"}
    edited_pool, edited_streams = with_edits(pool, streams[:3], embed)
    edited = compare_edited(edited_pool, edited_streams, model)
    result = SemanticResult(
        pairs=len(pairs),
        questions=len(pool.texts),
        streams=len(streams),
        requests=len(streams[0]),
        rows=rows,
        ceilings=ceilings(pool, streams),
        verdicts=verdicts,
        edited=edited,
        adversarial=adversarial(pool, model, embed, thresholds, arguments.edits),
        sensitivity=sensitivity(pool, model, min(3, arguments.seeds), 0.01, thresholds[0.01]),
    )
    publish(arguments.output / "semantic-cache", markdown(result), result)
    plot(result, arguments.output / "semantic-cache.png")


def compare_edited(pool: QuestionPool, streams: Sequence[list[int]], model: CorrectnessModel) -> list[SemanticRow]:
    """Run ours on the stream with edits, beside the threshold that is best there at our error."""
    on_test = functools.cache(lambda t: run(pool, streams, lambda _: GlobalThreshold(t)))
    profiles = Profiles(pool.texts)
    rows = []
    for delta in DELTAS:
        ours, _ = ours_on(pool, streams, model, profiles, delta)
        error = _share(ours, "wrong")
        same_error = oracle_threshold(on_test, error)
        rows += [
            SemanticRow.of("ours", delta, ours, rival=hits_at(on_test, error)),
            SemanticRow.of("threshold, best on test at our error", delta, on_test(same_error), setting=same_error),
        ]
        print(*rows[-2:], sep="\n")
    return rows


if __name__ == "__main__":
    main()
