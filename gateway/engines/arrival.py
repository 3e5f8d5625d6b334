"""What a gateway knows of models that its machine does not have."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.route import ComingTier


@dataclass
class ArrivalState:
    """Which tiers cannot answer yet. `serve` changes it while it fetches their models."""

    coming: dict[str, ComingTier] = field(default_factory=dict)
    """What is known of pools whose models are being fetched, or cannot be used, by their names."""
    none_fetched: bool = False
    """Whether the small model of this repository serves because no other one could be fetched."""

    def problems(self, *, unusable: bool) -> list[str]:
        """Say how far each tier is: those whose checkpoint cannot be used, or all others."""
        found = [each for each in self.coming.values() if each.unusable == unusable]
        return [f"the {each.tier} tier ({each.model}) {each}" for each in found]
