"""Makes the router's model file from questions with known outcomes. `make router-model`

Learns from four fifths of the questions; the rest, the frozen suite, is kept as numbers beside the model, so that
`roundhouse route refit` can judge a new model anywhere. Neither file holds text: features, projections of embeddings on
a few directions, and outcomes. The data is described in `bench/questions.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from bench.data import EMBEDDER, data_file
from bench.questions import FILE, read
from router.fit import fit
from router.refit import SUITE
from router.success import MODEL, SuccessModel


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help=f"questions instead of {FILE}")
    parser.add_argument("--output", type=Path, default=MODEL.parent)
    options = parser.parse_args(arguments)
    questions = read(data_file(FILE, options.data))
    learnt, kept = np.flatnonzero(~questions.frozen), questions.take(np.flatnonzero(questions.frozen))
    content = fit(
        questions.examples.take(learnt), trained_on="MMLU-Pro, outcomes of Llama-2 7B, 13B and 70B", embedding=EMBEDDER
    )
    model = SuccessModel.read(content)
    (options.output / MODEL.name).write_bytes(content)
    projected = model.project(kept.examples.embeddings)
    assert projected is not None
    suite = {
        "vectors": kept.examples.vectors.astype(np.float16),
        "projected": projected.astype(np.float16),
        "outcomes": kept.examples.outcomes.astype(np.uint8),
        "tokens": (kept.prompt_tokens[:, None] + kept.output_tokens).astype(np.float32),
    }
    rows = {name: np.ascontiguousarray(value) for name, value in suite.items()}
    (options.output / SUITE.name).write_bytes(save(rows, {"basis": model.basis}))
    print(f"model {model.version}: {len(learnt)} questions, {len(content):,} bytes; suite: {len(kept)} questions")


if __name__ == "__main__":
    main()
