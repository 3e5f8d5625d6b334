"""What `roundhouse doctor` finds out about one thing."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["ok", "note", "warning", "broken"]
PATIENCE = 2.0
"""Seconds within which a service must answer."""


class CheckResult(msgspec.Struct, frozen=True):
    """What was found about one thing."""

    area: str
    name: str
    value: str
    state: State = "ok"
    remedy: str = ""
    """What to do about the finding, unless its state is ok."""
