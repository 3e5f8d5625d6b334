"""One replica of a pool's model, as a gateway sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from engine.client.engine_client import EngineClient
from engine.wire import ModelInfo
from router.health import Breaker, ErrorRate
from router.in_flight import InFlightLoad, InFlightRequest

if TYPE_CHECKING:
    from gateway.engines.pools import Pool


class Engine:
    """One replica of a pool's model."""

    def __init__(self, name: str, pool: Pool, client: EngineClient, breaker: Breaker) -> None:
        self.name = name
        """Public name; addresses stay inside."""
        self.pool = pool
        self.client = client
        self.breaker = breaker
        self.errors = ErrorRate()
        self._in_flight = InFlightLoad()

    @property
    def context(self) -> int:
        """Most tokens of prompt and output together: what the engine says, until then what the checkpoint declares."""
        info = self.client.info
        return info.context if info else self.pool.text.context

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
