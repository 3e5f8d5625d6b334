"""The engines behind this gateway: one connection each, grouped in pools, seen by the router as candidates."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from types import MappingProxyType

from engine.registration import Lease
from gateway.background import BackgroundTasks
from gateway.config.identity import EngineTlsSettings
from gateway.config.settings import PoolSettings, RouterSettings
from gateway.config.tiers import pools_by_label
from gateway.engines.engine import Engine
from gateway.engines.placement import Placement, PlacementQuery
from gateway.engines.pool import Controls, Pool
from router.replica import Replica as Choosable
from router.route import AUTO, ComingTier, RouteCandidate, RouteDecision, SleepingTier

logger = logging.getLogger("roundhouse.engines")

_FORMER_NAMES = 1000
"""Most names of replicas that have gone or were restarted that are remembered, for turns that were given them."""


class Engines:
    """All pools, in the order of the configuration."""

    def __init__(
        self,
        pools: Sequence[PoolSettings],
        router: RouterSettings,
        tls: EngineTlsSettings = EngineTlsSettings(),  # noqa: B008  it is frozen
        coming: Mapping[str, ComingTier] = MappingProxyType({}),
    ) -> None:
        """Read every pool's tokenizer.

        Args:
            tls: for engines at wss:// and https:// addresses.
            coming: what is known of pools whose models are not here, by pool name, which others change; `add` makes
                these pools.

        Raises:
            OSError, ValueError: a checkpoint's files are missing or cannot be used.
            SettingsError: a certificate cannot be used.
        """
        self.coming = coming
        self.controls: Controls = dict
        self._tls = tls
        self._labels = {settings.name: label for label, settings in pools_by_label(pools).items()}
        """Label of each pool by its name, in the order of the configuration."""
        self.pools = [self._pool(settings, router) for settings in pools if settings.name not in coming]
        self._engines = {engine.name: engine for pool in self.pools for engine in pool.engines}
        """All engines by name, also by the latest former names, which turns may still know."""
        self._former: deque[str] = deque()
        """Names that are no longer in use, the oldest first."""
        self.left: deque[tuple[str, str, str]] = deque(maxlen=_FORMER_NAMES)
        """Name, tier and model of replicas that have gone since somebody last took them from here."""
        self._changing = BackgroundTasks("replicas")
        self._leaving: dict[Engine, asyncio.Task[None]] = {}
        """Tasks that let replicas go."""

    def _pool(self, settings: PoolSettings, router: RouterSettings) -> Pool:
        pool = Pool(settings, router, self._tls, lambda: self.controls(), label=self._labels.get(settings.name))
        pool.renamed, pool.taken = self._renamed, self._taken
        return pool

    def configure(self, pools: Sequence[PoolSettings], router: RouterSettings) -> None:
        """Take over the replicas and breakers of a new configuration of the same pools; see `_arrange`."""
        there = {pool.name: pool for pool in self.pools}
        for settings in pools:
            if (pool := there.get(settings.name)) is not None:  # else its model is still coming
                pool.configure(settings, router)
                self._arrange(pool)

    def announced(self, pool: Pool, leases: Sequence[Lease]) -> None:
        """Take over the leases of the engines that have announced themselves for a pool; see `_arrange`."""
        pool.announced(leases)
        self._arrange(pool)

    def _arrange(self, pool: Pool) -> None:
        """Have the replicas that are listed now.

        New ones are connected to. Those that go get no new turns once another one is connected, and are let go when
        they have finished theirs.
        """
        before = {*pool.engines, *pool.leaving}
        pool.arrange(taken=self._engines.keys())
        for engine in pool.engines:
            if engine not in before:
                self._engines[engine.name] = engine
                self._changing.begin(engine.client.start())
            elif task := self._leaving.pop(engine, None):
                task.cancel()  # it is listed again
        for engine in pool.leaving:
            if engine not in self._leaving:
                self._leaving[engine] = self._changing.begin(self._let_go(pool, engine))

    def _renamed(self, engine: Engine, former: str) -> None:
        """Find an engine by the id of the process that is there now; the last one's is remembered for a while."""
        self._engines[engine.name] = engine
        self._gone(engine, former)

    def _taken(self, name: str, engine: Engine | None) -> bool:
        """Whether a replica other than this one has a name."""
        return any(
            each is not engine and each.name == name for pool in self.pools for each in pool.engines + pool.leaving
        )

    def _gone(self, engine: Engine, name: str) -> None:
        self.left.append((name, engine.pool.tier, engine.pool.name))
        self._former.append(name)
        if len(self._former) > _FORMER_NAMES:
            oldest = self._former.popleft()
            in_use = {each.name for pool in self.pools for each in pool.engines + pool.leaving}
            if oldest not in in_use:
                self._engines.pop(oldest, None)

    async def add(self, settings: PoolSettings, router: RouterSettings) -> Pool:
        """Make the pool of a tier whose model has come, and start connecting to its engines.

        Raises:
            OSError, ValueError: the checkpoint cannot be used.
        """
        pool = await asyncio.to_thread(self._pool, settings, router)
        self.pools.append(pool)
        self.pools.sort(key=lambda each: [*self._labels].index(each.name))
        self._engines |= {engine.name: engine for engine in pool.engines}
        for engine in pool.engines:
            await engine.client.start()
        if pool.encoder is not None:
            self._changing.begin(pool.encoder.start())
        return pool

    async def _let_go(self, pool: Pool, engine: Engine) -> None:
        await pool.relieved()
        del self._leaving[engine]  # from here on there is no way back
        pool.leaving.remove(engine)
        await engine.client.idle()
        await engine.client.aclose()
        pool.placer.forget(engine.name)
        self._gone(engine, engine.name)
        for each in [each for pool in self.pools for each in pool.engines if each.client.id == engine.name]:
            each.introduced()  # its process' name is free now
        logger.info("engine let go", extra={"replica": engine.name})

    def __getitem__(self, replica: str) -> Engine:
        return self._engines[replica]

    async def start(self) -> None:
        """Start connecting to all engines, and the processes that render chat templates; returns at once."""
        for engine in set(self._engines.values()):
            await engine.client.start()
        for encoder in {pool.vocabulary: pool.encoder for pool in reversed(self.pools)}.values():
            if encoder is not None:
                self._changing.begin(encoder.start())

    async def aclose(self) -> None:
        await self._changing.aclose()
        await asyncio.gather(*(pool.encoder.aclose() for pool in self.pools if pool.encoder is not None))
        await asyncio.gather(*(engine.client.aclose() for engine in set(self._engines.values())))

    @property
    def live(self) -> int:
        """Number of generations that run in all engines for this gateway."""
        return sum(engine.client.live for engine in set(self._engines.values()))

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
        self, prompt_tokens: Mapping[str, int], ranks: Mapping[str, int] = MappingProxyType({})
    ) -> list[RouteCandidate]:
        """Return the router's snapshot of all engines.

        Args:
            prompt_tokens: length of the prompt by pool name, for the pools that may answer.
            ranks: place of each pool among those of its tier, by pool name; 0 for others.
        """
        now = monotonic()
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
                drained=(control := engine.control).drained or engine.client.leaving,
                weight=control.weight,
                full=full,
                rank=ranks.get(pool.name, 0),
            )
            for pool in self.pools
            for full in (pool.max_turns > 0 and pool.turns >= pool.max_turns,)
            for engine in pool.routable
        ]

    def asleep(
        self, prompt_tokens: Mapping[str, int], ranks: Mapping[str, int] = MappingProxyType({})
    ) -> list[SleepingTier]:
        """Return the pools that sleep, for the router; for the arguments see `candidates`."""
        return [
            SleepingTier(
                tier=pool.tier,
                model=pool.name,
                context=pool.context,
                prompt_tokens=prompt_tokens.get(pool.name, 0),
                waits=pool.waits,
                rank=ranks.get(pool.name, 0),
            )
            for pool in self.pools
            if pool.asleep
        ]

    def place(self, decision: RouteDecision, question: PlacementQuery) -> Placement | None:
        """Put the usable replicas of the chosen pool in order; None if there is only one."""
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
                    weight=engine.control.weight,
                    matched_tokens=matched.get(engine.name, 0),
                    resident=question.adapter is not None and engine.has(question.adapter),
                    error_rate=engine.errors.rate(now),
                    sticky=engine.name == last,
                    near=engine.near,
                    spot=engine.spot,
                )
                for engine in usable
            ]

        return pool.placer.place(pool.name, usable[0].client.info, question, snapshot, random.getrandbits(64))

    def retry_after(self, pools: Iterable[Pool]) -> float:
        """Return the seconds until one of these pools, all of which are full, has room."""
        now = monotonic()
        return min(pool.turnover.retry_after(pool.max_turns, now) for pool in pools if pool.max_turns)

    @property
    def serves(self) -> bool:
        """Whether any engine is connected, or would be as soon as it is wanted."""
        return any(
            pool.may_sleep or any(engine.client.connected for engine in pool.engines + pool.leaving)
            for pool in self.pools
        )

    @property
    def away(self) -> list[Pool]:
        """Pools that lack a connected engine, but for those whose models have only just come."""
        return [
            pool
            for pool in self.pools
            if not (pool.may_sleep or pool.name in self.coming)
            and not any(engine.client.connected for engine in pool.routable)
        ]

    def problems(self) -> list[str]:
        """What is wrong with pools: no engine is connected, or one has announced itself that serves another model."""
        away = [f"no engine of the {pool.tier} tier ({pool.name}) is connected" for pool in self.away]
        return away + [problem for pool in self.pools for problem in pool.strangers.values()]
