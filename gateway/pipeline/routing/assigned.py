"""The target of a route that a turn has asked for by the route's name."""

from __future__ import annotations

from msgspec import Struct

from gateway.records.directory import Route


class Assigned(Struct, frozen=True):
    """Where a turn goes that asked for a route."""

    route: Route
    model: str
    conversation: bytes
    """Digest of the conversation's beginning."""
    copied: bool = False
    """Whether the route's shadow gets a copy."""

    @property
    def trial(self) -> bool:
        """Whether targets are being compared."""
        stable, *others = self.route.targets
        return stable.weight > 0 and any(target.weight > 0 for target in others)

    @property
    def canary(self) -> bool:
        """Whether it goes to one of those on trial."""
        return self.trial and self.model != self.route.targets[0].model

    @property
    def sentence(self) -> str:
        """For the route's reasons."""
        return f"the name {self.route.name} leads this conversation to {self.model}"
