"""Functions that tests of limits share."""

from __future__ import annotations

from collections import Counter

from gateway.access.identity import Principal
from gateway.limits.subjects import subjects_of
from tests.gateway.conftest import Served

STILL = {"input_tokens_per_minute": 4, "output_tokens_per_minute": 4, "burst_seconds": 86_400}
"""Limits of 5,760 tokens that do not refill while a test looks."""


async def used(served: Served) -> Counter[str]:
    """Return what the demo tenant has used of its limits, by the field of its quota."""
    gateway = served.gateway
    subjects = subjects_of(gateway.settings.limits, gateway.view.tenant("demo"), Principal("demo", "demo"), None, None)
    state = await gateway.limiter.read("demo", subjects)
    return Counter({reading.name: reading.limit - reading.remaining for reading in state.readings})
