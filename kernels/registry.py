"""What there is to know of every op: its torch schema, the bodies that serve it, and what it costs at least.

Ops are registered with `torch.library`, so that `torch.compile` and `opcheck` see them as
`torch.ops.roundhouse.<name>`. The engine calls the Python functions behind them directly: that spares a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernels import library

_LIBRARY = torch.library.Library("roundhouse", "DEF")  # type: ignore[no-untyped-call]
_DEVICES = ("CPU", "CUDA")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call must at least do; measurements print the share of the machine's limit that it reaches."""

    bytes: int
    """Moved to and from memory."""
    flops: int
    """A multiplication and an addition are two."""


@dataclass(frozen=True, slots=True)
class Op:
    """One op."""

    name: str
    """Also of the libraries' function that serves it."""
    cost: Callable[..., Cost]
    """Of a call with given sizes; each op says which."""
    built: tuple[str, ...]
    """Devices that it has bodies for, of "cpu" and "cuda"; elsewhere nothing is faster than torch."""

    def body(self, device: str) -> str:
        """Which body serves it on "cpu" or "cuda": the name of a built library, or "reference"."""
        found = library.cpu if device == "cpu" else library.cuda
        return library.REFERENCE if found is None or not found.has(self.name) else found.isa


OPS: dict[str, Op] = {}
"""By name."""


def register(
    signature: str,
    run: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    cost: Callable[..., Cost],
    built: tuple[str, ...] = ("cpu", "cuda"),
) -> None:
    """Register an op.

    Args:
        signature: torch's schema, `name(arguments) -> results`, with `(a!)` at whatever is written to.
        run: what computes it on any device.
        fake: the same for tensors without memory.
        built: devices whose libraries have it.
    """
    name = signature.partition("(")[0]
    OPS[name] = Op(name, cost, built)
    _LIBRARY.define(signature)  # type: ignore[no-untyped-call]
    for device in _DEVICES:
        _LIBRARY.impl(name, run, device)  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"roundhouse::{name}", fake, lib=_LIBRARY)
