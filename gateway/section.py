"""What all sections of the configuration have in common."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(gt=0)]
Seconds = Annotated[float, Meta(gt=0)]


class SettingsError(Exception):
    """The configuration cannot be used; the message names the field and what it may hold."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections: unknown keys are errors, so that a typing mistake is not silently a default."""
