"""OpenVINO GenAI: `ContinuousBatchingPipeline`, stepped in-process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.subjects.interface import Clock, Precision, RequestBatch, Subject, SubjectSetup, Trace

_BLOCK = 32
"""Tokens of a KV block on the CPU."""


def convert(checkpoint: Path, precision: Precision, directory: Path) -> None:
    """Convert as `optimum-cli export openvino` does; weights are quantised by nncf without a calibration set."""
    if precision == "bf16":
        # Its command line has no word for it, and quantises large models unless told otherwise.
        from optimum.exporters.openvino import main_export
        from optimum.intel.openvino import OVConfig

        main_export(str(checkpoint), directory, task="text-generation-with-past", ov_config=OVConfig(dtype="bf16"))
        return
    command = [sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino", "--model", str(checkpoint)]
    command += ["--task", "text-generation-with-past", "--weight-format", precision]
    if precision == "int4":
        # Groups of 128 are what it recommends; they must divide the rows.
        rows = json.loads((checkpoint / "config.json").read_text())["hidden_size"]
        command += ["--sym", "--ratio", "1.0", "--group-size", "128" if rows % 128 == 0 else "32"]
    subprocess.run([*command, str(directory)], check=True, stdout=sys.stderr)


@contextlib.contextmanager
def load(setup: SubjectSetup) -> Iterator[Subject]:
    import openvino as ov
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = setup.requests * (setup.tokens // _BLOCK + 2)
    scheduler.max_num_seqs = max(setup.requests, 1)
    # More tokens per step than the default 256: it shortens prompts and does not slow decoding here.
    scheduler.max_num_batched_tokens = 2048
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = True
    properties: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": setup.threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": ov.Type.f32 if setup.precision == "fp32" else ov.Type.bf16,
    }
    pipeline = genai.ContinuousBatchingPipeline(setup.model, scheduler, "CPU", properties)

    def run(batch: RequestBatch) -> list[Trace]:
        config = genai.GenerationConfig()
        config.max_new_tokens = batch.new_tokens
        config.ignore_eos = True
        config.do_sample = False
        prompts = [ov.Tensor([prompt]) for prompt in batch.prompts]
        clock = Clock(len(prompts))
        handles = [pipeline.add_request(index, prompt, config) for index, prompt in enumerate(prompts)]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            now = clock.now()
            for index, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        clock.add(index, output.generated_ids, now)
        return clock.traces

    yield Subject.here(run)
