"""Devices with their peak figures, for predictions without a measurement."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

Positive = Annotated[float, Meta(gt=0)]


class Device(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator. Times in seconds, memory in bytes, products in operations (a multiplication and an addition)."""

    name: str
    memory: Positive
    bandwidth: Positive
    """Bytes of memory read per second."""
    bf16: Positive
    """Operations per second in bf16; `int8` and `fp8` likewise, None where it has no units for them."""
    int8: Positive | None = None
    fp8: Positive | None = None
    link: Positive
    """Bytes per second to other devices of the same machine, in one direction."""
    price: float
    """Money per hour; an assumption."""
    origin: str
    """Where the figures are from."""


@cache
def known_devices() -> dict[str, Device]:
    """Return the devices of `devices.toml` by name."""
    text = Path(__file__).with_name("devices.toml").read_bytes()
    return {each.name: each for each in msgspec.toml.decode(text, type=dict[str, list[Device]])["devices"]}
