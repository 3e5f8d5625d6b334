"""What is set aside for a turn or socket."""

from __future__ import annotations

from msgspec import Struct

from gateway.limits.counters import Counters
from gateway.records.quota import Amounts, Charge, LimitSubject


class Reservation(Struct, eq=False):
    """Amounts set aside for one turn or socket. It must be settled; settling again changes nothing."""

    tenant: str
    id: str
    subjects: tuple[LimitSubject, ...]
    """Subjects that it counts against; empty if nothing limits it, and then Redis is not asked."""
    amounts: Amounts
    local: bool
    """Whether it was taken from this process's book because Redis was not available."""
    counters: list[Counters]
    """Counters of each subject after the reservation was taken."""

    def charges(self, used: Amounts, *, ended: bool = False) -> list[Charge]:
        """Return what is to be charged if the gateway dies now.

        Args: ended: whether the turn has ended and is about to be settled.
        """
        return [Charge(self.id, used, self.subjects, ended and not self.local)] if self.subjects else []
