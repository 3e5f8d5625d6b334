"""Explains which tier `auto` would choose for a text as a first message, without asking an engine or the embedder."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from gateway.pipeline.routing.tiers import Tiers
from router import mixture
from router.complexity import Complexity, score
from router.features import PromptMessage, extract
from router.tier import TIERS, TierChoice

_CHARACTERS_OF_A_TOKEN = 4.0


class Explanation(Struct, frozen=True):
    """A choice, and what it was made from."""

    choice: TierChoice
    complexity: Complexity
    features: dict[str, float]
    """Features of the text that are not 0."""
    model: str
    """Version of the model of success; empty if there is none for the pools' models."""
    uncalibrated: str
    """Why there is none; empty if there is one."""


def explain(tiers: Tiers, prompt: str, quality: int | None) -> Explanation:
    """Choose a tier for a first message. None is drawn, whatever `router.explore` is.

    Where nothing is learnt of it, a user who asks it may get another tier: it depends on who asks, too.

    Args:
        quality: position of the knob; None: as configured.
    """
    seen = extract([PromptMessage("user", prompt)])
    complexity = score(seen)
    costs = tiers.expect([len(prompt) / _CHARACTERS_OF_A_TOKEN] * len(TIERS))
    lot = mixture.lot(prompt.encode("utf-8", "surrogatepass"))
    outlook = tiers.outlook(seen, complexity, tiers.predict(seen), lot=lot, costs=costs)
    choice = tiers.choice(outlook, quality=quality, explore=False)
    features = {name: float(value) for name, value in msgspec.structs.asdict(seen).items() if value}
    return Explanation(choice, complexity, features, tiers.policy.model, tiers.calibration.why)
