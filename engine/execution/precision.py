"""The types in which a model's weights, activations, keys and values are served."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from engine.cache.memory import KVDtype
from kernels import Quantization

Dtype = Literal["auto", "float32", "bfloat16"]


class Precision(NamedTuple):
    """Types in which a model is served; by default those in which its checkpoint is stored."""

    dtype: Dtype = "auto"
    """Type of weights and activations; "auto" is the stored one, and bfloat16 for float16."""
    quantize: Quantization | None = None
    """Quantization of the weights of linear layers (`kernels.Quantization`), if any; needs bfloat16."""
    kv_dtype: KVDtype = "auto"
    """Type of keys and values; "auto" is that of the activations."""

    @property
    def torch_dtype(self) -> torch.dtype:
        """Type of weights and activations as torch's, once it is not "auto"."""
        return torch.float32 if self.dtype == "float32" else torch.bfloat16

    def of(self, stored: str) -> Precision:
        """Resolve "auto" for a checkpoint stored in type `stored`.

        Raises:
            ValueError: weights in float32 are to be quantised.
        """
        dtype: Dtype = self.dtype
        if dtype == "auto":
            dtype = "float32" if stored == "float32" else "bfloat16"
        if self.quantize is not None and dtype != "bfloat16":
            raise ValueError(f"weights in {dtype} cannot be quantised to {self.quantize}; choose bfloat16 as data type")
        return self._replace(dtype=dtype)
