"""Puts the tensors that store a quantised weight together. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.quantization import StoredQuantization
from engine.checkpoint.source import StoredTensor

_UNREAD = re.compile(r"\.(?:(?:input|output|activation|q|k|v)_scale|(?:input|output)_zero_point|input_scale_ub)$")
"""Names of tensors that say how to round activations or KV, which stay in 16 bits here."""


def join_parts(tensors: Iterable[StoredTensor], quantization: StoredQuantization) -> Iterator[StoredTensor]:
    """Yield each weight once, under transformers' name for it, where its first tensor is, and all else as it is.

    Raises:
        CheckpointError: tensors of a module are no weight that the method stores.
    """
    part = re.compile(rf"(.+)\.({'|'.join(map(re.escape, quantization.parts))})")
    modules: dict[str, dict[str, StoredTensor]] = {}
    ordered: list[StoredTensor | str] = []
    for tensor in tensors:
        found = part.fullmatch(tensor.name)
        if found is None:
            if not _UNREAD.search(tensor.name):
                ordered.append(tensor)
            continue
        module, name = found.groups()
        if module not in modules:
            ordered.append(module)
        if name in modules.setdefault(module, {}):
            raise CheckpointError(f"tensor {tensor.name!r} is in two files; is there an old shard among them?")
        modules[module][name] = tensor
    for entry in ordered:
        yield entry if isinstance(entry, StoredTensor) else _joined(entry, modules.pop(entry), quantization)


def _joined(module: str, parts: dict[str, StoredTensor], quantization: StoredQuantization) -> StoredTensor:
    rules = (quantization.rules.get((name, tensor.type)) for name, tensor in parts.items())
    rule = next((rule for rule in rules if rule is not None), None)
    if rule is not None:
        return StoredTensor(f"{module}.weight", rule, (), np.empty(0, np.uint8), parts, quantization.block)
    if set(parts) == {"weight"}:
        return parts["weight"]
    stored = ", ".join(f"{name} ({tensor.type})" for name, tensor in sorted(parts.items()))
    raise CheckpointError(
        f"{module!r} is stored as {stored}: no weight of quant_method {quantization.method!r} that is served"
    )
