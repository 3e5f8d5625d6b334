"""A folder in Hugging Face format is read as transformers reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.opening import open_checkpoint
from tests.engine.conftest import Checkpoint


@pytest.mark.parametrize(
    ("config", "files", "template", "tokens"),
    [
        ({"chat_template": "inline"}, {}, "inline", {}),
        ({"chat_template": [{"name": "default", "template": "listed"}]}, {}, "listed", {}),
        ({"chat_template": "inline"}, {"chat_template.jinja": "file"}, "file", {}),
        ({}, {"chat_templates/default.jinja": "folder"}, "folder", {}),
        ({"bos_token": {"content": "<s>"}}, {"chat_template.jinja": "a"}, "a", {"bos_token": "<s>"}),
    ],
)
def test_templates_are_found_where_checkpoints_keep_them(
    tmp_path: Path, config: dict[str, Any], files: dict[str, str], template: str, tokens: dict[str, str]
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.templates == {"default": template}
    assert checkpoint.special_tokens == tokens


def test_tensors_are_views_of_the_stored_bytes(checkpoint: Checkpoint) -> None:
    directory = checkpoint("llama")
    stored = {tensor.name: tensor for tensor in open_checkpoint(directory).tensors()}
    theirs = load_file(directory / "model.safetensors")
    assert stored.keys() == theirs.keys()
    for name, tensor in theirs.items():
        ours = stored[name]
        assert (ours.type, ours.shape, ours.data.flags.writeable) == ("f32", tuple(tensor.shape), False)
        assert torch.equal(torch.from_numpy(ours.data.view(np.float32).copy()), tensor)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    folder = open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=name):
        folder.tokenizer() if name == "tokenizer.json" else folder.context
