"""Explains which tier `auto` would choose for a text as a first message, without asking an engine or the embedder."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from gateway.pipeline.routing.tiers import Tiers
from router.complexity import Complexity, score
from router.features import PromptMessage, extract
from router.tier import TierChoice


class Explanation(Struct, frozen=True):
    """A choice, and what it was made from."""

    choice: TierChoice
    complexity: Complexity
    features: dict[str, float]
    """Features of the text that are not 0."""
    model: str
    """Version of the model of success; empty if it is off."""


def explain(tiers: Tiers, prompt: str, quality: int | None) -> Explanation:
    """Choose a tier for a first message. Args: quality: position of the knob; None: as configured."""
    seen = extract([PromptMessage("user", prompt)])
    complexity = score(seen)
    choice = tiers.choice(seen, complexity, tiers.predict(seen), quality=quality)
    features = {name: float(value) for name, value in msgspec.structs.asdict(seen).items() if value}
    return Explanation(choice, complexity, features, tiers.policy.model)
