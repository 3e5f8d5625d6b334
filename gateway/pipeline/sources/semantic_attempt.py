"""What the semantic cache has found out about a turn, for what is learnt at its end."""

from __future__ import annotations

from msgspec import Struct

from cache.embedding.store import Vector
from cache.response import CachedAnswer
from cache.semantic.decision import SemanticDecision
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
