"""Leases by which engines announce themselves in Redis, and the seal that shows that an engine of ours wrote one.

An engine writes its lease every second; gateways that read it connect to its address. A lease is a hint: whether an
engine is there, its connection tells. Whoever can write to Redis but lacks the key, which is derived from the
installation's secret, cannot have prompts sent to an engine of their own. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from engine.wire import PROCESS_ID, PROTOCOL_MIN, PROTOCOL_VERSION

LEASE_KEY = "rh1:engine:{{{pool}}}:{id}"
INDEX_KEY = "rh1:engines:{{{pool}}}"
LIFETIME = 10.0
"""Seconds after its last renewal at which a lease ends."""
INDEX_LIFETIME = 3600.0
MAX_SKEW = 300.0
"""Most seconds by which the time in a lease may differ from the reader's: one that was kept is not taken for new."""
KEY_BYTES = 32
TTFT_BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of `Work.first_tokens`, in seconds; the last bucket has none."""

Reason = Literal["seal", "form", "time"]
"""Why a lease is refused: its seal is missing or wrong; it is none of this pool and id; it was written too long ago."""


class LeaseRefused(Exception):
    """The lease is not to be believed."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Work(Struct, frozen=True, kw_only=True):
    """What an engine has done since it started."""

    steps: int
    seconds: float
    """Duration of all steps."""
    tokens: int
    """Tokens in all steps, those of prompts and of drafts included."""
    rows: int
    """Requests in all steps, each counted in every step that it was in."""
    outputs: int
    """Tokens of answers."""
    first_tokens: tuple[int, ...]
    """Requests by the time from their arrival to their first token, in buckets that end at `TTFT_BOUNDS`."""


class Lease(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an engine says of itself."""

    id: Annotated[str, Meta(pattern=PROCESS_ID, min_length=1)]
    """Id of its process."""
    pool: str
    """Pool that it belongs to."""
    address: Annotated[str, Meta(pattern=r"\A(ws|wss|unix)://")]
    """Address at which gateways reach it."""
    server_name: str | None = None
    """Name that its certificate is for; None: the host of the address."""
    model: str
    revision: str
    """Digest of the model's files."""
    protocol: int
    protocol_min: int
    """Oldest version of the wire's protocol that it gets on with; `protocol` is the newest."""
    state: Literal["ready", "draining", "asleep"]
    zone: str = ""
    spot: bool = False
    """Whether its machine may be taken away at short notice."""
    capacity: int
    """Most requests in one step."""
    load: int
    """Requests that run or wait there."""
    waiting: int = 0
    """Those of them that wait."""
    waiting_tokens: int = 0
    """Prompt tokens that are not computed yet."""
    kv_share: float = 0.0
    """Share of the KV blocks that running requests use."""
    adapter_share: float = 0.0
    """Share of the blocks for adapters that those take which requests name or which are pinned."""
    work: Work | None = None
    """What it has done; None from engines that do not tell."""
    time: float
    """When it was written, in seconds since 1970."""

    @property
    def understood(self) -> bool:
        """Whether the engine and this program have a version of the protocol in common."""
        return self.protocol_min <= PROTOCOL_VERSION and self.protocol >= PROTOCOL_MIN


_decoder = msgspec.json.Decoder(Lease)


def sealed(lease: Lease, key: bytes) -> bytes:
    """Return what Redis holds of a lease: its seal in hex digits, a space, and JSON."""
    document = msgspec.json.encode(lease)
    return _seal(document, key) + b" " + document


def opened(value: bytes, key: bytes, *, pool: str, id: str, now: float) -> Lease:
    """Read the lease that Redis holds for an id of a pool.

    Raises:
        LeaseRefused: see there.
    """
    seal, _, document = value.partition(b" ")
    if not hmac.compare_digest(seal, _seal(document, key)):
        raise LeaseRefused("seal", "its seal is missing, or made with another key")
    try:
        lease = _decoder.decode(document)
    except msgspec.DecodeError as error:
        raise LeaseRefused("form", f"it cannot be read: {error}") from None
    if (lease.pool, lease.id) != (pool, id):
        raise LeaseRefused("form", f"it is the lease of {lease.id} in the pool {lease.pool}")
    if abs(lease.time - now) > MAX_SKEW:
        raise LeaseRefused("time", f"it was written {now - lease.time:.0f} s ago, or a clock is wrong")
    return lease


def _seal(document: bytes, key: bytes) -> bytes:
    return hmac.digest(key, b"roundhouse-engine-lease:" + document, hashlib.sha256).hex().encode()
