"""One replica of a pool's model, as a gateway sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from engine.client.upstream import Upstream
from engine.registration import Lease
from engine.wire import Blocks, ModelInfo
from gateway.engines.merge import EnginePlace
from gateway.records.directory import ReplicaControl
from router.health import Breaker, ErrorRate
from router.in_flight import InFlightLoad, InFlightRequest

if TYPE_CHECKING:
    from gateway.engines.pool import Pool


_UNSET = ReplicaControl(name="-")
"""Control of a replica for which nothing is set."""


class Engine:
    """One replica of a pool's model."""

    def __init__(self, name: str, pool: Pool, client: Upstream, breaker: Breaker) -> None:
        """Args: name: until the engine has told the id of its process, and of older ones, which tell none."""
        self.name = name
        """Public name: the id of the process that is there now, or was last, unless another replica has it. Addresses
        stay inside."""
        self.pool = pool
        self.client = client
        self.breaker = breaker
        self.errors = ErrorRate()
        self.place = EnginePlace(client.address, client.server_name)
        self._unnamed = name
        self._in_flight = InFlightLoad()
        self._followed = False
        client.on_ready = self.introduced

    @property
    def context(self) -> int:
        """Most tokens of prompt and output together: what the engine says, until then what the checkpoint declares."""
        info = self.client.info
        return info.context if info else self.pool.declared_context

    @property
    def load(self) -> int:
        """Tokens still to be computed, predicted: what this gateway has sent, and what waits in the engine's queue.

        What this gateway sent is counted when it is sent: the engine's own report may be a second old.
        """
        report = self.client.load
        return max(self._in_flight.tokens, report.waiting_tokens if report else 0)

    def continues(self, model: ModelInfo | None, tokens: int) -> bool:
        """Whether it gives the same tokens as an engine with this model: the same one in the same bits, on the same
        kind of device; and has room for as many `tokens` of one request, or as that engine.
        """
        mine = self.client.info
        if mine is None or model is None or _identity(mine) != _identity(model):
            return False
        return mine.context >= min(tokens, model.context)

    @property
    def control(self) -> ReplicaControl:
        """What an operator has set for its process."""
        controls = self.pool.controls()
        return controls.get(self.name) or controls.get(self.client.id, _UNSET)

    @property
    def lease(self) -> Lease | None:
        """What the process that is there has announced, if it has."""
        return self.pool.leases.get(self.name)

    @property
    def near(self) -> bool:
        """Whether it is in this gateway's zone."""
        return self.lease is not None and self.lease.zone == self.pool.zone != ""

    @property
    def spot(self) -> bool:
        """Whether its machine may be taken away at short notice."""
        return self.lease is not None and self.lease.spot

    def follow_blocks(self, followed: bool) -> None:
        """Start or stop telling the pool's placer which prefix blocks the engine holds."""
        if followed != self._followed:
            self._followed = followed
            self.client.follow_blocks(self._told if followed else None)

    def _told(self, news: Blocks) -> None:
        self.pool.placer.told(self.name, news)

    def introduced(self) -> None:
        """Take the name of a process that is there in place of another one, forget what that one held, and learn how
        many prefix blocks this one has room for.

        A process that is another replica too, at another address or in another pool, has its id there.
        """
        former, id = self.name, self.client.id
        self.name = id if id and not self.pool.taken(id, self) else self._unnamed
        if self.name != former:
            self.errors = ErrorRate()
            self.pool.placer.forget(former)
            self.pool.renamed(self, former)
        if (load := self.client.load) is not None and load.total_blocks:
            self.pool.placer.index.resize(self.name, load.total_blocks + load.host_blocks)

    def hand_on(self) -> int:
        """Have other engines go on with the answers that it has begun; returns how many.

        None go while no other engine could take them.
        """
        model, now = self.client.info, monotonic()
        others = (
            each
            for each in self.pool.routable
            if each is not self and each.client.resumes and each.breaker.allows(now) and not each.control.drained
        )
        if model is None or not any(each.continues(model, model.context) for each in others):
            return 0
        return self.client.hand_on()

    def has(self, adapter: str) -> bool:
        """Whether the engine says that this adapter version is on its device."""
        report = self.client.load
        return report is not None and adapter in (report.adapters or ())

    @property
    def turns(self) -> int:
        """Number of turns that the engine has from this gateway."""
        return self._in_flight.requests

    @contextlib.contextmanager
    def carrying(self, prompt: int, answer: int, blocks: Sequence[int] = ()) -> Iterator[InFlightRequest]:
        """Count a turn as this engine's load while the body runs.

        Args:
            prompt: tokens of its prompt that are to be computed.
            answer: tokens that its answer may have.
            blocks: its prompt's blocks, where the pool has several replicas.
        """
        pool = self.pool
        began = monotonic() if pool.max_turns else 0.0
        try:
            with self._in_flight.carry(prompt, answer) as flight:
                if blocks:
                    with pool.placer.expecting(self.name, blocks, flight, told=self.client.tells_blocks):
                        yield flight
                else:
                    yield flight
        finally:
            if pool.max_turns:
                pool.turnover.ended(monotonic() - began)

    def succeeded(self) -> None:
        """Record that the engine answered, or was right not to."""
        self.breaker.succeeded()
        self.errors.observe(False, monotonic())

    def failed(self) -> None:
        """Record that the engine did not answer, or broke off."""
        now = monotonic()
        self.breaker.failed(now)
        self.errors.observe(True, now)


def _identity(info: ModelInfo) -> tuple[str, ...]:
    return info.revision, info.dtype, info.kv_dtype, info.device.partition(":")[0]
