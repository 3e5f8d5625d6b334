"""The policies by name."""

from __future__ import annotations

from engine.scheduling.fair import Fair
from engine.scheduling.line import WaitingLine
from engine.scheduling.policy import QueuePolicy
from engine.wire import PolicyName


def policy_named(name: PolicyName, aging: float) -> QueuePolicy:
    """A policy with nobody waiting. `aging`: seconds of waiting that outweigh one level of service."""
    match name:
        case "fcfs":
            return WaitingLine(aging=0.0)
        case "priority":
            return WaitingLine(aging)
        case "fair":
            return Fair(aging)
