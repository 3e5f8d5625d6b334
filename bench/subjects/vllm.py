"""vLLM's CPU back end: `LLMEngine`, its scheduler stepped in this process, its worker in another as it demands."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from bench.subjects.interface import Clock, RequestBatch, Subject, SubjectSetup, Trace


@contextlib.contextmanager
def load(setup: SubjectSetup) -> Iterator[Subject]:
    cores = sorted(os.sched_getaffinity(0))[: setup.threads]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import EngineArgs, LLMEngine, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine: Any = LLMEngine.from_engine_args(
        EngineArgs(
            model=setup.model,
            dtype="float32" if setup.precision == "fp32" else "bfloat16",
            max_model_len=setup.tokens,
            max_num_seqs=setup.requests,
            enable_prefix_caching=True,
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )
    )

    def run(batch: RequestBatch) -> list[Trace]:
        options = SamplingParams(
            temperature=0.0,
            max_tokens=batch.new_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        clock = Clock(len(batch.prompts))
        for index, prompt in enumerate(batch.prompts):
            engine.add_request(str(index), {"prompt_token_ids": prompt}, options)
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = clock.now()
            for output in outputs:
                clock.add(int(output.request_id), output.outputs[0].token_ids, now)
        return clock.traces

    yield Subject(run, _family(os.getpid()))


def _family(pid: int) -> tuple[int, ...]:
    """Return a process and all its descendants."""
    import psutil

    process = psutil.Process(pid)
    return (pid, *(child.pid for child in process.children(recursive=True)))
