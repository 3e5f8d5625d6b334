"""What a gateway knows of models that its machine does not have yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.route import ComingTier


@dataclass
class ArrivalState:
    """Which tiers cannot answer yet. `serve` changes it while it fetches their models."""

    coming: dict[str, ComingTier] = field(default_factory=dict)
    """Tiers whose models are being fetched, by their names."""
    none_fetched: bool = False
    """Whether the small model of this repository serves because no other one could be fetched."""

    def problems(self) -> list[str]:
        """Say how far each tier is."""
        return [f"the {each.tier} tier ({each.model}) {each}" for each in self.coming.values()]
