"""Cosines and sines equal those of transformers' rotary embedding for every scaling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.checkpoint.config import ModelConfig
from engine.model.rope import RotaryEmbedding
from tests.engine.checkpoints import ROPE_SCALINGS
from tests.engine.conftest import Checkpoint

CASES: dict[str, dict[str, Any]] = {
    **ROPE_SCALINGS,
    "default": {"rope_type": "default"},
    "yarn with its options": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.2,
        "mscale_all_dim": 0.8,
        "truncate": False,
    },
    "yarn with attention_factor": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "attention_factor": 1.3,
    },
    "longrope without factor": {key: value for key, value in ROPE_SCALINGS["longrope"].items() if key != "factor"},
}


def both(directory: Path, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[2, length, head_dim] cosines and sines of a prompt of this length: ours, theirs."""
    positions = torch.arange(length)
    rope = RotaryEmbedding(ModelConfig.from_directory(directory), 512, torch.device("cpu"))
    (table,), rows = rope.rotations(positions, torch.full((length,), length))
    ours = [torch.cat((half, half), -1) for half in table[rows].chunk(2, -1)]
    theirs = LlamaRotaryEmbedding(AutoConfig.from_pretrained(directory))
    expected = theirs(torch.zeros(1), positions[None])
    return torch.stack(ours), torch.stack(expected)[:, 0]


@pytest.mark.parametrize("length", [10, 200, 400], ids=["short", "beyond pretraining", "beyond the context"])
@pytest.mark.parametrize("case", CASES)
def test_tables_equal_transformers(checkpoint: Checkpoint, case: str, length: int) -> None:
    ours, theirs = both(checkpoint("llama", rope_parameters=CASES[case]), length)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", ["dynamic", "longrope"])
def test_a_token_depends_on_its_own_sequence_alone(checkpoint: Checkpoint, case: str) -> None:
    """Short and long sequences of one batch each get what they get alone."""
    config = ModelConfig.from_directory(checkpoint("llama", rope_parameters=CASES[case]))
    rope = RotaryEmbedding(config, 512, torch.device("cpu"))

    def angles(positions: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        (table,), rows = rope.rotations(positions, lengths)
        return table[rows]

    positions, lengths = torch.tensor([5, 5, 300]), torch.tensor([10, 310, 301])
    together = angles(positions, lengths)
    alone = [angles(positions[i : i + 1], lengths[i : i + 1]) for i in range(3)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-6)
    assert not torch.equal(together[0], together[1])
