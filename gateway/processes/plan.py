"""What the supervisor tells its gateway processes: the settings in force, and which models are still coming."""

from __future__ import annotations

import os
from typing import IO

import msgspec
from msgspec import Struct

from gateway.config.settings import Settings
from gateway.engines.arrival import ArrivalState
from router.route import ComingTier


class Plan(Struct, frozen=True):
    """All of it: whoever takes a plan over needs no earlier one."""

    settings: Settings
    """Settings with the addresses of what the supervisor starts."""
    coming: dict[str, ComingTier] = {}
    none_fetched: bool = False

    def encode(self) -> bytes:
        """Encode as one line."""
        return msgspec.json.encode(self)

    @property
    def arrivals(self) -> ArrivalState:
        return ArrivalState(dict(self.coming), self.none_fetched)


def decode(data: bytes) -> Plan:
    """Decode a plan.

    Raises:
        msgspec.MsgspecError: it is none.
    """
    return msgspec.json.decode(data, type=Plan)


def write(file: IO[bytes], plan: Plan) -> None:
    """Replace the plan in a file that processes have inherited."""
    data = plan.encode()
    os.pwrite(file.fileno(), data, 0)
    os.ftruncate(file.fileno(), len(data))


def read(file: int) -> Plan:
    """Read the plan from an inherited file, whose position all processes share."""
    return decode(os.pread(file, os.fstat(file).st_size, 0))
