"""How many of the served answers are wrong in truth, where labels are missing or mistaken: a sample of them, read.

    python -m bench.semantic_audit sample pairs.jsonl            # draws pairs of questions; who served them is not told
    python -m bench.semantic_audit record pairs.jsonl 3 17 42    # the numbers of those whose answer would not serve

draws from what our cache and thresholds serve on the test streams, by strata of label, guards and cosine, and writes
down what the reader found: digests and verdicts, no text. `bench.semantic_cache` weights them back to each method.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from bench import question_pairs
from bench.data import data_file, embed
from bench.question_pairs import QuestionPool, QuestionStream
from bench.semantic_policies import (
    GlobalThreshold,
    Profiles,
    Roundhouse,
    SemanticOutcome,
    SemanticPolicy,
    same,
    simulate,
)
from bench.semantic_report import Interval, ReaderVerdict
from cache.semantic.guards import guard
from cache.semantic.model import shipped

VERDICTS = Path(__file__).parent / "results" / "semantic-cache-audit.json"
EDGES = (0.88, 0.92, 0.95, 0.98)
"""Bounds between strata of the cosine."""
_SAMPLED_THRESHOLDS = (0.86, 0.88, 0.9, 0.92, 0.95, 0.97, 0.98, 0.99)


class Reading(msgspec.Struct, frozen=True):
    """A pair for the reader."""

    number: int
    pair: str
    stratum: str
    asked: str
    answered: str


class Audit:
    """Estimates the true error of what was served from a pool, by the read sample."""

    def __init__(self, pool: QuestionPool, profiles: Profiles, verdicts: Iterable[ReaderVerdict]) -> None:
        self._pool = pool
        self._profiles = profiles
        self._known: dict[tuple[int, int], str] = {}
        read: dict[str, list[bool]] = defaultdict(list)
        for verdict in verdicts:
            read[verdict.stratum].append(verdict.fits)
        self._read = {name: (found.count(False), len(found)) for name, found in read.items()}

    def stratum(self, question: int, served: int) -> str:
        """Return the stratum of the sample to which a pair belongs."""
        pair = (question, served)
        if pair not in self._known:
            label = "same" if same(self._pool, *pair) else "other"
            refused = guard(self._profiles[question], self._profiles[served]) is not None
            cosine = next((near for other, near in self._pool.neighbours[question] if other == served), 0.0)
            place = sum(cosine >= edge for edge in EDGES)
            self._known[pair] = f"{label} {'refused' if refused else 'passed'} {place}"
        return self._known[pair]

    def truth(self, outcomes: Sequence[SemanticOutcome]) -> tuple[float, Interval]:
        """Return the share of the hits that is wrong, with a 95 % interval: each stratum's share of wrong ones, with
        half a wrong one added to keep an empty one from being sure, times how often it was served."""
        served = Counter(self.stratum(*pair) for outcome in outcomes for pair in outcome.served)
        hits = max(1, sum(served.values()))
        error = variance = 0.0
        for name, count in served.items():
            wrong, read = self._read.get(name, (0, 0))
            share = (wrong + 0.5) / (read + 1)
            error += count * share
            variance += count**2 * share * (1 - share) / (read + 1)
        half = 1.96 * math.sqrt(variance)
        return error / hits, (max(0.0, error - half) / hits, (error + half) / hits)


def sample(
    pool: QuestionPool, streams: Sequence[list[int]], cutoffs: Sequence[float], each: int, seed: int
) -> list[Reading]:
    """Draw up to `each` pairs of every stratum; four times as many of those that our cache may serve."""
    profiles, model = Profiles(pool.texts), shipped()
    audit = Audit(pool, profiles, ())
    pairs: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for number, requests in enumerate(streams):
        policies: list[SemanticPolicy] = [
            *(Roundhouse(model, profiles, promise=0.2, seed=number, cutoff=cutoff) for cutoff in cutoffs),
            *(GlobalThreshold(threshold) for threshold in _SAMPLED_THRESHOLDS),
        ]
        for policy in policies:
            for pair in simulate(pool, requests, policy).served:
                pairs[audit.stratum(*pair)].add(pair)
    random = np.random.default_rng(seed)
    drawn = []
    for name, found in sorted(pairs.items()):
        # What the guards let pass near enough to be served decides; of the rest a few tell what a threshold serves.
        wanted = min(len(found), 4 * each if name.split()[1] == "passed" and int(name[-1]) >= 2 else each)
        ordered = sorted(found)
        drawn += [(name, *ordered[place]) for place in random.choice(len(ordered), wanted, replace=False)]
    random.shuffle(drawn)
    texts = pool.texts
    return [
        Reading(number, digest(texts[int(asked)], texts[int(served)]), str(name), texts[int(asked)], texts[int(served)])
        for number, (name, asked, served) in enumerate(drawn)
    ]


def digest(asked: str, answered: str) -> str:
    return hashlib.sha256(f"{asked}\0{answered}".encode()).hexdigest()[:16]


def known() -> list[ReaderVerdict]:
    """Return the verdicts so far."""
    return msgspec.json.decode(VERDICTS.read_bytes(), type=list[ReaderVerdict]) if VERDICTS.is_file() else []


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["sample", "record"])
    parser.add_argument("file", type=Path, help="the pairs to be read, in JSON lines")
    parser.add_argument("unfit", type=int, nargs="*", help="numbers of the pairs whose answer would not serve")
    parser.add_argument("--pairs", type=Path, help=f"pairs instead of {question_pairs.FILE} in ROUNDHOUSE_BENCH_DATA")
    parser.add_argument("--one-in", type=int, default=1, help="keep one in so many of the questions")
    parser.add_argument("--each", type=int, default=24, help="pairs of each stratum")
    parser.add_argument("--seeds", type=int, default=4, help="number of streams")
    arguments = parser.parse_args(argv)
    if arguments.what == "sample":
        pairs = question_pairs.read(data_file(question_pairs.FILE, arguments.pairs))
        pool = question_pairs.split(pairs, "test", embed, one_in=arguments.one_in)
        streams = [question_pairs.draw(pool, QuestionStream(), seed) for seed in range(arguments.seeds)]
        readings = sample(pool, streams, (0.3, 0.5, 0.7, 0.85, 0.95), arguments.each, 0)
        arguments.file.write_bytes(b"\n".join(map(msgspec.json.encode, readings)) + b"\n")
        print(f"wrote {len(readings)} pairs to {arguments.file}")
        return
    readings = [msgspec.json.decode(line, type=Reading) for line in arguments.file.read_bytes().splitlines()]
    unfit = set(arguments.unfit)
    found = [ReaderVerdict(each.pair, each.stratum, each.number not in unfit) for each in readings]
    VERDICTS.write_bytes(b"[\n" + b",\n".join(map(msgspec.json.encode, found)) + b"\n]\n")
    print(f"wrote {len(found)} verdicts to {VERDICTS}")


if __name__ == "__main__":
    main()
