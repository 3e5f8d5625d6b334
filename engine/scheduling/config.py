"""Sizes of one engine's scheduler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Sizes of one engine.

    `blocks`: KV blocks; `step_tokens`: most tokens of one step; `max_running`: most requests in one step;
    `max_waiting`: most requests beyond those; `aging`: seconds of waiting that outweigh one level of service, so that
    a low class delays a request but never starves it.
    """

    blocks: int
    step_tokens: int = 2048
    max_running: int = 64
    max_waiting: int = 1024
    aging: float = 30.0

    def __post_init__(self) -> None:
        if self.max_running < 1 or self.max_waiting < 1 or self.aging < 0:
            raise ValueError("max_running and max_waiting must be positive, aging must not be negative")
        if self.step_tokens < self.max_running:
            # Otherwise decodes alone could fill every step and a prompt would never start.
            raise ValueError(
                f"step_tokens ({self.step_tokens}) must be at least max_running ({self.max_running}): raise the one "
                "or lower the other"
            )

    @property
    def max_requests(self) -> int:
        """Most live requests."""
        return self.max_running + self.max_waiting
