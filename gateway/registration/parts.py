"""What the admin API needs beside the gateway's other parts."""

from __future__ import annotations

from dataclasses import dataclass

from cache.response import ResponseCache
from gateway.registration.job_store import JobStore
from gateway.registration.registrar import Registrar


@dataclass(frozen=True)
class AdminParts:
    """Made and started by `gateway.app`."""

    jobs: JobStore
    registrar: Registrar
    cache: ResponseCache
    secret: bytes
    """Of which API keys' digests are made."""
