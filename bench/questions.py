"""Questions with the outcomes of three models, their features and their sentence embeddings, for the router.

`mmlu_pro_llama2_tiers.jsonl.gz` (`bench.data.data_file`) holds MMLU-Pro questions with whether Llama-2 7B (small), 13B
(medium) and 70B (large) answered them correctly and how long their answers were (Apache-2.0). Embeddings are those that
the gateway's embedder would make, of question and options; they take minutes the first time.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.data import embed, json_lines
from router.features import PromptMessage, extract
from router.fit import Examples
from router.success import vector

FILE = "mmlu_pro_llama2_tiers.jsonl.gz"
TIERS = ("small", "medium", "large")
CHARACTERS_PER_TOKEN = 4.0


class LabelledQuestion(msgspec.Struct):
    """One question."""

    id: int
    category: str
    question: str
    options: list[str]
    correct: dict[str, bool]
    output_chars: dict[str, int]

    @property
    def prompt(self) -> str:
        return "\n".join([self.question, *self.options])

    @property
    def frozen(self) -> bool:
        """Whether the question is in the frozen suite, from which nothing is learnt: a fifth, chosen by id."""
        return hashlib.blake2b(str(self.id).encode(), digest_size=2).digest()[0] % 5 == 0


class Questions(msgspec.Struct):
    """Questions with outcomes, a row each."""

    examples: Examples
    categories: NDArray[np.str_]
    frozen: NDArray[np.bool_]
    prompt_tokens: NDArray[np.float64]
    """Prompt tokens, estimated from characters, as are the output tokens."""
    output_tokens: NDArray[np.float64]
    """Output tokens (requests, tiers)."""
    prompts: list[str]

    def __len__(self) -> int:
        return len(self.examples)

    def take(self, rows: NDArray[np.intp]) -> Questions:
        return Questions(
            self.examples.take(rows),
            self.categories[rows],
            self.frozen[rows],
            self.prompt_tokens[rows],
            self.output_tokens[rows],
            [self.prompts[row] for row in rows],
        )


def read(path: Path) -> Questions:
    """Read the questions of a file, with embeddings."""
    rows = list(json_lines(path, LabelledQuestion))
    prompts = [row.prompt for row in rows]
    vectors = np.stack([vector(extract([PromptMessage("user", prompt)])) for prompt in prompts])
    outcomes = np.array([[row.correct[tier] for tier in TIERS] for row in rows], np.float32)
    return Questions(
        examples=Examples(vectors, embed(prompts), outcomes),
        categories=np.array([row.category for row in rows]),
        frozen=np.array([row.frozen for row in rows]),
        prompt_tokens=np.array([len(prompt) for prompt in prompts]) / CHARACTERS_PER_TOKEN,
        output_tokens=np.array([[row.output_chars[tier] for tier in TIERS] for row in rows]) / CHARACTERS_PER_TOKEN,
        prompts=prompts,
    )
