"""Writes docs/composition.md from what is tested: `python -m tests.engine.composition_page` prints it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from tests.engine.checkpoints import ARCHITECTURES
from tests.engine.composition import FEATURES, FEWER_BITS, LARGER, LARGER_IN_FEWER_BITS, PAIRS

_PAGE = """# What composes with what

Serving engines ship features one by one, and the bugs sit between them. Here every pair of features is a test, and its
rule is always the same: **the same tokens as the oracle**. For greedy requests that is transformers' most likely token
at each place, with peft for adapters and llguidance's masks for grammars, in fp32 on small random models; sampled
requests must equal themselves alone in an engine with nothing else in it. Log-probabilities agree within 1e-5 (1e-4
under an adapter). Each test also proves that its features took place: that something was preempted, read from the
cache, cancelled, drafted.

This page is generated from [`tests/engine/composition.py`](../tests/engine/composition.py) by `make docs`; a test
compares them, so that a cell without a test cannot stand here. `make test` runs all pairs and a part of the rest,
`.venv/bin/pytest -m 'deep or not deep' tests/engine/test_oracle.py` all of these tests.

## The features

{features}

## Every pair

{pairs}

## More at once

All of them together are tested on every architecture:
{architectures}

On Llama also these {count} combinations, drawn at random:

{larger}

## With fewer bits

Quantised weights (`--quantize`, on a model in bf16) and keys and values of another type than the model's
(`--kv-dtype`, on one in fp32 unless the weights are quantised) round numbers, so that fp32 is no oracle for them. Here
each feature must not change a bit: tokens and log-probabilities equal those of the same engine that runs one request
at a time, whole and with nothing switched on (for grammars, under llguidance's masks). How far the rounding itself may
move a model from transformers in fp32 is bounded in
[`test_quantization.py`](../tests/engine/test_quantization.py) and
[`test_kv_dtype.py`](../tests/engine/test_kv_dtype.py).

{fewer_bits}

All features together are tested on every architecture, with quantised weights and eight-bit keys and values, and so
are {larger_in_fewer_bits} of the combinations above on Llama.
"""


def page() -> str:
    """Return docs/composition.md."""
    return _PAGE.format(
        features="\n".join(f"- **{name}**: {meaning}" for name, meaning in FEATURES.items()),
        pairs=table(FEATURES, {frozenset(pair) for pair in PAIRS}),
        architectures=textwrap.fill(", ".join(ARCHITECTURES) + ".", 120, break_on_hyphens=False),
        count=len(LARGER),
        larger="\n".join(f"- {', '.join(combination)}" for combination in LARGER),
        fewer_bits=table(FEWER_BITS, {frozenset((feature, bits)) for feature in FEATURES for bits in FEWER_BITS}),
        larger_in_fewer_bits=len(LARGER_IN_FEWER_BITS),
    )


def table(columns: Iterable[str], tested: set[frozenset[str]]) -> str:
    """Return a Markdown table with a cell for every tested pair of a feature and a column."""
    rows = [["", *(column.replace(", ", " ") for column in columns)]]
    for feature in FEATURES:
        cells = ("✓" if frozenset((feature, column)) in tested else "-" for column in columns)
        rows.append([f"**{feature}**", *cells])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


if __name__ == "__main__":
    print(page(), end="")
