"""Sizes and rules of one engine's scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from engine.wire import PolicyName

POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Sizes of one engine and how it chooses.

    `blocks`: KV blocks; `step_tokens`: most tokens of one step; `max_running`: most requests in one step;
    `max_waiting`: most requests beyond those; `policy`: order of service (docs/engine.md); `aging`: seconds of waiting
    that outweigh one level of service, so that a low class is delayed and never starved; `max_preemptions`: how often
    one request may lose its KV; `max_queue_seconds`: a request whose first step is predicted to be further away is
    refused, None never refuses one for that; `host_load_tokens`: a shorter prefix in host memory is computed again,
    because a load costs its request a step.
    """

    blocks: int
    step_tokens: int = 2048
    max_running: int = 64
    max_waiting: int = 1024
    policy: PolicyName = "fair"
    aging: float = 30.0
    max_preemptions: int = 3
    max_queue_seconds: float | None = None
    host_load_tokens: int = 64

    def __post_init__(self) -> None:
        if self.max_running < 1 or self.max_waiting < 1 or self.aging < 0:
            raise ValueError("max_running and max_waiting must be positive, aging must not be negative")
        if self.max_preemptions < 0 or self.host_load_tokens < 0:
            raise ValueError("max_preemptions and host_load_tokens must not be negative")
        if self.max_queue_seconds is not None and self.max_queue_seconds <= 0:
            raise ValueError("max_queue_seconds must be positive, or None for no limit")
        if self.policy not in POLICIES:
            raise ValueError(f"policy {self.policy!r} is unknown; use one of {', '.join(POLICIES)}")
        if self.step_tokens < self.max_running:
            # Otherwise decodes alone could fill every step and a prompt would never start.
            raise ValueError(
                f"step_tokens ({self.step_tokens}) must be at least max_running ({self.max_running}): raise the one "
                "or lower the other"
            )

    @property
    def max_requests(self) -> int:
        """Most live requests, running and waiting."""
        return self.max_running + self.max_waiting
