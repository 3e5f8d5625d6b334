"""The list of all ops: their torch schemas, the bodies that serve them, and their least costs.

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
    """The least that a call must do; measurements print the share of the machine's limit that it reaches."""

    bytes: int
    """Bytes moved to and from memory."""
    flops: int
    """Floating-point operations; a multiplication with an addition counts as two."""


@dataclass(frozen=True, slots=True)
class Op:
    """One op."""

    name: str
    """Name of the op and of the libraries' function that serves it."""
    cost: Callable[..., Cost]
    """The least cost of a call, by sizes that each op names."""
    built: tuple[str, ...]
    """Devices that have a built body, of "cpu" and "cuda"; elsewhere nothing is faster than torch."""

    def body(self, device: str) -> str:
        """The body that serves the op on "cpu" or "cuda": the name of a built library, or "reference"."""
        found = library.cpu if device == "cpu" else library.cuda
        return library.REFERENCE if found is None or not found.has(self.name) else found.isa


OPS: dict[str, Op] = {}
"""All ops by name."""


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
        run: function that computes the op on any device.
        fake: function that gives outputs without memory, for tracing.
        built: devices whose libraries have a body.
    """
    name = signature.partition("(")[0]
    OPS[name] = Op(name, cost, built)
    _LIBRARY.define(signature)  # type: ignore[no-untyped-call]
    for device in _DEVICES:
        _LIBRARY.impl(name, run, device)  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"roundhouse::{name}", fake, lib=_LIBRARY)
