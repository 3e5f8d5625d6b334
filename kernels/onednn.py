"""bf16 linear layers on the CPU with weights in oneDNN's blocked layout.

Reordering a weight once instead of on every call makes decoding about twice as fast; the result is that of
`reference.linear` up to the order of the fp32 accumulation. torch's own compiler uses the same two ops when it freezes
a model.
"""

from __future__ import annotations

import torch

_TOKENS_HINT = 32
"""The batch size that the layout is chosen for: good for decodes, and no worse than others for prompts."""


def supports(weight: torch.Tensor) -> bool:
    """Whether `pack` takes this weight: 2-D bf16 on a CPU with AVX-512 or AMX."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and weight.dim() == 2
        and torch._C._has_mkldnn
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def pack(weight: torch.Tensor) -> torch.Tensor:
    """An opaque copy of `weight` [out, in] for `linear`."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _TOKENS_HINT)
    return packed


def linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`reference.linear` for a packed weight."""
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")
    return result
