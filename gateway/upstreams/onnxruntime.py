"""The dialect of the server around ONNX Runtime's generator (`bench/onnxruntime_server.py`): what it knows of vLLM's
`/v1/completions`, and Lark grammars."""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.upstreams.dialect import Parameter
from gateway.upstreams.vllm import VLLM, structured

_SHARED = ("temperature", "top_k", "top_p", "repetition_penalty", "ignore_eos", "max_tokens", "min_tokens")
_MAX_SEED = 2**31

ONNXRUNTIME: Final = msgspec.structs.replace(
    VLLM,
    name="onnxruntime",
    metrics={
        "running": "onnxruntime_requests_running",
        "waiting": "onnxruntime_requests_waiting",
        "prompt_tokens": "onnxruntime_prompt_tokens_total",
        "output_tokens": "onnxruntime_generation_tokens_total",
    },
    sampling={
        **{name: VLLM.sampling[name] for name in _SHARED},
        "seed": Parameter("seed", lambda seed: seed % _MAX_SEED),
    },
    grammars={**VLLM.grammars, "lark": lambda source: structured("grammar", source)},
    salt=None,
    adapters=None,
)
