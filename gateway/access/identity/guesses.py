"""Slows down guessing of keys: each address may fail so many times a minute. Pure: the time comes in.

One number per address, as in the generic cell rate algorithm: when its failures will have been forgotten. A failure
moves it one interval ahead; an address that is a whole minute ahead has to wait.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

MOST_ADDRESSES = 10_000
"""Most addresses that are remembered; beyond that, those whose last failure is longest ago are forgotten."""

_WINDOW = 60.0
"""Length of the window in seconds."""


class Guesses:
    """Failures by client address; an IPv6 network of 64 bits, which one customer has to himself, counts as one."""

    def __init__(self, per_minute: int, *, most: int = MOST_ADDRESSES) -> None:
        self.configure(per_minute)
        self._most = most
        self._forgotten: OrderedDict[str, float] = OrderedDict()
        """Time at which all failures of an address are forgotten; the latest failure last."""

    def configure(self, per_minute: int) -> None:
        """Allow so many failures a minute from now on."""
        self._interval = _WINDOW / per_minute

    def __len__(self) -> int:
        return len(self._forgotten)

    def wait(self, address: str, now: float) -> float:
        """Return the seconds until this address may try again; 0 if it may now."""
        if not self._forgotten:
            return 0.0
        at = self._forgotten.get(network(address), now)
        # Half an interval of tolerance, so that sums of rounded intervals do not cost one try.
        return max(0.0, at - now - _WINDOW + self._interval) if at - now > _WINDOW - self._interval / 2 else 0.0

    def failed(self, address: str, now: float) -> None:
        """Count one failure."""
        name = network(address)
        self._forgotten[name] = max(self._forgotten.pop(name, now), now) + self._interval
        while len(self._forgotten) > self._most or next(iter(self._forgotten.values())) <= now:
            self._forgotten.popitem(last=False)


def network(address: str) -> str:
    """Return the name of a client: its IPv4 address, or the /64 of its IPv6 address; other texts are themselves."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((int(parsed), 64), strict=False))
