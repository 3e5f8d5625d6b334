"""What each cache saves in money and seconds on a stream of questions that repeat.

    ROUNDHOUSE_BENCH_DATA=/path/to/data OMP_NUM_THREADS=1 python -m bench.cache_worth

draws questions from the test part of `qqp_pairs.jsonl.gz`: some are asked once, the others come again, in the same
words or in others, by zipf's law. Each request has a system prompt that all share. Caches are added one after the
other: the engine's prefix cache, the exact cache, the semantic cache under its promise, and what the semantic cache
would add in hindsight if more wrong answers were accepted. Hits are simulated with the gateway's decisions; what an
answer costs is reckoned from speeds and prices that stand in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from bench import question_pairs
from bench.data import data_file, embed
from bench.question_pairs import QuestionPool
from bench.report import options, publish, table
from bench.semantic_policies import GlobalThreshold, Profiles, Roundhouse, SemanticOutcome, SemanticPolicy, simulate
from cache.semantic.model import shipped

REPEATED = (0.3, 0.5, 0.7)
"""Shares of the requests whose question has been asked, or will be."""


class RequestCost(msgspec.Struct, frozen=True):
    """What one request costs."""

    shared: int = 500
    """Tokens of the system prompt."""
    own: int = 20
    """Tokens of the question and of the template around it."""
    output: int = 150
    prefill: float = 437.3
    """Prompt tokens per second, of qwen2.5-coder-0.5b on two cores (`results/real-avx512.md`)."""
    decode: float = 62.7
    """Output tokens per second, one request alone."""
    input_price: float = 0.15
    """Dollars per million prompt tokens."""
    cached_price: float = 0.075
    output_price: float = 0.6
    look_up: float = 0.018
    """Seconds of a look-up of the semantic cache (`results/semantic-latency.md`)."""

    def seconds(self, *, prefix: bool) -> float:
        return (self.own + (0 if prefix else self.shared)) / self.prefill + self.output / self.decode

    def dollars(self, *, prefix: bool) -> float:
        shared = self.shared * (self.cached_price if prefix else self.input_price)
        return (shared + self.own * self.input_price + self.output * self.output_price) / 1e6


class WorthRow(msgspec.Struct, kw_only=True):
    """One set of caches on one stream; money and answers per 1,000 requests."""

    repeated: float
    caches: str
    exact: float
    """Share answered by the exact cache."""
    semantic: float
    """Share answered by the semantic cache."""
    wrong: float
    """Wrong answers per 1,000 requests, by the labels."""
    dollars: float
    seconds: float
    """Mean time until an answer is complete."""


def trace(pool: QuestionPool, requests: int, repeated: float, seed: int) -> list[int]:
    """Draw requests: questions that nobody else asks, and phrasings of clusters by zipf's law, which come again."""
    random = np.random.default_rng(seed)
    singles = iter(random.permutation(pool.singles))
    clusters = [pool.phrasings[cluster] for cluster in random.permutation(list(pool.phrasings))]
    popularity = _zipf(len(clusters))
    drawn = []
    for _ in range(requests):
        if random.random() < repeated:
            phrasings = clusters[int(random.choice(len(clusters), p=popularity))]
            drawn.append(phrasings[int(random.choice(len(phrasings), p=_zipf(len(phrasings))))])
        else:
            drawn.append(int(next(singles)))
    return drawn


def worth(outcome: SemanticOutcome, caches: str, repeated: float, cost: RequestCost) -> WorthRow:
    """Return what a set of caches leaves to be paid for.

    Args:
        caches: "none", "prefix", "exact" (with prefix), or others, which have the semantic cache on top.
    """
    prefix = caches != "none"
    exact = outcome.exact if caches not in ("none", "prefix") else 0
    semantic = caches not in ("none", "prefix", "exact")
    hits = outcome.hits if semantic else 0
    computed = outcome.requests - exact - hits
    looked_up = (outcome.requests - exact) * cost.look_up if semantic else 0.0
    return WorthRow(
        repeated=repeated,
        caches=caches,
        exact=exact / outcome.requests,
        semantic=hits / outcome.requests,
        wrong=1000 * outcome.wrong / outcome.requests if semantic else 0.0,
        dollars=1000 * computed * cost.dollars(prefix=prefix) / outcome.requests,
        seconds=(computed * cost.seconds(prefix=prefix) + looked_up) / outcome.requests,
    )


def compare(pool: QuestionPool, requests: int, cost: RequestCost) -> list[WorthRow]:
    """Return the rows of all streams."""
    model, profiles = shipped(), Profiles(pool.texts)
    rows = []
    for repeated in REPEATED:
        asked = trace(pool, requests, repeated, 0)
        plain = simulate(pool, asked, GlobalThreshold(2.0))
        rows += [worth(plain, caches, repeated, cost) for caches in ("none", "prefix", "exact")]
        added: dict[str, SemanticPolicy] = {
            "semantic, 2 % promised": Roundhouse(model, profiles, promise=0.02, seed=0),
            "semantic, all bands served": Roundhouse(model, profiles, promise=0.02, seed=0, cutoff=model.bands[0]),
            "threshold 0.95 instead": GlobalThreshold(0.95),
        }
        rows += [worth(simulate(pool, asked, policy), name, repeated, cost) for name, policy in added.items()]
    return rows


def markdown(rows: Sequence[WorthRow], requests: int, cost: RequestCost) -> str:
    """Return the table, and from which hit rate on the semantic cache saves time."""
    saved = cost.seconds(prefix=True)
    lines = [
        "# What the caches save",
        "",
        f"{requests:,} requests of each stream, reckoned: {cost.shared} prompt tokens that all share and {cost.own} of "
        f"their own, {cost.output} output tokens; {cost.prefill:g} prompt tokens and {cost.decode:g} output tokens per "
        f"second; {cost.input_price}, {cost.cached_price} (cached) and {cost.output_price} dollars per million prompt "
        f"and output tokens; a look-up of the semantic cache takes {1000 * cost.look_up:g} ms. Each row has the caches "
        "of those above it, too; the last three are alternatives. Wrong: by labels, which count many paraphrases as "
        "wrong. Made by `python -m bench.cache_worth`.",
        "",
        *table(
            "asked again | caches | exact hits | semantic hits | wrong per 1,000 requests | dollars per 1,000 | mean "
            "seconds",
            (
                f"{row.repeated:.0%} | {row.caches} | {row.exact:.1%} | {row.semantic:.1%} | {row.wrong:.1f} | "
                f"{row.dollars:.4f} | {row.seconds:.3f}"
                for row in rows
            ),
            words=2,
        ),
        "",
        f"An answer takes {saved:.2f} s with the prefix cache. The semantic cache saves time on the whole if it "
        f"answers more than {cost.look_up / saved:.1%} of its look-ups, and money with its first hit.",
    ]
    return "\n".join(lines) + "\n"


def _zipf(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    weights = 1 / np.arange(1, count + 1)
    return np.asarray(weights / weights.sum())


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--pairs", type=Path, help=f"pairs instead of {question_pairs.FILE} in ROUNDHOUSE_BENCH_DATA")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--one-in", type=int, default=1, help="keep one in so many of the questions")
    arguments = parser.parse_args(argv)
    pairs = question_pairs.read(data_file(question_pairs.FILE, arguments.pairs))
    pool = question_pairs.split(pairs, "test", embed, one_in=arguments.one_in)
    cost = RequestCost()
    rows = compare(pool, arguments.requests, cost)
    publish(arguments.output / "cache-worth", markdown(rows, arguments.requests, cost), rows)


if __name__ == "__main__":
    main()
