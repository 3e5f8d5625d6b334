"""A small Llama for training and grading: the arithmetic of transformers' LlamaForCausalLM without its overhead.

Parameter names are Hugging Face's, so a checkpoint is this module's state dict in a safetensors file.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from deploy.demo.tokenizer import CONTEXT, VOCABULARY, write_json


@dataclass(frozen=True)
class ModelShape:
    """Sizes of one checkpoint. `heads * head_dim` equals `hidden`."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int = VOCABULARY
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


SHAPES: dict[str, ModelShape] = {
    "small": ModelShape("roundhouse-demo-2m", hidden=192, layers=3, heads=6, kv_heads=2, intermediate=512),
    "medium": ModelShape("roundhouse-demo-6m", hidden=256, layers=6, heads=8, kv_heads=2, intermediate=832),
    "large": ModelShape("roundhouse-demo-18m", hidden=512, layers=6, heads=16, kv_heads=4, intermediate=1280),
}


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (scaled * self.weight).to(x.dtype)


class TrainingAttention(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        # Query heads of one key head are stacked, so that keys are never copied. Written out because the fused
        # attention of PyTorch is several times slower on CPUs for sequences as short as these.
        groups = self.heads // self.kv_heads
        stacked = q.reshape(batch, self.kv_heads, groups * length, self.head_dim)
        scores = (stacked @ k.transpose(-1, -2)).view(batch, self.kv_heads, groups, length, length)
        # Sequences are padded on the right, so causality alone keeps padding out of every real position.
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.float() * self.head_dim**-0.5
        weights = scores.masked_fill(future, float("-inf")).softmax(-1).to(v.dtype)
        out = weights.view(batch, self.kv_heads, groups * length, length) @ v
        out = out.view(batch, self.heads, length, self.head_dim).transpose(1, 2)
        return torch.as_tensor(self.o_proj(out.reshape(batch, length, -1)))


class MLP(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)))


class Layer(nn.Module):
    def __init__(self, shape: ModelShape, dropout: float) -> None:
        super().__init__()
        self.self_attn = TrainingAttention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.dropout = dropout

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self._drop(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self._drop(self.mlp(self.post_attention_layernorm(x)))

    def _drop(self, x: Tensor) -> Tensor:
        """Dropout with one mask for all positions of a row (Gal and Ghahramani, 2016): no random number per element."""
        if not (self.training and self.dropout):
            return x
        return x * F.dropout(torch.ones(x.shape[0], 1, x.shape[2], dtype=x.dtype), self.dropout)


class TrainingDecoder(nn.Module):
    def __init__(self, shape: ModelShape, dropout: float) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, dropout) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)


class Llama(nn.Module):
    """The model with input and output embeddings tied. `dropout` acts in training only."""

    def __init__(self, shape: ModelShape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.model = TrainingDecoder(shape, dropout)
        angles = rope_angles(shape)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
        nn.init.normal_(self.model.embed_tokens.weight, std=0.02)

    def hidden(self, ids: Tensor) -> Tensor:
        """States before the last norm, of a right-padded batch `ids` [batch, length]."""
        length = ids.shape[1]
        x = self.model.embed_tokens(ids)
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.bfloat16)
        cos, sin = self.get_buffer("cos")[:length].to(x.dtype), self.get_buffer("sin")[:length].to(x.dtype)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return torch.as_tensor(x)

    def logits(self, states: Tensor) -> Tensor:
        """Logits of any selection of states [..., hidden]."""
        return F.linear(self.model.norm(states), self.model.embed_tokens.weight)

    def loss(self, states: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of `targets` [n] after `states` [n, hidden]."""
        return F.cross_entropy(self.logits(states).float(), targets)

    def forward(self, ids: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        """Training loss at the flat indices `positions` of the batch `ids`."""
        return self.loss(self.hidden(ids).flatten(0, 1)[positions], targets)

    def fuse(self) -> None:
        """Compiles the layers and the loss; worth it for training only."""
        for layer in self.model.layers:
            layer.compile(dynamic=True)
        self.loss = torch.compile(self.loss, dynamic=True)  # type: ignore[method-assign]


def rope_angles(shape: ModelShape) -> Tensor:
    """Rotation angles [CONTEXT, head_dim], laid out for `rotate`."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(CONTEXT, dtype=torch.float32), shape.rope_theta**-exponents)
    return torch.cat((angles, angles), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding in the half-split layout of Hugging Face's Llama."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def hf_config(shape: ModelShape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": CONTEXT,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }


def save_checkpoint(model: Llama, tokenizer_folder: Path, target: Path) -> None:
    """Writes a Hugging Face checkpoint in bf16. The folder appears whole or not at all."""
    fresh, old = target.with_name(target.name + ".new"), target.with_name(target.name + ".old")
    for folder in (fresh, old):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(tokenizer_folder, fresh)
    write_json(fresh / "config.json", {**hf_config(model.shape), "_name_or_path": model.shape.name})
    weights = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, fresh / "model.safetensors", metadata={"format": "pt"})
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        os.rename(target, old)
    os.rename(fresh, target)
    shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(folder: Path) -> Llama:
    """Reads a checkpoint of this project back, in float32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = ModelShape(
        name=str(config.get("_name_or_path", folder.name)),
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        intermediate=config["intermediate_size"],
        vocabulary=config["vocab_size"],
    )
    model = Llama(shape)
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()})
    return model.eval()
