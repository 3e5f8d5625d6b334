"""onnxruntime-genai: one `Generator` for the batch, a token of every request per step."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.subjects.interface import Clock, Precision, RequestBatch, Subject, SubjectSetup, Trace


def convert(checkpoint: Path, precision: Precision, directory: Path) -> None:
    """Convert by its model builder. Accuracy level 4 multiplies in int8, the fastest on CPUs with VNNI or AMX."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(checkpoint), "-o", str(directory)]
    command += ["-p", precision, "-e", "cpu"]
    if precision != "fp32":
        command += ["--extra_options", "accuracy_level=4", "block_size=32"]
    subprocess.run(command, check=True, stdout=sys.stderr)


@contextlib.contextmanager
def load(setup: SubjectSetup) -> Iterator[Subject]:
    import numpy as np
    import onnxruntime_genai as og

    config = og.Config(setup.model)
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": setup.threads}}}}))
    model = og.Model(config)

    def run(batch: RequestBatch) -> list[Trace]:
        requests, length = len(batch.prompts), len(batch.prompts[0])
        ids = np.array(batch.prompts, np.int32)
        clock = Clock(requests)
        options = og.GeneratorParams(model)
        total = length + batch.new_tokens
        # min_length forbids the end of the sequence until then.
        sizes: dict[str, Any] = {"batch_size": requests, "max_length": total, "min_length": total}
        options.set_search_options(do_sample=False, **sizes)
        generator = og.Generator(model, options)
        generator.append_tokens(ids)
        for _ in range(batch.new_tokens):
            generator.generate_next_token()
            now = clock.now()
            for index, token in enumerate(generator.get_next_tokens().tolist()):
                clock.add(index, [token], now)
        return clock.traces

    yield Subject.here(run)
