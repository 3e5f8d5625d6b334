"""The kinds of servers that a pool may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.upstreams.dialect import ServerDialect
from gateway.upstreams.llama_cpp import LLAMA_CPP, LLAMA_CPP_LLGUIDANCE
from gateway.upstreams.sglang import SGLANG
from gateway.upstreams.vllm import VLLM

DIALECTS: Final[Mapping[str, ServerDialect]] = {
    each.name: each for each in (LLAMA_CPP, LLAMA_CPP_LLGUIDANCE, VLLM, SGLANG)
}
"""By the name that `dialect` of a pool has in the configuration."""
