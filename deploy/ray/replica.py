"""One engine on a node: an actor with the engine's process as its child.

A crash of either stays apart, and no process of Ray loads torch. Tokens go from the engine's own socket to gateways;
through Ray goes only what state the engine is in.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from typing import Literal

import msgspec
import ray

from deploy.ray.engine import EngineStart, RayNode, command
from gateway.processes.child import Child, ChildFailed
from gateway.processes.replicas import EngineReady
from gateway.scaling.actuator import StartedReplica

_MARGIN = 10.0
"""Seconds in which an engine must end once the time for its requests is over."""
_REGISTER = "ROUNDHOUSE_REGISTER"


class ReplicaActor:
    """The actor. Its engine is started with it, and again when it dies after it has answered."""

    def __init__(self, start: EngineStart, name: str) -> None:
        """Args: name: of the actor."""
        self._engine = _Engine(start, name)
        self._loop = asyncio.new_event_loop()
        # The kernel ends the engine when the thread that has forked it ends: this one lives as long as the actor.
        threading.Thread(target=self._loop.run_until_complete, args=(self._engine.run(),), daemon=True).start()

    def state(self) -> StartedReplica | None:
        """Return what is known of the engine; None once it has ended because it was told to."""
        return None if self._engine.ended else self._engine.told

    def drain(self) -> None:
        """Begin to end the engine: no new requests, running ones have `scaling.drain_timeout`. Returns at once."""
        asyncio.run_coroutine_threadsafe(self._engine.end(), self._loop)


class _Engine:
    """Runs the process. Ray would make an actor with such methods an asynchronous one."""

    def __init__(self, start: EngineStart, name: str) -> None:
        self.told = StartedReplica(name=name, pool=start.pool.tier, state="starting", since=time.time())
        self.ended = False
        threads = {"OMP_NUM_THREADS": str(start.pool.threads), "OMP_WAIT_POLICY": "PASSIVE"}
        grace = start.drain_timeout + _MARGIN
        self._child = Child(f"engine-{name}", command(start, _node()), threads, grace=grace, heard=self._heard)
        self._registers = start.register is not None or _REGISTER in os.environ

    async def run(self) -> None:
        try:
            if not self._registers:
                raise ChildFailed(f"this node does not know the Redis of the gateways: set {_REGISTER}")
            await self._child.run(again=self._again)
        except ChildFailed as error:
            self._enter("failed", str(error))
        await asyncio.Event().wait()  # until the actor ends

    async def end(self) -> None:
        self._enter("draining")
        await self._child.stop()
        self.ended = True

    def _heard(self, line: bytes) -> None:
        """Take over what the engine prints: one line, when it answers."""
        with contextlib.suppress(msgspec.MsgspecError):
            id = msgspec.json.decode(line, type=EngineReady).id
            self.told = msgspec.structs.replace(self.told, id=id)
            self._enter("ready")

    def _again(self) -> bool:
        """Whether an engine that has died is started again: only where one has answered before."""
        answered = self.told.id != ""
        if answered:
            self._enter("starting")
        return answered

    def _enter(self, state: Literal["starting", "ready", "draining", "failed"], reason: str = "") -> None:
        if self.told.state != "draining":  # from which there is no way back
            self.told = msgspec.structs.replace(self.told, state=state, since=time.time(), reason=reason)


def _node() -> RayNode:
    """Return this node, as its labels describe it."""
    labels = ray.get_runtime_context().get_node_labels()
    return RayNode(
        host=ray.util.get_node_ip_address(),
        zone=labels.get("ray.io/availability-zone", ""),
        spot=labels.get("ray.io/market-type") == "spot",
    )
