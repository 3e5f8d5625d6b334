"""Measures the semantic cache beside a global threshold and pure per-entry learning, on streams of labelled questions.

    ROUNDHOUSE_BENCH_DATA=/path/to/data OMP_NUM_THREADS=1 python -m bench.semantic_cache

reads `qqp_pairs.jsonl.gz` there; `--pairs` names another file. The shipped model was fitted on the calibration part,
everything here is from the test part. All methods meet the same requests, once as they are labelled and once with
edited questions among them. Embeddings take minutes the first time.
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
from bench.semantic_policies import (
    GlobalThreshold,
    GuardedThreshold,
    PerEntry,
    Profiles,
    Refusals,
    Roundhouse,
    SemanticOutcome,
    SemanticPolicy,
    same,
    simulate,
)
from bench.semantic_report import (
    EditRow,
    GuardRow,
    PromiseRow,
    ReadRow,
    SemanticResult,
    SemanticRow,
    markdown,
    plot,
)
from cache.semantic.decision import EXPLORED, SemanticCandidate, ServingTerms, decide
from cache.semantic.entry import EntryState, Observation
from cache.semantic.evidence import Evidence, PromiseStanding, report, standing
from cache.semantic.guards import GUARDS
from cache.semantic.model import CorrectnessModel, offset_of, shipped
from cache.semantic.profile import profile

PROMISES = (0.01, 0.02, 0.05)
TARGETS = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Wrong answers per hit of the tables in hindsight."""
THRESHOLDS = tuple(round(0.8 + 0.01 * step, 2) for step in range(20))
CUTOFFS = tuple(round(1 / (1 + float(np.exp(2.5 - 0.5 * step))), 3) for step in range(13))
"""Lower bounds of the model, evenly spaced in logits."""
EDITED = 0.05
"""Share of edited questions in the stream with edits."""
_TRUSTED = tuple(Observation(1.0, True) for _ in range(20))

Sweep = Callable[[float], list[SemanticOutcome]]
"""A method's outcomes on all streams with one setting."""


def run(
    pool: QuestionPool, streams: Sequence[list[int]], policy: Callable[[int], SemanticPolicy]
) -> list[SemanticOutcome]:
    """Return a fresh policy's outcome on each stream."""
    return [simulate(pool, requests, policy(seed)) for seed, requests in enumerate(streams)]


def best(
    sweep: Sweep, settings: Sequence[float], wrong: Callable[[list[SemanticOutcome]], float], target: float
) -> tuple[float | None, list[SemanticOutcome]]:
    """Return the setting with the most hits among those whose wrong share, by a measure, is within the target, and its
    outcomes; without one, outcomes in which nothing is served."""
    fitting = [setting for setting in settings if wrong(sweep(setting)) <= target]
    if not fitting:
        return None, [SemanticOutcome(requests=outcome.requests) for outcome in sweep(settings[0])]
    chosen = max(fitting, key=lambda setting: hits(sweep(setting)))
    return chosen, sweep(chosen)


def hits(outcomes: Sequence[SemanticOutcome]) -> float:
    """Return the hits per request."""
    return sum(outcome.hits for outcome in outcomes) / sum(outcome.requests for outcome in outcomes)


def wrong_per_hit(outcomes: Sequence[SemanticOutcome]) -> float:
    """Return the share of wrong hits, by the labels."""
    return sum(outcome.wrong for outcome in outcomes) / max(1, sum(outcome.hits for outcome in outcomes))


def promised(
    pool: QuestionPool, streams: Sequence[list[int]], model: CorrectnessModel, profiles: Profiles
) -> list[SemanticRow]:
    """Return what ours serves under each promise, from nothing on."""
    rows = []
    for promise in PROMISES:
        policies = [Roundhouse(model, profiles, promise=promise, seed=seed) for seed in range(len(streams))]
        outcomes = [simulate(pool, *each) for each in zip(streams, policies, strict=True)]
        row = SemanticRow.of("ours", promise, outcomes)
        compared = sum(policy.decisions[f"explore.{kind}"] for policy in policies for kind in ("unproven", "sampled"))
        row.compared = compared / row.requests
        row.bands = report(policies[0].evidence, model.bands, promise)
        rows.append(row)
    return rows


def methods(
    pool: QuestionPool, streams: Sequence[list[int]], model: CorrectnessModel, profiles: Profiles, refusals: Refusals
) -> dict[str, tuple[Sweep, Sequence[float]]]:
    """Return each method, to be run with one of its settings."""

    def ours(cutoff: float) -> list[SemanticOutcome]:
        return run(pool, streams, lambda seed: Roundhouse(model, profiles, promise=0.2, seed=seed, cutoff=cutoff))

    return {
        "threshold": (functools.cache(lambda t: run(pool, streams, lambda _: GlobalThreshold(t))), THRESHOLDS),
        "threshold behind the guards": (
            functools.cache(lambda t: run(pool, streams, lambda _: GuardedThreshold(t, refusals))),
            THRESHOLDS,
        ),
        "ours": (functools.cache(ours), CUTOFFS),
        "per entry (vCache's way)": (
            functools.cache(lambda delta: run(pool, streams, lambda seed: PerEntry(delta, seed))),
            (0.01, 0.05, 0.2),
        ),
    }


def in_hindsight(swept: dict[str, tuple[Sweep, Sequence[float]]]) -> list[SemanticRow]:
    """Return the most that each method can serve within each target, by the labels."""
    rows = []
    for target in TARGETS:
        for method, (sweep, settings) in swept.items():
            setting, outcomes = best(sweep, settings, wrong_per_hit, target)
            rows.append(SemanticRow.of(method, target, outcomes, setting=setting))
    return rows


def by_reading(swept: dict[str, tuple[Sweep, Sequence[float]]], audit: Audit) -> list[ReadRow]:
    """Return the most that each method can serve within each target, by the read sample."""
    rows = []
    for target in TARGETS:
        for method in ("threshold", "threshold behind the guards", "ours"):
            sweep, settings = swept[method]
            setting, outcomes = best(sweep, settings, lambda served: audit.truth(served)[0], target)
            share, interval = audit.truth(outcomes)
            rows.append(
                ReadRow(
                    method=method,
                    target=target,
                    setting=setting,
                    hit_rate=hits(outcomes),
                    by_label=wrong_per_hit(outcomes),
                    by_reading=share,
                    interval=interval,
                )
            )
    return rows


def guard_rows(
    pools: dict[str, QuestionPool],
    streams: dict[str, list[list[int]]],
    refusals: dict[str, Refusals],
    target: float = 0.2,
) -> list[GuardRow]:
    """Return what each guard is worth behind a threshold."""

    def best_hits(traffic: str, without: frozenset[str]) -> float:
        pool, first, refused = pools[traffic], streams[traffic][:1], refusals[traffic]
        sweep = functools.cache(lambda t: run(pool, first, lambda _: GuardedThreshold(t, refused, without)))
        return hits(best(sweep, THRESHOLDS, wrong_per_hit, target)[1])

    natural = pools["natural"]
    asked = {question for requests in streams["natural"] for question in requests}
    alone: list[str] = [
        next(iter(found))
        for question in sorted(asked)
        for other, cosine in natural.neighbours[question][:1]
        if cosine >= 0.8
        and same(natural, question, other)
        and len(found := refusals["natural"].of(question, other)) == 1
    ]
    return [
        GuardRow(
            guard=name,
            refused=alone.count(name),
            natural=best_hits("natural", frozenset({name})),
            edited=best_hits("edited", frozenset({name})),
        )
        for name in ["none", *GUARDS]
    ]


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


def edits_alone(
    pool: QuestionPool,
    model: CorrectnessModel,
    embed: Callable[[Sequence[str]], Vectors],
    thresholds: Sequence[float],
    count: int,
) -> list[EditRow]:
    """Count edits that some promise could answer by their source, even if the source is trusted for years."""
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
            terms = ServingTerms(max_wrong_hits=0.02, evidence=Evidence())
            served += decide(profile(edit.text), [source], model=model, terms=terms, draw=0.5).band is not None
        rows.append(
            EditRow(
                kind=kind,
                questions=len(made),
                ours=served,
                thresholds={str(threshold): int((cosines >= threshold).sum()) for threshold in thresholds},
            )
        )
    return rows


def simulated(share: float, promise: float = 0.02, look_ups: int = 5000, runs: int = 100) -> PromiseRow:
    """Return what the promise does with answers of which a known share is wrong."""
    random = np.random.default_rng(0)
    served, bad, serving, broken = 0, 0, 0, 0
    for _ in range(runs):
        evidence = Evidence()
        given = wrong_given = 0
        for wrong, sampled in zip(random.random(look_ups) < share, random.random(look_ups) < EXPLORED, strict=True):
            kept = standing(evidence.of(0), promise) is PromiseStanding.KEPT
            if kept and not sampled:
                given += 1
                wrong_given += bool(wrong)
            else:
                evidence = evidence.after(0, not wrong, promise)
        served += given
        bad += wrong_given
        serving += standing(evidence.of(0), promise) is PromiseStanding.KEPT
        broken += wrong_given > promise * given
    return PromiseRow(
        share=share,
        serving=serving / runs,
        served=served / (runs * look_ups),
        wrong=bad / max(1, served),
        broken=broken / runs,
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--pairs", type=Path, help=f"pairs instead of {question_pairs.FILE} in ROUNDHOUSE_BENCH_DATA")
    parser.add_argument("--seeds", type=int, default=2, help="streams of each kind")
    parser.add_argument("--requests", type=int, default=20_000, help="requests of each stream")
    parser.add_argument("--one-in", type=int, default=1, help="keep one in so many of the questions")
    parser.add_argument("--edits", type=int, default=400, help="edited questions of each kind")
    arguments = parser.parse_args(argv)
    model = shipped()
    pairs = question_pairs.read(data_file(question_pairs.FILE, arguments.pairs))
    natural = question_pairs.split(pairs, "test", embed, one_in=arguments.one_in)
    drawn = QuestionStream(requests=arguments.requests)
    streams = {"natural": [question_pairs.draw(natural, drawn, seed) for seed in range(arguments.seeds)]}
    pools = {"natural": natural}
    pools["edited"], streams["edited"] = with_edits(natural, streams["natural"], embed)
    profiles = {traffic: Profiles(pool.texts) for traffic, pool in pools.items()}
    refusals = {traffic: Refusals(found) for traffic, found in profiles.items()}
    swept = {
        traffic: methods(pool, streams[traffic], model, profiles[traffic], refusals[traffic])
        for traffic, pool in pools.items()
    }
    verdicts = known()
    result = SemanticResult(
        pairs=len(pairs),
        questions=len(natural.texts),
        streams=arguments.seeds,
        requests=len(streams["natural"][0]),
        promised={traffic: promised(pools[traffic], streams[traffic], model, profiles[traffic]) for traffic in pools},
        hindsight={traffic: in_hindsight(found) for traffic, found in swept.items()},
        verdicts=verdicts,
        readings=by_reading(swept["natural"], Audit(natural, profiles["natural"], verdicts)),
        guards=guard_rows(pools, streams, refusals),
        edits=edits_alone(natural, model, embed, (0.97, 0.95, 0.9), arguments.edits),
        simulated=[simulated(share) for share in (0.0, 0.005, 0.01, 0.02, 0.03, 0.1)],
    )
    publish(arguments.output / "semantic-cache", markdown(result), result)
    curves = {
        traffic: {
            method: [(wrong_per_hit(sweep(setting)), hits(sweep(setting))) for setting in settings]
            for method, (sweep, settings) in found.items()
        }
        for traffic, found in swept.items()
    }
    plot(curves, arguments.output / "semantic-cache.png")


if __name__ == "__main__":
    main()
