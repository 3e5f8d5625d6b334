"""transformers in three ways: `generate`, its continuous batching, and `generate` with peft's adapters."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

from bench.subjects.interface import Clock, RequestBatch, Subject, SubjectSetup, Trace

_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
_PAGE = 256


@contextlib.contextmanager
def generate(setup: SubjectSetup) -> Iterator[Subject]:
    """Load for one static batch; a streamer notes the time of every step."""
    model = _model(setup)
    yield Subject.here(lambda batch: _generate(model, batch, {}))


@contextlib.contextmanager
def peft(setup: SubjectSetup) -> Iterator[Subject]:
    """Load for `generate` with a different adapter per row, by peft's `adapter_names`."""
    from peft import PeftModel

    model: Any = _model(setup)
    names = [f"adapter-{index}" for index in range(len(setup.adapters))]
    for index, folder in enumerate(setup.adapters):
        if index == 0:
            model = PeftModel.from_pretrained(model, folder, adapter_name=names[0])
        else:
            model.load_adapter(folder, adapter_name=names[index])
    model.eval()

    def run(batch: RequestBatch) -> list[Trace]:
        if batch.adapters == 0:
            with model.disable_adapter():
                return _generate(model, batch, {})
        chosen = [names[row % batch.adapters] for row in range(len(batch.prompts))]
        return _generate(model, batch, {"adapter_names": chosen})

    yield Subject.here(run)


@contextlib.contextmanager
def continuous_batching(setup: SubjectSetup) -> Iterator[Subject]:
    """Load for continuous batching as `generate_batch` sets it up, but timed only once it is ready.

    Its cache is sized for the workload: by default it takes 60 % of all memory.
    """
    from transformers import ContinuousBatchingConfig, GenerationConfig
    from transformers.generation.continuous_batching.utils import WorkloadHints

    model = _model(setup)

    def run(batch: RequestBatch) -> list[Trace]:
        requests, length = len(batch.prompts), max(map(len, batch.prompts))
        sizes = ContinuousBatchingConfig(
            page_size=_PAGE,
            num_blocks=requests * math.ceil((length + batch.new_tokens) / _PAGE) + 4,
            max_batch_tokens=min(requests * length, 4096),
        )
        opened = model.continuous_batching_context_manager(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=sizes,
            workload_hints=WorkloadHints(length, batch.new_tokens, requests),
        )
        with opened as manager:
            # Its own timestamps are moments of the same clock.
            begun = time.perf_counter()
            ids = manager.add_requests(batch.prompts, max_new_tokens=batch.new_tokens, record_timestamps=True)
            found: dict[str, Trace] = {}
            while len(found) < len(ids):
                result = manager.get_result(timeout=1)
                if result is None and not manager.is_running():
                    raise RuntimeError("transformers' generation thread has died")
                if result is not None and result.is_finished():
                    if result.error is not None:
                        raise RuntimeError(f"transformers' continuous batching failed: {result.error}")
                    times = [moment - begun for moment in result.timestamps]
                    found[result.request_id] = Trace(result.generated_tokens, times)
        return [found[id] for id in ids]

    yield Subject.here(run)


def _generate(model: Any, batch: RequestBatch, arguments: dict[str, Any]) -> list[Trace]:
    import torch
    from transformers import GenerationConfig
    from transformers.generation.streamers import BaseStreamer

    class Moments(BaseStreamer):
        """Notes times. `generate` puts the prompts first, then one token of every row per step."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, value: torch.Tensor) -> None:
            self.times.append(clock.now())

        def end(self) -> None: ...

    config = GenerationConfig(do_sample=False, max_new_tokens=batch.new_tokens, eos_token_id=-1, pad_token_id=0)
    clock = Clock(len(batch.prompts))
    ids = torch.tensor(batch.prompts, device=model.device)
    moments = Moments()
    with torch.inference_mode():
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            streamer=moments,
            **arguments,
        )
    return [Trace(row, moments.times[1:]) for row in output[:, ids.shape[1] :].tolist()]


def _model(setup: SubjectSetup) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(setup.threads)
    dtype = getattr(torch, _DTYPES[setup.precision])
    if setup.random_weights:
        with torch.device(setup.device):
            return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(setup.model), dtype=dtype).eval()
    return AutoModelForCausalLM.from_pretrained(setup.model, dtype=dtype).eval().to(setup.device)
