"""Streams of questions made from labelled pairs, for the semantic cache's evaluation.

Pairs labelled the same join questions to clusters: one cluster, one answer. All pairs, whatever their label, join
clusters to components, which fall into the calibration or the test part as a whole, by a hash of their text: so the
same file is always split in the same way, and no question of one part has a labelled partner in the other.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.data import Vectors, json_lines
from cache.semantic.profile import MAX_CHARACTERS

FILE = "qqp_pairs.jsonl.gz"
NEIGHBOURS = 64
"""Number of a question's nearest others that are searched for stored ones."""
Part = Literal["calibration", "test"]


class Pair(msgspec.Struct):
    """One labelled pair; `same`: one answer serves both."""

    a: str
    b: str
    same: bool


class QuestionPool(msgspec.Struct):
    """The questions of one part."""

    texts: list[str]
    clusters: list[int]
    components: list[int]
    neighbours: list[list[tuple[int, float]]]
    """The nearest others of each question with their cosines, nearest first."""
    phrasings: dict[int, list[int]]
    """Clusters of two or more questions."""
    singles: list[int]
    """Questions without another one that is the same."""


class QuestionStream(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream of requests is drawn."""

    requests: int = 20_000
    one_off: float = 0.7
    """Share of questions that are asked once, by nobody else."""
    zipf: float = 1.0
    """Exponent of the clusters' popularity by rank."""
    bias: float = 1.0
    """Ranks are drawn in proportion to this power of a cluster's number of phrasings: what is asked in many ways is
    asked often. 0: by chance."""


def read(path: Path) -> list[Pair]:
    """Read the pairs of a file in JSON lines, gzipped or not."""
    pairs = json_lines(path, Pair)
    return [pair for pair in pairs if max(len(pair.a), len(pair.b)) <= MAX_CHARACTERS]


def split(
    pairs: Sequence[Pair], part: Part, embed: Callable[[Sequence[str]], Vectors], *, one_in: int = 1
) -> QuestionPool:
    """Return the questions of one part, with their nearest others.

    Args:
        one_in: keep one in so many components, where all would take too long.
    """
    every = sorted({text for pair in pairs for text in (pair.a, pair.b)})
    place = {text: index for index, text in enumerate(every)}
    components = _join(len(every), ((place[pair.a], place[pair.b]) for pair in pairs))
    clusters = _join(len(every), ((place[pair.a], place[pair.b]) for pair in pairs if pair.same))
    wanted = 0 if part == "calibration" else 1
    # Components are named by their first text in the alphabet, so that the split does not depend on the order of pairs.
    side: dict[int, int] = {}
    for index, component in enumerate(components):
        if component not in side:
            digest = hashlib.sha256(every[index].encode()).digest()
            side[component] = digest[0] % 2 if digest[1] % one_in == 0 else -1
    chosen = [index for index, component in enumerate(components) if side[component] == wanted]
    texts = [every[index] for index in chosen]
    members: dict[int, list[int]] = defaultdict(list)
    for number, index in enumerate(chosen):
        members[clusters[index]].append(number)
    return QuestionPool(
        texts=texts,
        clusters=[clusters[index] for index in chosen],
        components=[components[index] for index in chosen],
        neighbours=nearest(embed(texts)),
        phrasings={cluster: numbers for cluster, numbers in members.items() if len(numbers) > 1},
        singles=[numbers[0] for numbers in members.values() if len(numbers) == 1],
    )


def draw(pool: QuestionPool, stream: QuestionStream, seed: int) -> list[int]:
    """Draw requests in the order of time, as numbers of questions; fewer where the questions run out.

    No question comes twice in the same words: the exact cache in front answers those.
    """
    random = np.random.default_rng(seed)
    singles = [pool.singles[place] for place in random.permutation(len(pool.singles))]
    clusters = list(pool.phrasings)
    # Sorting by exponential times draws without replacement, in proportion to the weights (Efraimidis and Spirakis).
    times = [random.exponential() / len(pool.phrasings[cluster]) ** stream.bias for cluster in clusters]
    ranked = [clusters[place] for place in np.argsort(times)]
    popularity = 1 / np.arange(1, len(ranked) + 1) ** stream.zipf
    popularity /= popularity.sum()
    left = {cluster: list(random.permutation(pool.phrasings[cluster])) for cluster in ranked}
    requests: list[int] = []
    while len(requests) < stream.requests and (singles or stream.one_off == 0):
        if random.random() < stream.one_off:
            requests.append(singles.pop())
        else:
            cluster = _asked_again(ranked, popularity, left, random)
            if cluster is None:
                break
            requests.append(int(left[cluster].pop()))
    return requests


def _asked_again(
    ranked: Sequence[int], popularity: NDArray[np.float64], left: dict[int, list[int]], random: np.random.Generator
) -> int | None:
    """Draw a cluster by its popularity among those with a phrasing not asked yet; None if there is none."""
    for rank in map(int, random.choice(len(ranked), size=64, p=popularity)):
        if left[ranked[rank]]:
            return ranked[rank]
    weights = popularity * [bool(left[cluster]) for cluster in ranked]
    total = float(weights.sum())
    return ranked[int(random.choice(len(ranked), p=weights / total))] if total else None


def nearest(vectors: Vectors, count: int = NEIGHBOURS, floor: float = 0.6) -> list[list[tuple[int, float]]]:
    """Return the nearest others of each vector with at least that cosine, exactly, nearest first."""
    found: list[list[tuple[int, float]]] = []
    for start in range(0, len(vectors), 1000):
        cosines = vectors[start : start + 1000] @ vectors.T
        for row, similarities in enumerate(cosines):
            similarities[start + row] = -1
            places = np.flatnonzero(similarities >= floor)
            order = places[np.argsort(-similarities[places], kind="stable")[:count]]
            found.append([(int(place), float(similarities[place])) for place in order])
    return found


def _join(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return for each item the smallest item that pairs connect it to."""
    parents = list(range(count))

    def root(item: int) -> int:
        while parents[item] != item:
            parents[item] = parents[parents[item]]
            item = parents[item]
        return item

    for left, right in pairs:
        low, high = sorted((root(left), root(right)))
        parents[high] = low
    return [root(item) for item in range(count)]
