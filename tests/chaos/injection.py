"""Injects faults into a running installation, and repairs them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from time import monotonic

from tests.chaos.clients import Client
from tests.chaos.engine import FAIL, HANG
from tests.chaos.faults import LANES, Fault, Injected, Kind
from tests.chaos.installation import Installation
from tests.chaos.links import Link
from tests.chaos.processes import EngineProcess, Refused, full_disk
from tests.clocks import HOUR

_DELAY = 0.08
"""Most seconds by which a slow link delays each piece, in either direction."""
_STATUS = {Kind.ENGINE_DRAINED: 0, Kind.CORE_FAILING: 3, Kind.CORE_HUNG: 4}
"""Exit status with which an engine has to end."""
CONFIGURATION_ERROR = 2
"""Exit status of an engine that refuses its checkpoint."""


class Injector:
    """Harms the parts of one installation."""

    def __init__(self, installation: Installation, clients: Sequence[Client]) -> None:
        self._installation = installation
        self._clients = clients
        self.injected: list[Injected] = []
        """Faults so far, in the order in which they began."""

    def possible(self, kind: Kind) -> bool:
        """Whether this machine has what the fault needs."""
        return kind is not Kind.CLOCK_JUMPED or bool(self._installation.clocks)

    async def inject(self, fault: Fault) -> Injected:
        """Inject a fault, repair it, and return when everything is well again."""
        await asyncio.sleep(fault.pause)
        parts = self._installation
        gateway, replica = parts.ids[fault.gateway], parts.engines[fault.engine].name
        done = Injected(fault, monotonic(), gateway=gateway, replica=replica)
        self.injected.append(done)
        await self._harm(done)
        if problem := await (parts.connected() if fault.kind in LANES[0] else parts.ready()):
            done.problems.append(f"not well again after it ({fault.kind}): {problem}")
        if fault.kind in (Kind.GATEWAY_KILLED, Kind.GATEWAY_DRAINED):
            await parts.learn_id(fault.gateway)
        done.ended = monotonic()
        return done

    async def _harm(self, done: Injected) -> None:
        parts, fault = self._installation, done.fault
        engine, gateway = parts.engines[fault.engine], parts.gateways[fault.gateway]
        to_engine = parts.engine_links[fault.gateway][fault.engine]
        to_redis = parts.redis_links[fault.gateway]
        match fault.kind:
            case Kind.ENGINE_KILLED:
                await engine.kill()
                await asyncio.sleep(fault.seconds)
                await engine.start()
            case Kind.ENGINE_STOPPED:
                await _stop(engine.signal, fault.seconds)
            case Kind.ENGINE_DRAINED | Kind.CORE_FAILING | Kind.CORE_HUNG:
                await self._end_engine(engine, done)
            case Kind.CHECKPOINT_DAMAGED:
                await _damage(engine, done)
            case Kind.ENGINE_CUT:
                await _cut(to_engine, fault.seconds)
            case Kind.ENGINE_PARTED:
                await _part(to_engine, fault)
            case Kind.ENGINE_SLOW:
                await _slow(to_engine, fault)
            case Kind.GATEWAY_KILLED:
                await gateway.stop(signal.SIGKILL)
                await asyncio.sleep(fault.seconds)
                await gateway.start()
            case Kind.GATEWAY_STOPPED:
                assert gateway.process is not None
                await _stop(gateway.process.send_signal, fault.seconds)
            case Kind.GATEWAY_DRAINED:
                status = await gateway.stop()
                if status:
                    done.problems.append(f"a gateway that was told to stop ended with status {status}")
                await gateway.start()
            case Kind.CLIENTS_CUT:
                for client in self._clients:
                    client.cut()
            case Kind.REDIS_CUT:
                await _cut(to_redis, fault.seconds)
            case Kind.REDIS_PARTED:
                await _part(to_redis, fault)
            case Kind.REDIS_SLOW:
                await _slow(to_redis, fault)
            case _:
                await self._harm_shared(fault)

    async def _harm_shared(self, fault: Fault) -> None:
        parts = self._installation
        match fault.kind:
            case Kind.REDIS_KILLED:
                await parts.redis.kill()
                await asyncio.sleep(fault.seconds)
                await parts.redis.start()
            case Kind.REDIS_STOPPED:
                await _stop(parts.redis.signal, fault.seconds)
            case Kind.REDIS_FULL:
                await parts.redis_config("maxmemory", "1mb")
                await asyncio.sleep(fault.seconds)
                await parts.redis_config("maxmemory", "0")
            case Kind.DISK_FULL:
                process = parts.gateways[fault.gateway].process
                assert process is not None
                with full_disk(process.pid):
                    await asyncio.sleep(fault.seconds)
            case Kind.CLOCK_JUMPED:
                clock = parts.clocks[int(fault.choice * len(parts.clocks))]
                clock.set(HOUR if fault.engine else -HOUR)
                await asyncio.sleep(fault.seconds)
                clock.set(0)

    async def _end_engine(self, engine: EngineProcess, done: Injected) -> None:
        """Have an engine end by itself, with the status that its documentation names, and start it again."""
        if done.kind is Kind.ENGINE_DRAINED:
            engine.signal(signal.SIGTERM)
        else:
            engine.harm.write_text(HANG if done.kind is Kind.CORE_HUNG else FAIL)
        status = await engine.ended()
        if done.kind is Kind.CORE_HUNG:
            done.noticed = monotonic() - done.began
        if status != _STATUS[done.kind]:
            done.problems.append(f"an engine ended with status {status}, not {_STATUS[done.kind]}")
        await engine.start()


async def _damage(engine: EngineProcess, done: Injected) -> None:
    """Start an engine with a checkpoint of which one bit is wrong: it must refuse."""
    await engine.kill()
    with engine.damaged(done.fault.choice):
        try:
            await engine.start()
            done.problems.append("an engine has started with a damaged checkpoint")
            await engine.kill()
        except Refused as refused:
            if refused.status != CONFIGURATION_ERROR:
                done.problems.append(f"an engine refused a damaged checkpoint with status {refused.status}")
    await engine.start()


async def _stop(send: Callable[[signal.Signals], None], seconds: float) -> None:
    send(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        send(signal.SIGCONT)


async def _cut(link: Link, seconds: float) -> None:
    link.refuse(True)
    link.cut()
    await asyncio.sleep(seconds)
    link.refuse(False)


async def _part(link: Link, fault: Fault) -> None:
    """Hold everything up; afterwards it arrives late, or the connections are gone with it."""
    link.hold()
    await asyncio.sleep(fault.seconds)
    if fault.choice < 0.5:
        link.cut()
    link.release()


async def _slow(link: Link, fault: Fault) -> None:
    link.delay = _DELAY * fault.choice
    await asyncio.sleep(fault.seconds)
    link.delay = 0.0
