"""The semantic cache's evaluation: streams, rival policies, calibration and report."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from bench.data import Vectors
from bench.question_edits import KINDS, edits
from bench.question_pairs import Pair, QuestionPool, QuestionStream, draw, nearest, read, split
from bench.semantic_audit import Audit, digest, sample
from bench.semantic_cache import (
    best,
    by_reading,
    edits_alone,
    guard_rows,
    hits,
    in_hindsight,
    methods,
    promised,
    simulated,
    with_edits,
    wrong_per_hit,
)
from bench.semantic_model import JudgedCandidate, fit, record
from bench.semantic_policies import (
    GlobalThreshold,
    GuardedThreshold,
    PerEntry,
    Profiles,
    Refusals,
    Roundhouse,
    SemanticOutcome,
    fit_curve,
    simulate,
)
from bench.semantic_report import ReaderVerdict, SemanticResult, markdown, plot
from cache.semantic.guards import GUARDS, guard
from cache.semantic.model import FEATURES, CorrectnessModel, shipped

VERBS = ("paint", "repair", "clean", "sell", "wash", "measure", "insure", "register")
THINGS = ("boat", "shed", "sofa", "roof", "floor", "ring", "fence")


def pairs() -> list[Pair]:
    """Clusters of three paraphrases; each is told apart from another verb's question about the same thing."""
    made = []
    for thing, verb in itertools.product(THINGS, VERBS):
        one, two, three = (
            f"How do I {verb} a {thing}?",
            f"How can I {verb} a {thing}?",
            f"How might I {verb} a {thing}?",
        )
        made += [Pair(one, two, True), Pair(two, three, True)]
        made.append(Pair(one, f"Why does a {thing} need somebody to {verb} it?", False))
    return made


def embed(texts: Sequence[str]) -> Vectors:
    """Bags of words in which those that matter count more: near for texts about the same."""
    vectors = np.zeros((len(texts), 4096), np.float32)
    for row, text in zip(vectors, texts, strict=True):
        for word in text.lower().strip("?").split():
            row[zlib.crc32(word.encode()) % 4096] += 10 if word in VERBS + THINGS else 1
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def pool() -> QuestionPool:
    return split(pairs(), "test", embed)


def test_the_parts_share_no_labelled_pair_and_lose_no_question(pool: QuestionPool) -> None:
    calibration = split(pairs(), "calibration", embed)
    both = set(pool.texts) | set(calibration.texts)
    assert not set(pool.texts) & set(calibration.texts)
    assert both == {text for pair in pairs() for text in (pair.a, pair.b)}
    for pair in pairs():
        assert (pair.a in pool.texts) == (pair.b in pool.texts)


def test_the_split_does_not_depend_on_the_order_of_pairs(pool: QuestionPool) -> None:
    assert split(pairs()[::-1], "test", embed) == pool


def test_same_labels_make_clusters(pool: QuestionPool) -> None:
    places = {text: place for place, text in enumerate(pool.texts)}
    for pair in pairs():
        if pair.a in places:
            one, other = places[pair.a], places[pair.b]
            assert (pool.clusters[one] == pool.clusters[other]) is pair.same
            assert pool.components[one] == pool.components[other]


def test_neighbours_are_the_nearest_others(pool: QuestionPool) -> None:
    vectors = embed(pool.texts)
    for place, found in enumerate(nearest(vectors, count=5)):
        cosines = vectors @ vectors[place]
        cosines[place] = -1
        assert [cosine for _, cosine in found] == pytest.approx(
            sorted(cosines[cosines >= 0.6], reverse=True)[:5], abs=1e-5
        )


@given(st.integers(0, 50), st.floats(0.1, 0.9))
def test_a_stream_repeats_no_question_and_keeps_to_its_share(pool: QuestionPool, seed: int, one_off: float) -> None:
    requests = draw(pool, QuestionStream(requests=60, one_off=one_off), seed)
    assert len(set(requests)) == len(requests)
    assert requests == draw(pool, QuestionStream(requests=60, one_off=one_off), seed)
    assert set(requests) <= set(pool.singles) | {q for members in pool.phrasings.values() for q in members}


def test_hits_and_mistakes_are_counted(pool: QuestionPool) -> None:
    requests = draw(pool, QuestionStream(requests=80, one_off=0.3), 1)
    everything = simulate(pool, requests, GlobalThreshold(0.0))
    nothing = simulate(pool, requests, GlobalThreshold(1.1))
    assert nothing == SemanticOutcome(requests=len(requests))
    assert everything.hits > everything.wrong > 0
    assert everything.unlabelled <= everything.wrong


def test_per_entry_learning_serves_nothing_before_its_least_number_of_observations() -> None:
    policy = PerEntry(0.05, seed=0)
    policy.stored.add(1)
    near = [(1, 0.99)]
    for _ in range(PerEntry.LEAST - 2):
        assert policy.handle(2, near, lambda _: True) is None
    served = [policy.handle(2, near, lambda _: True) for _ in range(200)]
    assert served.count(1) > 0


def test_its_curve_is_a_logistic_regression() -> None:
    random = np.random.default_rng(0)
    cosines = random.uniform(0.5, 1, 400)
    right = random.random(400) < 1 / (1 + np.exp(-20 * (cosines - 0.8)))
    slope, threshold, deviation = fit_curve(list(zip(cosines, right, strict=True)))
    reference = LogisticRegression(C=1e6, tol=1e-10, max_iter=10_000).fit(cosines[:, None], right)
    assert slope == pytest.approx(reference.coef_[0, 0], rel=0.05)
    assert threshold == pytest.approx(-reference.intercept_[0] / reference.coef_[0, 0], rel=0.01)
    assert abs(threshold - 0.8) < 3 * deviation


def test_ours_serves_paraphrases_and_no_edits(pool: QuestionPool) -> None:
    """In hindsight: under a promise it first has to compare."""
    model, profiles = shipped(), Profiles(pool.texts)
    requests = draw(pool, QuestionStream(requests=80, one_off=0.3), 1)
    outcome = simulate(pool, requests, Roundhouse(model, profiles, promise=0.02, seed=0, cutoff=0.1))
    assert outcome.hits > 0
    assert outcome.wrong == 0
    assert simulate(pool, requests, Roundhouse(model, profiles, promise=0.02, seed=0)).hits == 0
    rows = edits_alone(pool, model, embed, (0.9,), 20)
    assert [row.kind for row in rows] == list(KINDS)
    assert not any(row.ours for row in rows if row.kind != "word")
    assert any(row.thresholds["0.9"] for row in rows)


def test_under_a_promise_comparisons_come_before_hits(pool: QuestionPool) -> None:
    model, profiles = shipped(), Profiles(pool.texts)
    requests = draw(pool, QuestionStream(requests=150, one_off=0.1), 1)
    everything = msgspec.structs.replace(model, bands=(0.05,))
    policy = Roundhouse(everything, profiles, promise=0.2, seed=0)
    outcome = simulate(pool, requests, policy)
    assert policy.decisions["explore.unproven"] >= 10
    assert 0 < outcome.hits == policy.decisions["serve"]
    assert policy.evidence.of(0).total == pytest.approx(
        policy.decisions["explore.unproven"] + policy.decisions["explore.sampled"], rel=0.3
    )


def test_guards_that_refuse_are_all_named(pool: QuestionPool) -> None:
    """A pair passes if none does."""
    profiles = Profiles(pool.texts)
    refusals = Refusals(profiles)
    for question in range(len(pool.texts)):
        for other, _ in pool.neighbours[question]:
            assert (guard(profiles[question], profiles[other]) is None) is (not refusals.of(question, other))
    stream = draw(pool, QuestionStream(requests=60, one_off=0.3), 0)
    guarded = simulate(pool, stream, GuardedThreshold(0.0, refusals))
    everything = simulate(pool, stream, GuardedThreshold(0.0, refusals, frozenset(GUARDS)))
    assert everything == simulate(pool, stream, GlobalThreshold(0.0))
    assert guarded.wrong < everything.wrong


def test_what_look_ups_meet_is_recorded_with_its_label(pool: QuestionPool) -> None:
    seen = record(pool, Profiles(pool.texts), (QuestionStream(requests=80, one_off=0.3),), (0,))[0]
    assert seen
    assert all(len(candidate.features) == len(FEATURES) for candidate in seen)
    assert max(candidate.features[FEATURES.index("support")] for candidate in seen) > 0


def test_the_fit_finds_the_curve_that_made_the_labels() -> None:
    random = np.random.default_rng(0)
    seen = []
    for number in range(5000):
        similarity = float(random.uniform(0.6, 1))
        right = bool(random.random() < 1 / (1 + math.exp(-30 * (similarity - 0.85))))
        seen.append(JudgedCandidate((similarity, 0.0, float(random.random()), 0.0), right, number, number))
    model = fit([seen], pairs=1, data="0" * 64)
    assert isinstance(model, CorrectnessModel)
    assert model.weights[0] / model.scales[0] == pytest.approx(30, rel=0.1)
    assert model.judge((0.85, 0.0, 0.5, 0.0)).probability == pytest.approx(0.5, abs=0.05)
    assert np.linalg.eigvalsh(np.array(model.covariance)).min() > 0


def test_the_best_setting_has_most_hits_within_the_target() -> None:
    def sweep(threshold: float) -> list[SemanticOutcome]:
        served = round(1000 * (1 - threshold))
        return [SemanticOutcome(requests=1000, hits=served, wrong=round(served * (1 - threshold)))]

    setting, outcomes = best(sweep, (0.5, 0.8, 0.9, 0.95), wrong_per_hit, 0.1)
    assert (setting, hits(outcomes)) == (0.9, 0.1)
    setting, outcomes = best(sweep, (0.5, 0.8), wrong_per_hit, 0.1)
    assert (setting, hits(outcomes)) == (None, 0)


def test_the_promise_is_kept_for_a_known_share() -> None:
    good, bad = (simulated(share, look_ups=1500, runs=5) for share in (0.0, 0.1))
    assert good.serving == 1 and good.served > 0.7 and good.wrong == 0
    assert bad.served == bad.serving == bad.broken == 0


def test_reading_a_sample_tells_how_much_was_wrong(pool: QuestionPool) -> None:
    """Where every served pair was read and half of each stratum was wrong, half of the hits were."""
    profiles = Profiles(pool.texts)
    stream = draw(pool, QuestionStream(requests=60, one_off=0.3), 0)
    outcome = simulate(pool, stream, GlobalThreshold(0.8))
    audit = Audit(pool, profiles, ())
    strata = {audit.stratum(*pair) for pair in outcome.served}
    verdicts = [ReaderVerdict("", stratum, number % 2 == 0) for stratum in strata for number in range(1000)]
    share, (low, high) = Audit(pool, profiles, verdicts).truth([outcome])
    assert share == pytest.approx(0.5)
    assert low < share < high
    unread, (lowest, highest) = Audit(pool, profiles, ()).truth([outcome])
    assert unread == pytest.approx(share) and highest - lowest > high - low


def test_a_sample_has_pairs_of_every_stratum(pool: QuestionPool) -> None:
    """Served ones, each once, and no more than asked for."""
    streams = [draw(pool, QuestionStream(requests=60, one_off=0.3), seed) for seed in range(2)]
    drawn = sample(pool, streams, [0.1], 2, 0)
    audit = Audit(pool, Profiles(pool.texts), ())
    assert drawn and len({each.pair for each in drawn}) == len(drawn)
    assert [each.number for each in drawn] == list(range(len(drawn)))
    place = {text: number for number, text in enumerate(pool.texts)}
    for each in drawn:
        assert audit.stratum(place[each.asked], place[each.answered]) == each.stratum
        assert each.pair == digest(each.asked, each.answered)
    strata = [each.stratum for each in drawn]
    assert all(strata.count(name) <= (8 if "passed" in name else 2) for name in strata)


@pytest.mark.parametrize("kind", KINDS)
def test_edits_differ_from_their_source(kind: str) -> None:
    texts = ["Why do trains from Lisbon to Porto take 3 hours?", "How should Berlin thank Paris for 20 trees?"]
    made = edits(texts, kind, 10, 0)
    assert made
    for edit in made:
        assert edit.text != texts[edit.source]
        assert edit.kind == kind


def test_the_report_shows_every_part(pool: QuestionPool, tmp_path: Path) -> None:
    model = shipped()
    stream = draw(pool, QuestionStream(requests=60, one_off=0.3), 0)
    edited_pool, edited = with_edits(pool, [stream], embed)
    assert len(edited[0]) >= len(stream)
    pools, streams = {"natural": pool, "edited": edited_pool}, {"natural": [stream], "edited": edited}
    profiles = {traffic: Profiles(each.texts) for traffic, each in pools.items()}
    refusals = {traffic: Refusals(each) for traffic, each in profiles.items()}
    swept = methods(pool, [stream], model, profiles["natural"], refusals["natural"])
    verdicts = [ReaderVerdict("", "other passed 3", True), ReaderVerdict("", "other refused 1", False)]
    result = SemanticResult(
        pairs=1,
        questions=len(pool.texts),
        streams=1,
        requests=len(stream),
        promised={"natural": promised(pool, [stream], model, profiles["natural"])},
        hindsight={"natural": in_hindsight(swept)},
        verdicts=verdicts,
        readings=by_reading(swept, Audit(pool, profiles["natural"], verdicts)),
        guards=guard_rows(pools, streams, refusals),
        edits=edits_alone(pool, model, embed, (0.9,), 3),
        simulated=[simulated(0.0, look_ups=10, runs=1)],
    )
    assert {row.guard for row in result.guards} == {"none", *GUARDS}
    text = markdown(result)
    for part in (
        "none served",
        "| another, or none | passed | 0 of 1 | 0 of 0 |",
        "| another, or none | refused | 0 of 0 | 1 of 1 |",
        "### Natural traffic",
        "## What each guard is worth",
        "## Edited questions alone",
        "| number |",
    ):
        assert part in text
    plot({"natural": {"ours": [(0.1, 0.1)]}, "edited": {"ours": [(0.1, 0.1)]}}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_pairs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(pair) for pair in pairs()[:5]))
    assert read(path) == pairs()[:5]
