"""The exact model of a checkpoint: transformers in fp32, with the numbers that the checkpoint's bytes stand for.

Blocks are decoded by the `gguf` package, llama.cpp's own. One layer at a time has its weights in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from tqdm import tqdm

from bench.quality_texts import Ids
from engine.checkpoint.source import ModelCheckpoint, StoredTensor

_ROWS = 8192
"""Rows that are decoded at a time: blocks of some types need many times the memory of their values."""
_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"


def values(stored: StoredTensor) -> torch.Tensor:
    """Return a tensor's values in fp32."""
    kind = gguf.GGMLQuantizationType[stored.type.upper()]
    rows: npt.NDArray[np.uint8] = stored.data.reshape(-1, stored.data.shape[-1])
    parts = [gguf.dequantize(rows[begin : begin + _ROWS], kind) for begin in range(0, len(rows), _ROWS)]
    return torch.from_numpy(np.concatenate(parts).reshape(stored.shape))


def config_of(checkpoint: ModelCheckpoint) -> Any:
    """Return transformers' configuration of a checkpoint, a folder or a GGUF file."""
    from transformers import AutoConfig

    path = checkpoint.path
    if path.is_dir():
        return AutoConfig.from_pretrained(path)
    return AutoConfig.from_pretrained(path.parent, gguf_file=path.name)


def write_bf16(checkpoint: ModelCheckpoint, folder: Path) -> None:
    """Write the same model, rounded to bf16, as a folder in Hugging Face format (without a tokenizer)."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    tensors = {each.name: values(each).bfloat16() for each in checkpoint.tensors()}
    config = config_of(checkpoint)
    architecture: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    config.dtype, config.architectures = torch.bfloat16, [architecture.__name__]
    config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


class ExactModel:
    """Final hidden states of some texts, and the logits that follow from them."""

    def __init__(self, checkpoint: ModelCheckpoint, ids: Ids) -> None:
        """Run texts [N, T] through the model, all in one pass."""
        stored = {each.name: each for each in checkpoint.tensors()}
        self._states = _states(config_of(checkpoint), stored, ids)
        self._head = values(stored.get(_HEAD, stored[_EMBEDDING]))
        self.vocabulary = len(self._head)

    @torch.inference_mode()
    def logits(self, text: int, begin: int, end: int) -> torch.Tensor:
        """Return logits [end - begin, vocabulary] at some positions of a text."""
        return self._states[text, begin:end] @ self._head.T


@torch.inference_mode()
def _states(config: Any, stored: Mapping[str, StoredTensor], ids: Ids) -> torch.Tensor:
    """Return transformers' normalised hidden states [N, T, hidden]; each layer has weights only while it runs."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().model
    # Its frequencies are computed where it is made, not loaded.
    model.rotary_emb = type(model.rotary_emb)(config)
    parts = {"embed_tokens": model.embed_tokens, "norm": model.norm}
    parts |= {f"layers.{number}": layer for number, layer in enumerate(model.layers)}
    progress = tqdm(total=len(parts), desc="exact", unit="layer", disable=None)
    for name, module in parts.items():
        prefix = f"model.{name}."
        own = {each.removeprefix(prefix): tensor for each, tensor in stored.items() if each.startswith(prefix)}

        def fill(module: torch.nn.Module, _: object, own: Mapping[str, StoredTensor] = own) -> None:
            module.load_state_dict({name: values(tensor) for name, tensor in own.items()}, assign=True)

        def empty(module: torch.nn.Module, *_: object) -> None:
            module.to("meta")
            progress.update()

        module.register_forward_pre_hook(fill)
        module.register_forward_hook(empty)
    with progress:
        states: torch.Tensor = model(torch.from_numpy(ids), use_cache=False).last_hidden_state
    return states
