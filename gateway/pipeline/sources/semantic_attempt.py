"""One look-up of the semantic cache: what was found out about a turn, for what is learnt at its end."""

from __future__ import annotations

from msgspec import Struct

from cache.embedding.store import Vector
from cache.response import CachedAnswer
from cache.semantic.decision import Action, SemanticDecision
from cache.semantic.profile import Profile


class Attempt(Struct, frozen=True):
    """One look-up."""

    name: tuple[str, str]
    """Tenant and partition."""
    phrasing: str
    vector: Vector
    sealed: Profile
    delta: float
    decision: SemanticDecision
    checked: CachedAnswer | None
    """The stored answer that the fresh one is compared with."""

    @property
    def remark(self) -> str | None:
        """What clients are told of a stored answer that was found and judged."""
        decision = self.decision
        if decision.judgement is None:
            return None
        told = "given" if decision.action is Action.SERVE else f"checked ({decision.reason})"
        return (
            f"stored answer {decision.answer} to a similar question: {told}; right with a probability of at least "
            f"{decision.judgement.lower:.3f}"
        )
