"""A client of Redis Cluster that sends each command to the node of its key, batched as `BatchingRedis` does.

redis-py's `RedisCluster` knows which node has which slot, and asks again when that has changed; each node has a
`BatchingRedis` of its own. All keys that one command, script or transaction touches lie in one slot: their names have
the same hash tag, see docs/redis-keys.md. A pipeline is split by nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ConnectionError,
    DataError,
    MovedError,
    RedisClusterException,
    TimeoutError,
    TryAgainError,
)

from gateway.background import BackgroundTasks
from gateway.storage.redis import BatchingRedis

REDIRECTIONS = 6
"""Most times that one command is sent, because its slot is or goes to another node."""
_CLOSE_TIMEOUT = 1.0
"""Seconds that a question about the slots may still take when the client is closed."""
_UNDER_WAY = 0.05
"""Seconds until a command is sent again of whose keys some have moved already, and others have not."""
_REFRESH = 0.25
"""Least seconds between two questions about which node has which slot."""
_EVERYWHERE = frozenset({"SCRIPT LOAD", "SCRIPT FLUSH", "FLUSHALL", "FLUSHDB"})
_ASKING: Any = (("ASKING",), {})
"""Command of a pipeline that has a node take the next one for a slot that is on the way to it."""
_KEYLESS = frozenset({"ACL WHOAMI", "COMMAND INFO", "CONFIG GET", "INFO", "PING", "TIME"})
_AFTER_NUMBER = frozenset({"EVAL", "EVALSHA"})


def key_of(words: Sequence[Any]) -> Any | None:
    """Return the first key of a command; None if it has none."""
    name = words[0]
    if name in _KEYLESS or name == "WAIT":
        return None
    if name in _AFTER_NUMBER:
        return words[3] if int(words[2]) else None
    if name == "XREAD":
        return words[words.index(b"STREAMS") + 1]
    return words[1]


class ClusterRedis(Redis):
    """`redis.asyncio.Redis` on a cluster. Pipelines and transactions work as on one server; WATCH does not."""

    def __init__(self, topology: RedisCluster, make: Callable[[str, int], BatchingRedis], *, timeout: float) -> None:
        """Args: topology: asked for nothing but the slots; make: a client of one node; timeout: seconds for a question
        about the slots."""
        super().__init__(connection_pool=ConnectionPool())  # no connection is ever made with it
        self._topology = topology
        self._make = make
        self._timeout = timeout
        self._clients: dict[str, BatchingRedis] = {}
        self._leaving = BackgroundTasks("cluster nodes")
        self._observe: Callable[[float, bool], None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._asked = float("-inf")
        self._known = False
        """Whether the slots are known."""

    @property
    def observe(self) -> Callable[[float, bool], None] | None:
        """Called after every round trip with its seconds and whether it failed."""
        return self._observe

    @observe.setter
    def observe(self, observe: Callable[[float, bool], None] | None) -> None:
        self._observe = observe
        for client in self._clients.values():
            client.observe = observe

    async def primaries(self) -> list[BatchingRedis]:
        """Return a client of each node that has slots, in the order of their names.

        Raises:
            RedisError, OSError: no node answers.
        """
        await self._ready()
        nodes = sorted((node.host, node.port) for node in self._topology.get_primaries())
        return [self.at(host, port) for host, port in nodes]

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command on the node of its key, together with those of other tasks.

        Raises:
            RedisError, OSError: as `BatchingRedis`; the slots are asked for again.
        """
        if args[0] in _EVERYWHERE:
            nodes = await self.primaries()
            return (await asyncio.gather(*(node.execute_command(*args, **options) for node in nodes)))[0]
        client, asking = await self.node_of(key_of(args)), False
        for _ in range(REDIRECTIONS):
            try:
                if not asking:
                    return await client.execute_command(*args, **options)
                # The slot is on the way to a node that takes commands for it right after ASKING only.
                async with client.pipeline(transaction=False) as pipeline:
                    pipeline.execute_command("ASKING")
                    pipeline.execute_command(*args, **options)
                    return (await pipeline.execute())[1]
            except AskError as elsewhere:
                client, asking = await self.follow(elsewhere), not isinstance(elsewhere, MovedError)
            except TryAgainError:
                await asyncio.sleep(_UNDER_WAY)
                client, asking = await self.node_of(key_of(args)), False
            except (ConnectionError, TimeoutError, OSError, ClusterDownError):
                self.ask_again()
                raise
        raise ConnectionError("a slot moves from node to node")

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> ClusterPipeline:
        """Return a pipeline; as a transaction, all of its keys lie in one slot."""
        return ClusterPipeline(self, transaction)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close all connections; commands that wait are cancelled."""
        if self._asking is not None:
            asking = self._asking
            await asyncio.wait([asking], timeout=_CLOSE_TIMEOUT)  # redis-py leaves connections open that it is making
            asking.cancel()
            await asyncio.wait([asking])
        await self._leaving.aclose()
        for client in self._clients.values():
            await client.aclose()
        await self._topology.aclose()
        await super().aclose(close_connection_pool)

    async def node_of(self, key: Any | None) -> BatchingRedis:
        """Return the client of the node that has this key; of any for None.

        Raises:
            ConnectionError: no node has it, or none answers.
        """
        await self._ready()
        if key is None:
            return (await self.primaries())[0]
        try:
            node = self._topology.get_node_from_key(key)
        except RedisClusterException:
            node = None
        if node is None:
            self.ask_again()
            raise ConnectionError("no node of the cluster has this key's slot")
        return self.at(node.host, node.port)

    async def follow(self, moved: AskError) -> BatchingRedis:
        """Return the client of the node to which a command was sent on."""
        if isinstance(moved, MovedError):
            await self._topology.nodes_manager.move_slot(moved)
            self.ask_again()
        return self.at(moved.host, moved.port)

    def at(self, host: str, port: str | int) -> BatchingRedis:
        """Return the client of a node."""
        name = f"{host}:{port}"
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = self._make(host, int(port))
            client.observe = self._observe
        return client

    def ask_again(self) -> None:
        """Ask which node has which slot, beside everything else, unless that was asked a moment ago."""
        if self._asking is None and monotonic() - self._asked >= _REFRESH:
            self._asked = monotonic()
            self._asking = asyncio.create_task(self._ask(), name="slots of the cluster")
            self._asking.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _ready(self) -> None:
        if self._known:
            return
        self.ask_again()
        if self._asking is None:
            raise ConnectionError("no node of the cluster answers")
        await asyncio.shield(self._asking)

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._topology.aclose()
                await self._topology.initialize()
            self._known = True
            here = {f"{node.host}:{node.port}" for node in self._topology.get_nodes()}
            for gone in self._clients.keys() - here:
                self._leaving.begin(self._let_go(self._clients.pop(gone)))
        except (RedisClusterException, OSError) as error:  # the first is no RedisError
            raise ConnectionError(f"no node of the cluster answers: {error}") from None
        finally:
            self._asking = None

    async def _let_go(self, client: BatchingRedis) -> None:
        """Close the client of a node that has left, once nothing can wait for an answer of it any more."""
        try:
            await asyncio.sleep(self._timeout)
        finally:
            await client.aclose()


class ClusterPipeline(Pipeline):
    """Commands for one or more nodes. `execute` sends each node its own; answers are in the order of the commands.

    WAIT as the last command goes to all of these nodes, and its answer is the least of theirs.
    """

    def __init__(self, cluster: ClusterRedis, transaction: bool) -> None:
        super().__init__(cluster.connection_pool, cluster.response_callbacks, transaction, None)
        self._cluster = cluster

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Run all commands; what a node refuses because its slot has moved runs on the other node.

        Raises:
            RedisError, OSError: a node does not answer, or, unless `raise_on_error` is False, a command has failed.
        """
        stack, scripts = self.command_stack, set(self.scripts)
        self.command_stack, self.scripts = [], set()
        waiting = stack.pop() if stack and stack[-1][0][0] == "WAIT" else None
        answers: dict[int, Any] = {}
        waited: list[int] = []
        left = [*range(len(stack))]
        for _ in range(REDIRECTIONS):
            parts = await self._by_node(left, stack, answers)
            if self.is_transaction and len(parts) > 1:
                raise DataError("all keys of a transaction lie in one slot of the cluster")
            sent = [
                self._part(node, [(answers.get(index), stack[index]) for index in part], scripts, waiting)
                for node, part in parts.items()
            ]
            for part, given in zip(parts.values(), await asyncio.gather(*sent), strict=True):
                answers |= dict(zip(part, given, strict=False))
                waited += given[len(part) :]
            left = [index for index in left if isinstance(answers[index], AskError | TryAgainError)]
            if not left:
                break
            if any(isinstance(answers[index], TryAgainError) for index in left):
                await asyncio.sleep(_UNDER_WAY)
        results = [answers[index] for index in range(len(stack))]
        if raise_on_error:
            self.raise_first_error(stack, results)
        return results if waiting is None else [*results, min(waited, default=0)]

    async def _by_node(
        self, left: Sequence[int], stack: Sequence[Any], answers: dict[int, Any]
    ) -> dict[BatchingRedis, list[int]]:
        """Return the commands that are left, by the node that is to run them."""
        parts: dict[BatchingRedis, list[int]] = {}
        for index in left:
            if isinstance(moved := answers.get(index), AskError):
                node = await self._cluster.follow(moved)
            else:
                node = await self._cluster.node_of(key_of(stack[index][0]))
            parts.setdefault(node, []).append(index)
        return parts

    async def _part(
        self, node: BatchingRedis, commands: Sequence[tuple[Any, Any]], scripts: set[Any], waiting: Any | None
    ) -> list[Any]:
        """Run the commands of one node, each with what it was answered before. A transaction that was refused has been
        run in no part of it."""
        stack: list[Any] = []
        asking = False
        for before, command in commands:
            if isinstance(before, AskError) and not isinstance(before, MovedError):
                asking = True
                if not self.is_transaction:
                    stack.append(_ASKING)
            stack.append(command)
        if waiting is not None:
            stack.append(waiting)
        async with node.pipeline(transaction=self.is_transaction) as pipeline:
            pipeline.command_stack, pipeline.scripts = [*stack], set(scripts)
            try:
                if asking and self.is_transaction:  # right before MULTI it holds for the whole of it
                    if scripts:
                        await pipeline.load_scripts()  # type: ignore[no-untyped-call]
                        pipeline.scripts.clear()
                    await pipeline.immediate_execute_command("ASKING")  # type: ignore[no-untyped-call]
                given = await pipeline.execute(raise_on_error=False)
                return [answer for sent, answer in zip(stack, given, strict=True) if sent is not _ASKING]
            except (AskError, TryAgainError) as elsewhere:
                return [elsewhere] * len(commands)
            except (ConnectionError, TimeoutError, OSError, ClusterDownError):
                self._cluster.ask_again()
                raise
