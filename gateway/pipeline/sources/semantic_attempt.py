"""One look-up of the semantic cache: its findings, kept for what is learnt at the turn's end."""

from __future__ import annotations

from msgspec import Struct

from cache.embedding.store import Vector
from cache.response import CachedAnswer
from cache.semantic.decision import Action, SemanticDecision
from cache.semantic.evidence import Evidence
from cache.semantic.profile import Profile


class Attempt(Struct, frozen=True):
    """A turn's look-up and its findings."""

    name: tuple[str, str]
    """Tenant and partition that were searched."""
    phrasing: str
    vector: Vector
    sealed: Profile
    promise: float
    """The tenant's `max_wrong_hits`."""
    evidence: Evidence
    """What comparisons with this embedder and model had shown."""
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
        if decision.band is not None:
            compared = self.evidence.of(decision.band)
            told += f"; of {compared.total:.0f} such answers compared with fresh ones {compared.wrong:.0f} were wrong"
        return f"stored answer {decision.answer} to a similar question: {told}"
