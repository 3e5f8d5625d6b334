"""The types in which a model's weights, activations, keys and values are served."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from engine.cache.memory import KVDtype
from engine.checkpoint.source import ModelCheckpoint
from kernels import Quantization

Dtype = Literal["auto", "float32", "bfloat16"]


class Precision(NamedTuple):
    """Types in which a model is served; by default those in which its checkpoint is stored."""

    dtype: Dtype = "auto"
    """Type of weights and activations; "auto" is the stored one, and bfloat16 for float16.

    Of a checkpoint with quantised weights it is that of activations alone, by default float32 on the CPU.
    """
    quantize: Quantization | None = None
    """Quantization of the weights of linear layers (`kernels.Quantization`), if any; needs bfloat16."""
    kv_dtype: KVDtype = "auto"
    """Type of keys and values; "auto" is that of the activations, or beside quantised weights of a checkpoint fp16 for
    activations in float32 on the CPU and bf16 otherwise."""

    @property
    def torch_dtype(self) -> torch.dtype:
        """Type of weights and activations as torch's, once it is not "auto"."""
        return torch.float32 if self.dtype == "float32" else torch.bfloat16

    def of(self, checkpoint: ModelCheckpoint, device: torch.device) -> Precision:
        """Resolve "auto" for a checkpoint on a device.

        Beside quantised weights, activations in float32 cost a CPU next to nothing, and in bfloat16 would be the
        larger part of all rounding; a GPU's tensor cores ask for bfloat16.

        Raises:
            ValueError: weights in float32 are to be quantised, keys and values kept more exactly than computed, or in
                fp16 on a GPU.
        """
        dtype, kv_dtype = self.dtype, self.kv_dtype
        if dtype == "auto":
            exact = checkpoint.config.stored_dtype == "float32" or (checkpoint.quantised and device.type == "cpu")
            dtype = "float32" if exact else "bfloat16"
        if kv_dtype == "auto" and checkpoint.quantised:
            kv_dtype = "fp16" if device.type == "cpu" and dtype == "float32" else "bf16"
        # Whoever loads weights that are quantised already refuses that.
        if self.quantize is not None and dtype != "bfloat16" and not checkpoint.quantised:
            raise ValueError(f"weights in {dtype} cannot be quantised to {self.quantize}; choose bfloat16 as data type")
        if kv_dtype == "fp32" and dtype != "float32":
            raise ValueError(f"keys and values that are computed in {dtype} cannot be kept in fp32; choose auto")
        if kv_dtype == "fp16" and device.type != "cpu":
            raise ValueError(f"keys and values cannot be kept in fp16 on {device.type}; choose bf16")
        return self._replace(dtype=dtype, kv_dtype=kv_dtype)
