"""The places at which a request may be answered, as they were when a snapshot of them was taken."""

from __future__ import annotations

from msgspec import Struct


class RouteCandidate(Struct, frozen=True, kw_only=True):
    """One engine replica as it was when the snapshot was taken."""

    replica: str
    tier: str
    model: str
    """Public name of its model."""
    context: int
    """Tokens of prompt and output that the replica can hold."""
    prompt_tokens: int
    """Tokens of this request's prompt in its model's tokenizer."""
    load: int
    """Predicted tokens that the replica still has to compute for others."""
    connected: bool = True
    tripped: bool = False
    """Whether its circuit breaker is open."""
    drained: bool = False
    """Whether an operator wants it to get no new requests."""
    full: bool = False
    """Whether its pool has as many turns as it may have."""
    weight: float = 1.0
    """Weight beside other replicas, above 0: one of weight 2 is given twice the load."""
    rank: int = 0
    """Place of its model among those of the tier's pools, in the order in which this request asks them."""

    @property
    def pressure(self) -> float:
        """Load divided by weight, with this request counted, so that of idle replicas the heaviest comes first."""
        return (self.load + self.prompt_tokens) / self.weight


class ComingTier(Struct, frozen=True, kw_only=True):
    """A tier whose model this machine does not have: it is being fetched, or what is here cannot be used."""

    tier: str
    model: str
    """Public name of its model."""
    size: int = 0
    """Bytes of the model's file."""
    here: int = 0
    """Bytes of it that have come."""
    failed: bool = False
    """Whether it could not be fetched; it is tried again later."""
    unusable: bool = False
    """Whether its checkpoint cannot be used, until somebody mends it and starts again."""

    def __str__(self) -> str:
        """Say how far it is."""
        if self.unusable:
            return "is out of service: its checkpoint cannot be used"
        if self.failed:
            return "could not be fetched yet"
        if self.here >= self.size:
            return "is starting"
        return f"is coming: {100 * self.here // self.size} % of {self.size / 1e6:,.0f} MB"


class SleepingTier(Struct, frozen=True, kw_only=True):
    """A tier that has no engine now and gets one when turns wait for it."""

    tier: str
    model: str
    """Public name of its model."""
    context: int
    """Tokens of prompt and output that its model can hold."""
    prompt_tokens: int
    """Tokens of this request's prompt in its model's tokenizer."""
    waits: bool = True
    """Whether a request for `auto` that asks for it waits; else another tier stands in."""
    rank: int = 0
    """As that of a `RouteCandidate`."""
