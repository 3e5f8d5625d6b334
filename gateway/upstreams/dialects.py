"""The kinds of servers of other projects that a pool may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.upstreams.dialect import TokenDialect
from gateway.upstreams.llama_cpp import LLAMA_CPP, LLAMA_CPP_LLGUIDANCE
from gateway.upstreams.messages.anthropic import ANTHROPIC
from gateway.upstreams.messages.dialect import MessageDialect
from gateway.upstreams.messages.openai import OLLAMA, OPENAI, TGI
from gateway.upstreams.onnxruntime import ONNXRUNTIME
from gateway.upstreams.sglang import SGLANG
from gateway.upstreams.tensorrt_llm import TENSORRT_LLM
from gateway.upstreams.vllm import VLLM

TOKEN_DIALECTS: Final[Mapping[str, TokenDialect]] = {
    each.name: each for each in (LLAMA_CPP, LLAMA_CPP_LLGUIDANCE, VLLM, SGLANG, TENSORRT_LLM, ONNXRUNTIME)
}
"""Servers that continue token ids, by the name that `dialect` of a pool has in the configuration."""
MESSAGE_DIALECTS: Final[Mapping[str, MessageDialect]] = {each.name: each for each in (OPENAI, OLLAMA, TGI, ANTHROPIC)}
"""Servers that answer conversations."""
