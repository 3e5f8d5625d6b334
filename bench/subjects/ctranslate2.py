"""CTranslate2: `Generator.generate_batch` with a callback per token, all requests in one batch."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.subjects.interface import Clock, Precision, RequestBatch, Subject, SubjectSetup, Trace


def convert(checkpoint: Path, precision: Precision, directory: Path) -> None:
    from ctranslate2.converters import TransformersConverter

    quantization = {"fp32": "float32", "int8": "int8"}[precision]
    TransformersConverter(str(checkpoint)).convert(str(directory), quantization=quantization, force=True)


@contextlib.contextmanager
def load(setup: SubjectSetup) -> Iterator[Subject]:
    """Load the model. Its tokens are strings, which are looked up before the clock starts."""
    import ctranslate2

    generator = ctranslate2.Generator(setup.model, device="cpu", intra_threads=setup.threads, inter_threads=1)
    vocabulary = json.loads((Path(setup.model) / "vocabulary.json").read_text())

    def run(batch: RequestBatch) -> list[Trace]:
        words = [[vocabulary[token] for token in prompt] for prompt in batch.prompts]
        arguments: dict[str, Any] = {}
        if batch.shared_tokens:
            # CTranslate2's way to compute a common prefix once and keep it.
            arguments["static_prompt"] = words[0][: batch.shared_tokens]
            words = [prompt[batch.shared_tokens :] for prompt in words]
        clock = Clock(len(words))

        def note(step: Any) -> bool:
            clock.add(step.batch_id, [step.token_id])
            return False

        generator.generate_batch(
            words,
            max_length=batch.new_tokens,
            # Forbids the end of the sequence until then.
            min_length=batch.new_tokens,
            include_prompt_in_result=False,
            callback=note,
            **arguments,
        )
        return clock.traces

    yield Subject.here(run)
