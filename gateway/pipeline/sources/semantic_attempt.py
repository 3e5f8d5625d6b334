"""One look-up of the semantic cache: its findings, kept for what is learnt at the turn's end."""

from __future__ import annotations

from msgspec import Struct

from cache.embedding.store import Vector
from cache.response import CachedAnswer
from cache.semantic.decision import Action, SemanticDecision
from cache.semantic.profile import Profile


class Attempt(Struct, frozen=True):
    """A turn's look-up and its findings."""

    name: tuple[str, str]
    """Tenant and partition that were searched."""
    phrasing: str
    vector: Vector
    sealed: Profile
    delta: float
    decision: SemanticDecision
    checked: CachedAnswer | None
    """The stored answer with which the fresh one is compared."""

    @property
    def remark(self) -> str | None:
        """The remark for clients about a stored answer that was found and judged."""
        decision = self.decision
        if decision.judgement is None:
            return None
        told = "given" if decision.action is Action.SERVE else f"checked ({decision.reason})"
        return (
            f"stored answer {decision.answer} to a similar question: {told}; right with a probability of at least "
            f"{decision.judgement.lower:.3f}"
        )
