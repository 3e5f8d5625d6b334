"""The engines behind this gateway: one connection each, grouped in pools, seen by the router as candidates."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic
from types import MappingProxyType

from engine.client.encoder import ConversationEncoder
from engine.client.engine_client import EngineClient
from engine.text.processor import TextProcessor
from engine.tls import Certificate
from engine.wire import ModelInfo
from gateway.background import BackgroundTasks, failure_reporter
from gateway.config.settings import PoolSettings, RouterSettings
from gateway.engines.engine import Engine
from gateway.engines.placement import Placement, PlacementQuery, Placer
from gateway.records.directory import ReplicaControl
from gateway.tools.formats import tool_format
from router.health import Breaker
from router.replica import Replica as Choosable
from router.replica import ReplicaPolicy
from router.route import AUTO, ComingTier, RouteCandidate, RouteDecision
from router.shedding import Turnover

logger = logging.getLogger("roundhouse.engines")

_USED = ReplicaControl(name="-")
"""Control of a replica for which nothing is set."""
RELIEF = 30.0
"""Seconds for which a replica that is no longer configured is kept while no other one is connected."""
_POLL = 0.05
"""Seconds between looks for an engine that can take an answer up."""
_SMOOTHING = 0.05
"""Weight of the newest answer in the mean length."""


class Pool:
    """One tier: a model, its tokenizer and the engines that serve it."""

    def __init__(self, settings: PoolSettings, router: RouterSettings, tls: Certificate | None = None) -> None:
        self.path = Path(settings.model)
        """Folder or GGUF file of the checkpoint."""
        self.tier = settings.tier
        self.name = settings.name
        self.text = TextProcessor.from_path(self.path)
        self.encoder = ConversationEncoder(self.text)
        self.tools = tool_format(self.text.template_source(tools=True), settings.tool_parser)
        """Format in which the model writes function calls."""
        self.vocabulary = self.text.digest
        """Digest that is equal for pools whose prompts have the same token ids, so that a prompt is tokenised once for
        all of them."""
        self.engines: list[Engine] = []
        self.leaving: list[Engine] = []
        """Replicas that are no longer configured, but still used until one of `engines` is connected."""
        self.placer = Placer()
        self.turnover = Turnover()
        self.max_turns = 0
        """Most turns that this gateway sends to the pool at the same time; 0: any number."""
        self._answer_tokens: float | None = None
        self._connect = partial(EngineClient, tls=tls, on_fault=failure_reporter("engine connections"))
        self.configure(settings, router, taken=())

    @property
    def routable(self) -> list[Engine]:
        """Replicas to which new turns may go."""
        return self.engines if any(each.client.connected for each in self.engines) else self.engines + self.leaving

    def configure(self, settings: PoolSettings, router: RouterSettings, *, taken: Collection[str]) -> None:
        """Use the replicas of a new configuration; those that stay are left alone.

        Args:
            taken: names that no new replica may have.
        """
        before = {engine.client.address: engine for engine in self.leaving + self.engines}
        free = (name for index in count() if (name := f"{self.tier}-{index}") not in taken)
        self.engines = [
            before.pop(address)
            if address in before
            else Engine(next(free), self, self._connect(address), Breaker(failures=1, pause=1.0))
            for address in dict.fromkeys(settings.engines)
        ]
        for engine in self.engines:
            engine.breaker.configure(failures=router.breaker_failures, pause=router.breaker_seconds)
        self.leaving = list(before.values())
        self.max_turns = settings.max_turns
        self.placer.policy = ReplicaPolicy(beta=router.replica_beta, window=router.replica_window)
        several = len(self.engines) + len(self.leaving) > 1
        for engine in self.engines + self.leaving:
            engine.client.follow_blocks(partial(self.placer.told, engine.name) if several else None)

    async def successor(
        self,
        model: ModelInfo | None,
        tokens: int,
        until: float,
        full: Mapping[Engine, float],
        *,
        unless: Callable[[], bool],
    ) -> Engine | None:
        """Return the engine that may go on with an answer, which may be the one that began it, started again.

        None if there is none before the time `until`, or as soon as `unless` returns true.

        Args:
            model: what the answer began with.
            tokens: most tokens that its prompt and all of it may have.
            full: engines that are not to be asked before a time.
        """
        while not unless():
            now = monotonic()
            able = [
                engine
                for engine in self.routable
                if engine.client.resumes and engine.continues(model, tokens) and full.get(engine, now) <= now
            ]
            if able:
                return min(able, key=lambda each: (not each.breaker.allows(now), each.load, each.name))
            if now > until:
                return None
            await asyncio.sleep(_POLL)
        return None

    @property
    def turns(self) -> int:
        """Number of turns that the pool's engines have from this gateway."""
        return sum(engine.turns for engine in self.engines + self.leaving)

    def answer_tokens(self, most: int) -> int:
        """Expected length of an answer that may have `most` tokens, from the latest answers."""
        return most if self._answer_tokens is None else min(most, round(self._answer_tokens))

    def answered(self, tokens: int) -> None:
        """Record an answer of so many tokens."""
        mean = self._answer_tokens
        self._answer_tokens = tokens if mean is None else mean + _SMOOTHING * (tokens - mean)

    async def relieved(self) -> None:
        """Wait until one of `engines` is connected, for a bounded time."""
        waiting = [asyncio.create_task(engine.client.wait_connected()) for engine in self.engines]
        try:
            if waiting:
                await asyncio.wait(waiting, timeout=RELIEF, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def announce(self, adapter: str) -> None:
        """Tell the replica that the router would choose now that a request for this adapter version is coming."""
        connected = [engine for engine in self.routable if engine.client.connected]
        if connected:
            now = monotonic()
            likely = min(
                connected,
                key=lambda each: (not each.breaker.allows(now), not each.has(adapter), each.load, each.name),
            )
            likely.client.announce(adapter)

    @property
    def revisions(self) -> list[str]:
        """Revisions of the model that engines of this pool have reported; normally one."""
        return sorted({engine.client.info.revision for engine in self.engines if engine.client.info})


class Engines:
    """All pools, in the order of the configuration."""

    def __init__(
        self,
        pools: Sequence[PoolSettings],
        router: RouterSettings,
        tls: Certificate | None = None,
        coming: Mapping[str, ComingTier] = MappingProxyType({}),
    ) -> None:
        """Read every pool's tokenizer.

        Args:
            tls: for engines at wss:// addresses.
            coming: tiers whose models are not here, which others change; `add` makes their pools.

        Raises:
            OSError, ValueError: a checkpoint's files are missing or cannot be used.
        """
        self.coming = coming
        self._tls = tls
        self._order = [settings.name for settings in pools]
        self.pools = [Pool(settings, router, tls) for settings in pools if settings.tier not in coming]
        self._engines = {engine.name: engine for pool in self.pools for engine in pool.engines}
        """All engines by name, also those that have left, of which turns may still know the name."""
        self.left: list[Engine] = []
        """Engines that have left since they were last asked for."""
        self._changing = BackgroundTasks("replicas")
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """Tasks that let replicas go, by the replica's name."""

    def configure(self, pools: Sequence[PoolSettings], router: RouterSettings) -> None:
        """Take over the replicas and breakers of a new configuration of the same pools.

        New replicas are connected to. Those that go get no new turns once another one is connected, and are let go
        when they have finished theirs.
        """
        there = {pool.name: pool for pool in self.pools}
        for settings in pools:
            if (pool := there.get(settings.name)) is None:  # its model is still coming
                continue
            pool.configure(settings, router, taken=self._engines.keys())
            for engine in pool.engines:
                if engine.name not in self._engines:
                    self._engines[engine.name] = engine
                    self._changing.begin(engine.client.start())
                elif task := self._leaving.pop(engine.name, None):
                    task.cancel()  # it is named again
            for engine in pool.leaving:
                if engine.name not in self._leaving:
                    self._leaving[engine.name] = self._changing.begin(self._let_go(pool, engine))

    async def add(self, settings: PoolSettings, router: RouterSettings) -> Pool:
        """Make the pool of a tier whose model has come, and start connecting to its engines.

        Raises:
            OSError, ValueError: the checkpoint cannot be used.
        """
        pool = await asyncio.to_thread(Pool, settings, router, self._tls)
        self.pools.append(pool)
        self.pools.sort(key=lambda each: self._order.index(each.name))
        self._engines |= {engine.name: engine for engine in pool.engines}
        for engine in pool.engines:
            await engine.client.start()
        self._changing.begin(pool.encoder.start())
        return pool

    async def _let_go(self, pool: Pool, engine: Engine) -> None:
        await pool.relieved()
        del self._leaving[engine.name]  # from here on there is no way back
        pool.leaving.remove(engine)
        await engine.client.idle()
        await engine.client.aclose()
        pool.placer.forget(engine.name)
        self.left.append(engine)
        logger.info("engine let go", extra={"replica": engine.name})

    def __getitem__(self, replica: str) -> Engine:
        return self._engines[replica]

    async def start(self) -> None:
        """Start connecting to all engines, and the processes that render chat templates; returns at once."""
        for engine in self._engines.values():
            await engine.client.start()
        for encoder in {pool.vocabulary: pool.encoder for pool in reversed(self.pools)}.values():
            self._changing.begin(encoder.start())

    async def aclose(self) -> None:
        await self._changing.aclose()
        await asyncio.gather(*(pool.encoder.aclose() for pool in self.pools))
        await asyncio.gather(*(engine.client.aclose() for engine in self._engines.values()))

    @property
    def live(self) -> int:
        """Number of generations that run in all engines for this gateway."""
        return sum(engine.client.live for engine in self._engines.values())

    def pool(self, name: str) -> Pool:
        """The pool of the model with this name."""
        return next(pool for pool in self.pools if pool.name == name)

    def named(self, model: str) -> list[Pool]:
        """Pools that a name of the configuration may mean; none for another name."""
        return [pool for pool in self.pools if model in (pool.name, pool.tier, AUTO)]

    def pools_for(self, model: str, may_use: Callable[[str], bool] = lambda model: True) -> list[Pool]:
        """The pools that may answer a request for `model`: a model's own, or all for `auto`, tiers and unknown names.

        Args:
            may_use: of which models; the others are as unknown as if there were none.
        """
        usable = [pool for pool in self.pools if may_use(pool.name)]
        return [pool for pool in usable if pool.name == model] or usable

    def candidates(
        self, prompt_tokens: Mapping[str, int], controls: Mapping[str, ReplicaControl] | None = None
    ) -> list[RouteCandidate]:
        """Return the router's snapshot of all engines.

        Args:
            prompt_tokens: length of the prompt by pool name, for the pools that may answer.
            controls: what an operator has set for replicas, by name.
        """
        now = monotonic()
        controls = controls or {}
        return [
            RouteCandidate(
                replica=engine.name,
                tier=pool.tier,
                model=pool.name,
                context=engine.context,
                prompt_tokens=prompt_tokens.get(pool.name, 0),
                load=engine.load,
                connected=engine.client.connected,
                tripped=not engine.breaker.allows(now),
                drained=(control := controls.get(engine.name, _USED)).drained or engine.client.leaving,
                weight=control.weight,
                full=full,
            )
            for pool in self.pools
            for full in (pool.max_turns > 0 and pool.turns >= pool.max_turns,)
            for engine in pool.routable
        ]

    def place(
        self, decision: RouteDecision, question: PlacementQuery, controls: Mapping[str, ReplicaControl]
    ) -> Placement | None:
        """Put the usable replicas of the chosen pool in order; None if there is only one.

        Args:
            controls: as for `candidates`.
        """
        pool = self._engines[decision.replica].pool
        if len(pool.routable) == 1:
            return None
        names = (decision.replica, *decision.fallbacks)
        usable = [engine for name in names if (engine := self._engines[name]).pool is pool]
        if len(usable) == 1:
            return None
        now = monotonic()

        def snapshot(matched: Mapping[str, int], last: str | None) -> list[Choosable]:
            return [
                Choosable(
                    name=engine.name,
                    load=engine.load,
                    weight=controls.get(engine.name, _USED).weight,
                    matched_tokens=matched.get(engine.name, 0),
                    resident=question.adapter is not None and engine.has(question.adapter),
                    error_rate=engine.errors.rate(now),
                    sticky=engine.name == last,
                )
                for engine in usable
            ]

        return pool.placer.place(pool.name, usable[0].client.info, question, snapshot, random.getrandbits(64))

    def retry_after(self, pools: Iterable[Pool]) -> float:
        """Return the seconds until one of these pools, all of which are full, has room."""
        now = monotonic()
        return min(pool.turnover.retry_after(pool.max_turns, now) for pool in pools if pool.max_turns)

    @property
    def connected(self) -> bool:
        """Whether any engine is connected."""
        return any(engine.client.connected for engine in self._engines.values())

    @property
    def away(self) -> list[Pool]:
        """Pools without a connected engine, but for those whose models have only just come."""
        return [
            pool
            for pool in self.pools
            if pool.tier not in self.coming and not any(engine.client.connected for engine in pool.routable)
        ]

    def problems(self) -> list[str]:
        """What is wrong with pools that have no connected engine."""
        return [f"no engine of the {pool.tier} tier ({pool.name}) is connected" for pool in self.away]
