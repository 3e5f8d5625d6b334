"""A GGUF file of an architecture with keys or tensors of its own answers as transformers does with the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from tests.engine.checkpoint.gguf.miniature import write_gguf
from tests.engine.checkpoints import ROPE_SCALINGS, VOCABULARY, oracle_greedy, oracle_logits, random_prompt
from tests.engine.conftest import Checkpoint
from tests.engine.driver import BLOCKS, drive, request, tokens_of

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("gemma3", {"query_pre_attn_scalar": 32}),
    "phi3": ("phi3", {}),
    "phi3-longrope": (
        "phi3",
        {
            "rope_parameters": ROPE_SCALINGS["longrope"],
            "partial_rotary_factor": 1.0,
            "original_max_position_embeddings": 64,
        },
    ),
}
"""Architecture and keys of config.json."""


@pytest.mark.parametrize("length", [30, 80])
@pytest.mark.parametrize("model", MODELS)
def test_a_file_answers_as_the_original(checkpoint: Checkpoint, tmp_path: Path, model: str, length: int) -> None:
    """Also beyond the windows, and beyond the 64 tokens from which "longrope" has other factors."""
    architecture, keys = MODELS[model]
    directory = checkpoint(architecture, **keys)
    path = write_gguf(tmp_path / "a.gguf", directory)
    runner, prompt = ModelRunner(path, blocks=BLOCKS, precision=Precision("float32")), random_prompt(length)
    assert tokens_of(runner, [request(prompt, max_tokens=12)])[0] == oracle_greedy(directory, prompt, 12)
    ((last,),) = drive(runner, [request(prompt, max_tokens=1, logprobs=VOCABULARY)])
    tokens, values = zip(*(last.logprobs or ())[0].top, strict=True)
    expected = oracle_logits(directory, prompt)[-1].log_softmax(-1)[list(tokens)]
    assert torch.allclose(torch.tensor(values), expected, atol=1e-5)
