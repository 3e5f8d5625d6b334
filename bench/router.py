"""What the router's complexity score gains over random choice and prompt length, on questions with known outcomes.

    ROUNDHOUSE_BENCH_DATA=/path/to/data python -m bench.router

reads `mmlu_pro_llama2_tiers.jsonl.gz` there: MMLU-Pro questions with whether Llama-2 7B (small), 13B (medium) and 70B
(large) answered them correctly. For every share of requests sent to the large model, hardest first by a score, the
accuracy is that of the mixture; APGR is the area between the small model's accuracy and that curve, as a share of the
gap between small and large (0.5 is random; RouteLLM, arXiv 2406.18665). Ties are averaged, intervals are bootstrapped.
"""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from router.complexity import score
from router.features import Message, extract

FILE = "mmlu_pro_llama2_tiers.jsonl.gz"
RESAMPLES = 1000

Values = NDArray[np.float64]


class Row(msgspec.Struct):
    """One question."""

    category: str
    question: str
    options: list[str]
    correct: dict[str, bool]

    @property
    def prompt(self) -> str:
        return "\n".join([self.question, *self.options])


def apgr(scores: Values, weak: Values, strong: Values) -> float:
    """Average performance gap recovered.

    Args:
        scores: which requests go to the strong model first; higher is sooner.
        weak, strong: 1 where that model is right.
    """
    # Equal scores are one step on the curve, whose chord is the average over all orders of the tied rows.
    _, group = np.unique(-scores, return_inverse=True)
    sizes = np.bincount(group)
    gains = np.bincount(group, weights=strong - weak)
    share = np.concatenate([[0.0], np.cumsum(sizes)]) / len(scores)
    gained = np.concatenate([[0.0], np.cumsum(gains)]) / len(scores)
    area = float(np.sum((gained[1:] + gained[:-1]) / 2 * np.diff(share)))
    return area / float(strong.mean() - weak.mean())


def interval(scores: Values, weak: Values, strong: Values, generator: np.random.Generator) -> tuple[float, float]:
    """95 % bootstrap interval of the APGR."""
    samples = []
    for _ in range(RESAMPLES):
        rows = generator.integers(0, len(scores), len(scores))
        samples.append(apgr(scores[rows], weak[rows], strong[rows]))
    low, high = np.quantile(samples, [0.025, 0.975])
    return float(low), float(high)


def table(rows: Sequence[Row]) -> str:
    """The comparison as Markdown."""
    generator = np.random.default_rng(0)
    methods: dict[str, Callable[[Row], float]] = {
        "random": lambda row: generator.random(),
        "prompt length": lambda row: len(row.prompt),
        "complexity (router/complexity.py)": lambda row: score(extract([Message("user", row.prompt)])).score,
    }
    lines = ["| score | small → large | small → medium | medium → large |", "|---|---|---|---|"]
    outcome = {
        tier: np.array([row.correct[tier] for row in rows], dtype=np.float64) for tier in ("small", "medium", "large")
    }
    for name, method in tqdm(methods.items(), desc="scores", file=sys.stderr):
        scores = np.array([method(row) for row in rows], dtype=np.float64)
        cells = []
        for weak, strong in (("small", "large"), ("small", "medium"), ("medium", "large")):
            low, high = interval(scores, outcome[weak], outcome[strong], generator)
            cells.append(f"{apgr(scores, outcome[weak], outcome[strong]):.3f} [{low:.3f}, {high:.3f}]")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    accuracies = ", ".join(f"{tier} {values.mean():.3f}" for tier, values in outcome.items())
    return "\n".join([f"{len(rows)} questions; accuracy {accuracies}. APGR with 95 % interval:", "", *lines])


def main() -> None:
    folder = os.environ.get("ROUNDHOUSE_BENCH_DATA")
    if not folder or not Path(folder, FILE).is_file():
        raise SystemExit(f"not run: set ROUNDHOUSE_BENCH_DATA to a folder that holds {FILE}")
    decode = msgspec.json.Decoder(Row).decode
    with gzip.open(Path(folder, FILE), "rt", encoding="utf-8") as lines:
        rows = [decode(line) for line in lines]
    print(table(rows))


if __name__ == "__main__":
    main()
