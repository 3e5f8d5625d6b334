"""Fits the semantic cache's model on labelled pairs and writes it where the cache reads it.

    python -m bench.semantic_model --pairs /path/to/pairs.jsonl.gz

Only the calibration part of the pairs is read. Weights: a logistic regression with a ridge on what look-ups met in
streams where every answer was checked. The spread of the answers' offsets: the one under which later checks are most
likely. The artefact holds numbers only, no text.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench import question_pairs
from bench.data import EMBEDDER, data_file, embed
from bench.question_pairs import QuestionPool, QuestionStream
from bench.semantic_policies import Compare, Near, Profiles, simulate
from cache.semantic.entry import Observation
from cache.semantic.guards import guard
from cache.semantic.model import FEATURES, VERSION, CorrectnessModel, decode, features_of, offset_of

ARTEFACT = Path(__file__).parents[1] / "cache" / "semantic" / "model.json"
SIGMAS = (0.25, 0.5, 0.75, 1.0)
"""Spreads that are tried. No wider ones: questions of one labelled cluster are right or wrong together by their label,
more than answers are."""
STREAMS = (QuestionStream(), QuestionStream(one_off=0.6), QuestionStream(one_off=0.8), QuestionStream(bias=0.0))
"""Kinds of traffic on which the weights are fitted, so that they do not depend on one."""
SERVED_FROM = 0.92
"""Least similarity from which answers may be served: below it a third of the pairs that the guards let pass is wrong by
reading (`bench.semantic_audit`), from it on one in forty."""
BANDS = (0.3, 0.5)
"""Lower credible bounds of the bands whose wrong answers gateways count apart: few, so that comparisons suffice."""
_Z = 1.645


class JudgedCandidate(msgspec.Struct):
    """A candidate that a look-up met."""

    features: tuple[float, ...]
    right: bool
    answer: int
    time: int


class _Recorder:
    """A policy that has every question answered by the model and checked, and records the candidates."""

    def __init__(self, pool: QuestionPool, profiles: Profiles) -> None:
        self.stored: set[int] = set()
        self.seen: list[JudgedCandidate] = []
        self._pool = pool
        self._profiles = profiles
        self._support: dict[int, int] = defaultdict(int)

    def handle(self, question: int, near: Near, compare: Compare) -> int | None:
        met: list[JudgedCandidate] = []
        for other, cosine in near:
            if guard(self._profiles[question], self._profiles[other]) is not None:
                continue
            features = features_of(
                self._profiles[question],
                self._profiles[other],
                similarity=cosine,
                support=self._support[other],
            )
            met.append(JudgedCandidate(features, compare(other), other, len(self.seen)))
        self.seen += met
        self.stored.add(question)
        if met and met[0].right:
            self._support[met[0].answer] += 1
        return None


def record(
    pool: QuestionPool, profiles: Profiles, streams: Sequence[QuestionStream], seeds: Sequence[int]
) -> list[list[JudgedCandidate]]:
    """Return the candidates that look-ups met, per stream and seed."""
    recorded = []
    for stream in streams:
        for seed in seeds:
            recorder = _Recorder(pool, profiles)
            simulate(pool, question_pairs.draw(pool, stream, seed), recorder)
            recorded.append(recorder.seen)
    return recorded


def fit(
    recorded: Sequence[Sequence[JudgedCandidate]], *, pairs: int, data: str, ridge: float = 1.0
) -> CorrectnessModel:
    """Return the model. `ridge`: penalty on the standardised weights."""
    from sklearn.linear_model import LogisticRegression

    seen = [candidate for run in recorded for candidate in run]
    features = np.array([candidate.features for candidate in seen])
    right = np.array([candidate.right for candidate in seen])
    means, spreads = features.mean(axis=0), features.std(axis=0)
    scales = np.where(spreads < 1e-6, 1.0, spreads)
    x = np.column_stack([np.ones(len(seen)), (features - means) / scales])
    regression = LogisticRegression(C=1 / ridge, fit_intercept=True, tol=1e-8, max_iter=1000).fit(x[:, 1:], right)
    weights = np.concatenate([regression.intercept_, regression.coef_[0]])
    logits = x @ weights
    probabilities = 1 / (1 + np.exp(-logits))
    # Laplace: the inverse of the curvature. Streams of one pool repeat its questions, so they count as one.
    curvature = (x * (probabilities * (1 - probabilities))[:, None]).T @ x / len(recorded) + ridge * np.eye(x.shape[1])
    return CorrectnessModel(
        version=VERSION,
        embedder=EMBEDDER,
        features=FEATURES,
        means=_rounded(means),
        scales=_rounded(scales),
        bias=round(float(weights[0]), 6),
        weights=_rounded(weights[1:]),
        covariance=tuple(_rounded(row) for row in np.linalg.inv(curvature)),
        sigma=spread(recorded, logits),
        z=_Z,
        floor=0.6,
        served_from=SERVED_FROM,
        bands=BANDS,
        pairs=pairs,
        data=data,
    )


def spread(recorded: Sequence[Sequence[JudgedCandidate]], logits: NDArray[np.float64]) -> float:
    """Return the standard deviation of answers' offsets under which each check is likeliest, given earlier ones."""
    loss = dict.fromkeys(SIGMAS, 0.0)
    place = 0
    for run in recorded:
        history: dict[int, list[Observation]] = defaultdict(list)
        for candidate in run:
            logit = float(logits[place])
            place += 1
            checks = history[candidate.answer]
            for sigma in SIGMAS if checks else ():
                predicted = logit + offset_of(checks[-64:], sigma).mean
                loss[sigma] += math.log1p(math.exp(-predicted if candidate.right else predicted))
            checks.append(Observation(logit, candidate.right))
    return min(loss, key=lambda sigma: loss[sigma])


def _rounded(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(round(float(value), 6) for value in values)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, help=f"pairs instead of {question_pairs.FILE} in ROUNDHOUSE_BENCH_DATA")
    parser.add_argument("--seeds", type=int, default=3, help="streams of each kind")
    parser.add_argument("--one-in", type=int, default=1, help="keep one in so many of the questions")
    parser.add_argument("--output", type=Path, default=ARTEFACT)
    arguments = parser.parse_args(argv)
    path = data_file(question_pairs.FILE, arguments.pairs)
    pairs = question_pairs.read(path)
    pool = question_pairs.split(pairs, "calibration", embed, one_in=arguments.one_in)
    profiles = Profiles(pool.texts)
    seeds = range(100, 100 + arguments.seeds)
    recorded = record(pool, profiles, STREAMS, seeds)
    model = fit(recorded, pairs=len(pairs), data=hashlib.sha256(path.read_bytes()).hexdigest())
    print({name: round(weight, 2) for name, weight in zip(FEATURES, model.weights, strict=True)}, "sigma", model.sigma)
    encoded = msgspec.json.format(msgspec.json.encode(model), indent=1) + b"\n"
    decode(encoded)
    arguments.output.write_bytes(encoded)
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
