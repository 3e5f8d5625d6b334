"""The decoder: one class for every supported architecture, driven by `ModelConfig`, on any device."""

from __future__ import annotations

from collections.abc import Iterable

import torch

import kernels
from engine.adapters.layout import HEAD
from engine.adapters.manifest import Module
from engine.cache.memory import KVCache
from engine.checkpoint.config import ModelConfig
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.source import ModelCheckpoint
from engine.model.layers import (
    Attention,
    Base,
    FeedForward,
    Linear,
    MixtureOfExperts,
    Mlp,
    ReadoutTokens,
    StepInputs,
)
from engine.model.weights import Embedding, Target, Targets, WeightPart, load_weights
from kernels import LayerCache, LoraPlan, Quantization

_NOWHERE = torch.device("meta")
"""Device of tensors that have no memory yet."""
_SPREAD = 0.02
"""Standard deviation of random weights."""


class DecoderLayer:
    """Pre-norm attention and feed-forward around one residual stream, whose outputs may have norms of their own."""

    def __init__(self, config: ModelConfig, layer: int, device: torch.device, dtype: torch.dtype) -> None:
        self._eps = config.norm_eps
        self._norm_offset = config.norm_offset
        self._norms = {
            name: torch.empty(config.hidden_size, device=device, dtype=dtype) for name in config.norm_names if name
        }
        norms = (self._norms[name] if name else None for name in config.norm_names)
        self._before_attention, self._before_feed_forward, self._after_attention, self._after_feed_forward = norms
        self._attention = Attention(config, layer, device, dtype)
        self._feed_forward: FeedForward = (
            MixtureOfExperts(config, layer, device, dtype) if config.experts else Mlp(config, layer, device, dtype)
        )

    def targets(self, prefix: str) -> Targets:
        return {
            **{f"{prefix}.{name}.weight": norm for name, norm in self._norms.items()},
            **self._attention.targets(prefix),
            **self._feed_forward.targets(prefix),
        }

    def pack(self, quantize: Quantization | None) -> None:
        for norm in self._norms.values():
            norm.add_(self._norm_offset)
        self._attention.pack(quantize)
        self._feed_forward.pack(quantize)

    def __call__(
        self,
        x: torch.Tensor | None,
        residual: torch.Tensor,
        cache: LayerCache,
        step: StepInputs,
        readout: ReadoutTokens | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the layer -> its output and the residual [T, hidden] to which the next norm adds it.

        `x` is the same of the layer before, None for the first layer.
        """
        x = self._add(x, residual, self._before_attention)
        query = self._attention.store(x, cache, step)
        plan, lora = step.plans[self._attention.window], step.lora
        if readout is not None:
            query, residual = (tensor.index_select(0, readout.tokens) for tensor in (query, residual))
            plan, lora = readout.plan, readout.lora
            if not len(residual):
                return residual, residual
        x = self._attention(query, cache, plan, lora)
        if self._after_attention is not None:
            x = kernels.rms_norm(x, self._after_attention, self._eps)
        x = self._feed_forward(self._add(x, residual, self._before_feed_forward), lora)
        if self._after_feed_forward is not None:
            x = kernels.rms_norm(x, self._after_feed_forward, self._eps)
        return x, residual

    def _add(self, x: torch.Tensor | None, residual: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        """Add x, if there is one, to the residual in place -> the sum, normalised where the part that reads it is."""
        if norm is None:
            if x is not None:
                assert self._after_attention is not None
                # For its addition alone: torch's own could not be recorded.
                kernels.add_rms_norm(x, residual, self._after_attention, self._eps)
            return residual
        if x is None:
            return kernels.rms_norm(residual, norm, self._eps)
        return kernels.add_rms_norm(x, residual, norm, self._eps)

    def base(self, module: Module) -> Base:
        attention = module in ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj")
        return self._attention.base(module) if attention else self._feed_forward.base(module)


class Decoder:
    """Token ids in, hidden states out; logits for the rows that need them."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        """Allocate embedding, head and last norm, and fill nothing; `from_checkpoint` gives a usable model."""
        self.config = config
        self._embedding = Embedding(torch.empty(config.vocabulary, config.hidden_size, device=device, dtype=dtype))
        self._layers = [DecoderLayer(config, layer, _NOWHERE, dtype) for layer in range(config.layers)]
        self._norm = torch.empty(config.hidden_size, device=device, dtype=dtype)
        # Rounded to bf16, the likeliest tokens often tie, and the lowest id wins.
        self._head = Linear(
            HEAD,
            config.hidden_size,
            (config.vocabulary,),
            bias=False,
            device=device,
            dtype=dtype,
            out_dtype=torch.float32,
        )
        if config.tied_embeddings:
            self._head.weight = self._embedding.part.dense
            self._head.parts = [self._embedding.part]

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: ModelCheckpoint,
        device: torch.device,
        dtype: torch.dtype,
        quantize: Quantization | None = None,
    ) -> Decoder:
        """Load a checkpoint, and pack each layer as soon as it is whole.

        Args:
            quantize: what becomes of the weights of linear layers and experts; embedding and routers stay as they are.

        Raises:
            CheckpointError: weights that are quantised are to be quantised; or see `load_weights`.
        """
        if quantize is not None and checkpoint.quantised:
            raise CheckpointError(
                f"{checkpoint.path}: weights are quantised already; leave out quantize = {quantize!r}"
            )
        config = checkpoint.config
        model = cls(config, device, dtype)
        groups = [layer.targets(f"model.layers.{index}") for index, layer in enumerate(model._layers)]
        ends: Targets = {"model.embed_tokens.weight": model._embedding.part, "model.norm.weight": model._norm}
        if not config.tied_embeddings:
            ends |= model._head.targets("lm_head")

        def begin(group: int) -> Targets | None:
            """Give a layer memory when its first tensor comes: a large model may only fit quantised."""
            if group == config.layers:
                return None
            layer = model._layers[group] = DecoderLayer(config, group, device, dtype)
            return layer.targets(f"model.layers.{group}")

        def complete(group: int) -> None:
            if group == config.layers:
                model._pack_ends(quantize)
            else:
                model._layers[group].pack(quantize)

        ignored = {"lm_head.weight"} if config.tied_embeddings else set()
        load_weights(
            checkpoint.path,
            checkpoint.tensors(),
            [*groups, ends],
            ignored=ignored,
            begin=begin,
            complete=complete,
        )
        return model

    @classmethod
    def random(
        cls, config: ModelConfig, device: torch.device, dtype: torch.dtype, quantize: Quantization | None = None
    ) -> Decoder:
        """Random weights, made on the device and packed layer by layer: to measure shapes without their checkpoints."""
        model = cls(config, device, dtype)
        generator = torch.Generator(device).manual_seed(0)

        def fill(targets: Iterable[Target]) -> None:
            for target in targets:
                x = target.dense if isinstance(target, WeightPart) else target
                if x.dim() > 1:
                    x.normal_(0, _SPREAD, generator=generator)
                else:
                    x.fill_(1)

        fill([model._embedding.part, model._norm])
        for index in range(config.layers):
            layer = model._layers[index] = DecoderLayer(config, index, device, dtype)
            fill(layer.targets("layer").values())
            layer.pack(quantize)
        if not config.tied_embeddings:
            fill(model._head.targets("head").values())
        model._pack_ends(quantize)
        return model

    def _pack_ends(self, quantize: Quantization | None) -> None:
        """Pack the head, then fold factors of embeddings and logits into what is stored."""
        self._head.pack(_head_quantization(quantize))
        self._norm.add_(self.config.norm_offset).mul_(self.config.logits_scale)
        self._embedding.pack(self.config.embedding_scale)

    def __call__(
        self, tokens: torch.Tensor, cache: KVCache, step: StepInputs, *, layers: int | None = None
    ) -> torch.Tensor:
        """Run tokens [T] through all layers, writing their KV -> normalised hidden states of those that are read.

        `layers` runs only the first ones, which need as much memory as all: to measure it before serving.
        """
        residual = self._embedding(tokens)
        if step.lora is not None:
            kernels.adapt_embedding(tokens, residual, step.lora)
        x = None
        last = len(self._layers) - 1
        for index, (layer, layer_cache) in enumerate(zip(self._layers[:layers], cache.layers[:layers], strict=True)):
            if step.recording is not None:
                step.recording.next_part()
            x, residual = layer(x, residual, layer_cache, step, step.readout if index == last else None)
        assert x is not None
        if not len(residual):
            return residual
        return kernels.add_rms_norm(x, residual, self._norm, self.config.norm_eps)

    def logits(self, hidden: torch.Tensor, lora: LoraPlan | None = None) -> torch.Tensor:
        """Logits [rows, vocabulary] in fp32 for hidden states [rows, hidden] that `lora` plans."""
        return self._head(hidden, lora)

    def base(self, module: Module, layer: int | None) -> Base:
        """What adapters change: weight [out, in] and bias [out], or the embedding [vocabulary, hidden].

        Raises:
            KeyError: it is a stack of experts.
        """
        if module == "embed_tokens":
            return self._embedding.dense(), None
        return self._head.base(0) if layer is None else self._layers[layer].base(module)


def _head_quantization(quantize: Quantization | None) -> Quantization | None:
    """Format of the head, whose errors are errors of the logits: int8 where other weights have four bits."""
    return "int8" if quantize == "int4" else quantize
