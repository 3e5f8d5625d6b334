"""What an order of questions is worth to pools that it was not learnt from, and what their own outcomes add.

    ROUNDHOUSE_BENCH_DATA=/path/to/data python -m bench.router_pools

Each set is the questions of one traffic with the outcomes of two models. What is judged is an order: which questions
go to the larger model first (APGR, 0.5 is a coin). Half of a set is learnt from, the other half judged, in several
splits. Nothing here reads an embedding: the features of `router.features` alone.

- `length`, `complexity`: the characters of the question, and `router.complexity`.
- `mixture`: the lot of `router.mixture`, which does not look at the question.
- `Llama-2`: the model that was learnt from Llama-2 7B, 13B and 70B on MMLU-Pro.
- `other families`: one model of the gain, learnt from all sets of other families, with the two models' mean outcomes as
  inputs.
- `own N`: `router.fit` on N of the pool's own outcomes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bench.data import data_file, json_lines
from bench.questions import FILE, LabelledQuestion
from bench.report import Environment, options, publish, table
from router.complexity import score
from router.evaluation import Interval, Values, apgr, interval, resamples
from router.features import PromptMessage, extract
from router.fit import Examples, trained
from router.mixture import lot
from router.success import Array, shipped, vector

POOLS = "mmlu_pro_other_pools.jsonl.gz"
TRAFFIC = "outcomes_other_traffic.jsonl.gz"
PAIRS = (
    ("Meta-Llama-3-8B", "Meta-Llama-3-70B"),
    ("Meta-Llama-3_1-8B-Instruct", "Meta-Llama-3_1-70B-Instruct"),
    ("Mistral-7B-v0.1", "Mixtral-8x7B-v0.1"),
    ("Qwen1.5-7B-Chat", "Qwen1.5-72B-Chat"),
    ("Yi-6B", "Yi-34B"),
    ("Phi-3-mini-4k-instruct", "Meta-Llama-3_1-70B-Instruct"),
)
ENDS = (("weak", "strong"), ("haiku", "gemini"), ("small", "large"))
"""Names of the two models in the sets of other traffic."""
SIZES = (200, 500, 2000)
SPLITS, RESAMPLES = 2, 200
RIDGE = 100.0


class PoolOutcomes(Struct):
    """A line of `POOLS`."""

    id: int
    correct: dict[str, float]


class TrafficOutcomes(Struct):
    """A line of `TRAFFIC`."""

    set: str
    prompt: str
    outcomes: dict[str, float]


class PairedSet(Struct):
    """Questions with the outcomes of two models."""

    name: str
    family: str
    """Sets of a family share models or questions with outcomes of the same models."""
    prompts: list[str]
    vectors: Array
    complexities: Values
    outcomes: Values
    """From 0 to 1; of the smaller and the larger model."""

    @property
    def right(self) -> Array:
        """Outcomes as right or wrong, for what learns from these: above or below the mean of both models."""
        return np.asarray(self.outcomes > min(self.outcomes.mean(), 0.999), np.float32)


def sets() -> list[PairedSet]:
    """Read all sets."""
    prompts = {row.id: row.prompt for row in json_lines(data_file(FILE), LabelledQuestion)}
    rows = [row for row in json_lines(data_file(POOLS), PoolOutcomes) if row.id in prompts]
    texts = [prompts[row.id] for row in rows]
    vectors, complexities = _read(texts)
    found = []
    for weak, strong in PAIRS:
        kept = [number for number, row in enumerate(rows) if {weak, strong} <= row.correct.keys()]
        outcomes = np.array([[rows[number].correct[weak], rows[number].correct[strong]] for number in kept], float)
        name = f"MMLU-Pro, {weak} → {strong}"
        family = "Llama-3" if "Llama-3" in strong else weak
        asked = [texts[number] for number in kept]
        found.append(PairedSet(name, family, asked, vectors[kept], complexities[kept], outcomes))
    by_set: dict[str, list[TrafficOutcomes]] = {}
    for line in json_lines(data_file(TRAFFIC), TrafficOutcomes):
        by_set.setdefault(line.set, []).append(line)
    for name, lines in by_set.items():
        weak, strong = next(ends for ends in ENDS if set(ends) <= lines[0].outcomes.keys())
        outcomes = np.array([[line.outcomes[weak], line.outcomes[strong]] for line in lines], float)
        asked = [line.prompt for line in lines]
        family = "RouteLLM" if name in ("gsm8k", "mmlu", "mt_bench") else name
        found.append(PairedSet(name, family, asked, *_read(asked), outcomes / max(1.0, outcomes.max())))
    return found


def _read(texts: Sequence[str]) -> tuple[Array, Values]:
    """Return the features as a model's input, and the complexities."""
    seen = [extract([PromptMessage("user", text)]) for text in texts]
    return np.stack([vector(each) for each in seen]), np.array([score(each).score for each in seen])


class PoolLine(Struct, frozen=True):
    """The orders of one set, by name."""

    name: str
    questions: int
    """That are judged."""
    accuracy: tuple[float, float]
    orders: dict[str, Interval]


def judge(held: PairedSet, others: Sequence[PairedSet], splits: int = SPLITS) -> PoolLine:
    """Compare the orders on halves of a set that nothing was learnt from."""
    size = len(held.prompts)
    weights = resamples(size, RESAMPLES)
    values: dict[str, list[Values]] = {}
    drawn: dict[str, list[Values]] = {}
    for split in range(splits):
        order = np.random.default_rng(split).permutation(size)
        learnt, judged = order[: size // 2], order[size // 2 :]
        weak, strong = held.outcomes[judged].T
        for name, gains in _orders(held, others, learnt, judged).items():
            values.setdefault(name, []).append(apgr(gains, weak, strong))
            drawn.setdefault(name, []).append(apgr(gains, weak, strong, weights[:, judged]))
    found = {
        name: interval(np.mean(each, axis=0), np.mean(np.array(drawn[name]), axis=0)) for name, each in values.items()
    }
    small, large = held.outcomes.mean(axis=0).tolist()
    return PoolLine(held.name, size - size // 2, (small, large), found)


def _orders(
    held: PairedSet, others: Sequence[PairedSet], learnt: NDArray[np.intp], judged: NDArray[np.intp]
) -> Mapping[str, Values]:
    """Return each method's gain, or a number in its order, for the questions that are judged."""
    vectors = held.vectors[judged]
    found = {
        "length": np.array([float(len(held.prompts[row])) for row in judged]),
        "complexity": held.complexities[judged],
        "mixture": -np.array([lot(held.prompts[row].encode()) for row in judged]),
        "Llama-2": _gain(shipped().estimate(vectors, None)[0]),
        "other families": _transferred(held, others, learnt, judged),
    }
    right, nothing = held.right, np.zeros((len(learnt), 0), np.float32)
    for size in SIZES:
        if size <= len(learnt):
            rows = learnt[:size]
            model = trained(Examples(held.vectors[rows], nothing[:size], right[rows]))
            found[f"own {size}"] = _gain(model.estimate(vectors, None)[0])
    return found


def _gain(believed: Array) -> Values:
    return np.asarray(believed[:, -1] - believed[:, 0], np.float64)


def _transferred(
    held: PairedSet, others: Sequence[PairedSet], learnt: NDArray[np.intp], judged: NDArray[np.intp]
) -> Values:
    """Return gains by a ridge regression on other families; of the own pool it knows the mean outcomes alone."""
    apart = [each for each in others if each.family != held.family]
    mean = np.concatenate([each.vectors for each in apart]).mean(axis=0)
    scale = np.concatenate([each.vectors for each in apart]).std(axis=0) + 1e-3
    inputs = np.concatenate([_design((each.vectors - mean) / scale, each.outcomes.mean(axis=0)) for each in apart])
    gains = np.concatenate([each.outcomes[:, 1] - each.outcomes[:, 0] for each in apart])
    # Every set counts alike, whatever its size.
    weight = np.concatenate([np.full(len(each.prompts), 1000 / len(each.prompts)) for each in apart])
    weighted = inputs * weight[:, None]
    penalty = RIDGE * np.eye(inputs.shape[1])
    solved = np.linalg.solve(weighted.T @ inputs + penalty, weighted.T @ gains)
    accuracy = held.outcomes[learnt].mean(axis=0)
    return np.asarray(_design((held.vectors[judged] - mean) / scale, accuracy) @ solved)


def _design(seen: Array, accuracy: Values) -> Values:
    """Return features, and their products with the accuracies of both models."""
    seen = np.clip(np.hstack([np.ones((len(seen), 1)), seen]), -8, 8)
    return np.hstack([seen, seen * accuracy[0], seen * (accuracy[1] - accuracy[0])])


def main(arguments: Sequence[str] | None = None) -> None:
    parsed = options(__doc__).parse_args(arguments)
    every, lines = sets(), []
    for each in every:
        print(each.name, file=sys.stderr)
        lines.append(judge(each, [other for other in every if other is not each]))
    publish(parsed.output / "router-pools", page(lines), lines)


def page(lines: Sequence[PoolLine]) -> str:
    """Return the results in Markdown."""
    names = list(dict.fromkeys(name for line in lines for name in line.orders))
    rows = [
        f"{line.name} ({line.accuracy[0]:.2f} → {line.accuracy[1]:.2f}) | {line.questions} | "
        + " | ".join(str(line.orders.get(name, "")) for name in names)
        for line in lines
    ]
    counts = []
    for name in names:
        orders = [line.orders[name] for line in lines if name in line.orders]
        above, below = sum(each.low > 0.5 for each in orders), sum(each.high < 0.5 for each in orders)
        counts.append(f"{name} | {len(orders)} | {above} | {below}")
    text = [
        "# Router: pools that an order was not learnt from",
        "",
        str(Environment.here()),
        "",
        *(__doc__ or "").split("\n\n", 2)[2].strip().splitlines(),
        "",
        f"APGR with 95 % intervals (bootstrap over questions), mean of {SPLITS} splits into halves.",
        "",
        *table("set (mean outcomes) | judged | " + " | ".join(names), rows),
        "",
        *table("order | sets | clearly above a coin | clearly below", counts),
        "",
    ]
    return "\n".join(text)


if __name__ == "__main__":
    main()
