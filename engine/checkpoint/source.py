"""One view of every checkpoint, whether it is a folder in Hugging Face format or a GGUF file. No torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from engine.checkpoint.config import ModelConfig


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint as its bytes are stored; valid only while the file stays as it is."""

    name: str
    """Name in transformers, such as "model.layers.0.self_attn.q_proj.weight"."""
    type: str
    """Stored type: "f32", "bf16", "f16", a block type of GGUF ("q4_k"), another type of safetensors in lower case, or
    the rule by which `parts` are read."""
    shape: tuple[int, ...]
    """Shape of the values, for a linear layer's weight [outputs, inputs]; empty where there are `parts`."""
    data: npt.NDArray[np.uint8]
    """Bytes [..., bytes of a row]: a read-only view of the mapped file, or a copy where rows had to be put in order."""
    parts: Mapping[str, StoredTensor] = field(default_factory=dict)
    """Tensors that store this one together, such as "qweight" and "scales"; `data` is empty then."""
    block: tuple[int, int] | None = None
    """Outputs and inputs that share a scale, where these parts have blocks and do not say of which size."""


class ModelCheckpoint(ABC):
    """What a model's files say. Nothing is read before it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    @abstractmethod
    def config(self) -> ModelConfig:
        """What drives the decoder.

        Raises:
            CheckpointError: this engine cannot serve the model; the message names the field.
        """

    @property
    @abstractmethod
    def context(self) -> int:
        """Most tokens of prompt and output together, as the checkpoint declares it."""

    @property
    @abstractmethod
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text."""

    @property
    @abstractmethod
    def revision(self) -> str:
        """32 hex digits that name the content without all of it being read."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Size of the files with the weights.

        Raises:
            CheckpointError: one is missing.
        """

    @property
    def quantised(self) -> bool:
        """Whether weights are stored in fewer bits than any activations have."""
        return False

    @abstractmethod
    def tensors(self) -> Iterator[StoredTensor]:
        """Yield all tensors in the order in which they are stored.

        Raises:
            CheckpointError: a file is missing, or is no valid one.
        """

    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """Return a tokenizer that is the caller's own.

        Raises:
            CheckpointError: there is none, or it cannot be used.
        """

    @property
    @abstractmethod
    def templates(self) -> Mapping[str, str]:
        """Sources of the chat templates by name: "default" and maybe others, such as "tool_use"."""

    @property
    @abstractmethod
    def special_tokens(self) -> Mapping[str, str]:
        """Tokens that templates use as variables, such as `bos_token`."""

    @property
    @abstractmethod
    def generation(self) -> Mapping[str, Any]:
        """Sampling parameters that the authors recommend, under the keys of generation_config.json."""
