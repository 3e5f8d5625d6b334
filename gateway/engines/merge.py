"""Decides where the engines of a pool are: what the configuration names, and what leases tell. Pure.

Leases are hints, connections are the truth: an engine that a lease has told of stays while it is connected, also when
the lease has ended. One that the configuration names no more goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.registration import Lease


class EnginePlace(NamedTuple):
    """Where an engine is reached."""

    address: str
    server_name: str | None = None
    """Name that its certificate is for; None: the host of the address."""


class PresentEngine(NamedTuple):
    """An engine that a gateway has already."""

    place: EnginePlace
    id: str
    """Id of its process, or of the last one there; empty if it told none."""
    connected: bool
    leased: bool
    """Whether only a lease has told of it."""


def merge(
    configured: Sequence[EnginePlace], leases: Iterable[Lease], present: Iterable[PresentEngine]
) -> dict[EnginePlace, str]:
    """Return the places at which a pool has engines, with the ids of those that only a lease tells of.

    Configured places come first. A process that is connected at one of them counts once, whatever it announces. Of
    two leases for an address the newer one counts: the older one's process has ended. New engines are joined only
    while they are ready.
    """
    present = list(present)
    places = {place.address: (place, "") for place in configured}
    known = {each.id for each in present if each.id and each.connected and each.place.address in places}
    connected = {each.place for each in present if each.leased and each.connected}
    newest: dict[str, Lease] = {}
    for lease in sorted(leases, key=lambda each: (each.time, each.id)):
        if lease.understood and lease.address not in places and lease.id not in known:
            newest[lease.address] = lease
    for lease in sorted(newest.values(), key=lambda each: each.id):
        place = EnginePlace(lease.address, lease.server_name)
        if lease.state == "ready" or place in connected:
            places[lease.address] = place, lease.id
    for each in present:
        if each.leased and each.connected and each.place.address not in places and each.id not in known:
            places[each.place.address] = each.place, each.id
    return dict(places.values())
