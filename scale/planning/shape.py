"""The sizes of a model that its memory and speed depend on."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from engine.checkpoint.config import ModelConfig

Positive = Annotated[int, Meta(gt=0)]
WeightType = Literal["bf16", "fp8", "int8", "w8a16", "int4"]
"""Types of the weights of linear layers. Embeddings are bf16, and int4 has the head in int8."""
KVType = Literal["bf16", "fp8", "int8"]
WEIGHT_TYPES: tuple[WeightType, ...] = get_args(WeightType)
KV_TYPES: tuple[KVType, ...] = get_args(KVType)
WEIGHT_BYTES: dict[WeightType, float] = {
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "w8a16": 1.0,
    "int4": 4.25 / 8,
}
"""Bytes of a weight; int4 has a scale of 16 bits for 64 weights or so."""
_KV_BYTES: dict[KVType, float] = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0}
_KV_SCALE = 4
"""Bytes of the scale that int8 has for each token and head, of keys and of values."""


class ModelShape(Struct, frozen=True, kw_only=True):
    """A decoder-only transformer with grouped KV heads and gated MLPs, or mixtures of such."""

    name: str
    layers: Positive
    hidden: Positive
    intermediate: Positive
    """Width of an MLP, or of one expert."""
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    vocabulary: Positive
    context: Positive
    experts: int = 0
    experts_per_token: int = 0
    tied: bool = False
    """Whether the head is the embedding."""

    @classmethod
    def of(cls, name: str, config: ModelConfig) -> ModelShape:
        """Return the shape of a checkpoint."""
        return cls(
            name=name,
            layers=config.layers,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            vocabulary=config.vocabulary,
            context=config.context,
            experts=config.experts,
            experts_per_token=config.experts_per_token,
            tied=config.tied_embeddings,
        )

    @property
    def attention(self) -> int:
        """Parameters of a layer's attention."""
        return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def mlp(self) -> int:
        """Parameters of a layer's MLP, or of one expert."""
        return 3 * self.hidden * self.intermediate

    @property
    def head(self) -> int:
        """Parameters of the head."""
        return self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        layer = self.attention + max(1, self.experts) * self.mlp + self.experts * self.hidden
        return self.layers * layer + self.head * (1 if self.tied else 2)

    @property
    def active(self) -> int:
        """Parameters of the layers that a token runs through."""
        return self.layers * (self.attention + max(1, self.experts_per_token) * self.mlp)

    def touched(self, tokens: float) -> float:
        """Return the parameters of the layers that a step of so many tokens reads, if it chooses experts evenly."""
        experts = 1.0
        if self.experts:
            experts = self.experts * (1 - (1 - self.experts_per_token / self.experts) ** tokens)
        return self.layers * (self.attention + experts * self.mlp)

    def weight_bytes(self, kind: WeightType) -> float:
        """Return the memory of all weights."""
        embedding = self.head * WEIGHT_BYTES["bf16"]
        layers = (self.parameters - self.head * (1 if self.tied else 2)) * WEIGHT_BYTES[kind]
        # A head in fewer bits is a copy, also of a tied one.
        own_head = 0.0 if self.tied and kind == "bf16" else self.head_bytes(kind)
        return layers + embedding + own_head

    def head_bytes(self, kind: WeightType) -> float:
        """Return what reading the head takes."""
        return self.head * WEIGHT_BYTES["int8" if kind == "int4" else kind]

    def kv_bytes(self, kind: KVType) -> float:
        """Return the memory of one token's keys and values."""
        scale = _KV_SCALE if kind == "int8" else 0
        return 2 * self.layers * self.kv_heads * (self.head_dim * _KV_BYTES[kind] + scale)


@cache
def known_shapes() -> dict[str, ModelShape]:
    """Return published shapes by name, for models that are not on this machine."""
    text = Path(__file__).with_name("shapes.toml").read_bytes()
    shapes = msgspec.toml.decode(text, type=dict[str, list[ModelShape]])["models"]
    return {shape.name: shape for shape in shapes}
