"""One pool: a model, its tokenizer, and the engines that serve it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from time import monotonic

from engine.client.encoder import ConversationEncoder
from engine.registration import Lease
from engine.text.processor import SamplingDefaults, TextProcessor
from gateway.config.identity import EngineTlsSettings
from gateway.config.settings import PoolSettings, RouterSettings
from gateway.engines.engine import Engine
from gateway.engines.merge import EnginePlace, PresentEngine, merge
from gateway.engines.placement import Placer
from gateway.engines.pool_model import PoolModel
from gateway.errors import InvalidRequest
from gateway.records.directory import ReplicaControl
from gateway.tools.formats import tool_format
from gateway.upstreams.connecting import connector
from router.health import Breaker
from router.in_flight import AnswerLength
from router.replica import ReplicaPolicy
from router.shedding import Turnover

logger = logging.getLogger("roundhouse.engines")

RELIEF = 30.0
"""Seconds for which a replica that is no longer listed is kept while no other one is connected."""
_MESSAGES = "messages"
"""The `Pool.vocabulary` of pools that take messages: the estimate of a prompt's length is the same for all of them."""
_OPENAI_DEFAULTS = SamplingDefaults(temperature=1.0)
_POLL = 0.05
"""Seconds between looks for an engine that can take an answer up."""

Controls = Callable[[], Mapping[str, ReplicaControl]]
"""Returns what operators have set for replicas, by name."""


class Pool:
    """A model, its tokenizer and the engines that serve it, for one tier."""

    def __init__(
        self,
        settings: PoolSettings,
        router: RouterSettings,
        tls: EngineTlsSettings = EngineTlsSettings(),  # noqa: B008  it is frozen
        controls: Controls = dict,
        *,
        label: str | None = None,
    ) -> None:
        """
        Args:
            tls: for engines at wss:// and https:// addresses.
            label: see `gateway.config.tiers`; None: the tier.

        Raises:
            SettingsError: a file that it names cannot be used.
        """
        self.path = Path(settings.model)
        """Folder or GGUF file of the checkpoint."""
        self.tier = settings.tier
        self.label = label or settings.tier
        """What operators know it by; replicas that tell no id are named after it."""
        self.name = settings.name
        self.dialect = settings.dialect
        self.model = PoolModel(self.name, self.path, settings.yarn_factor)
        self.takes_messages = settings.takes_messages
        """Whether its servers answer conversations, and have its tokenizer to themselves."""
        self._text = None if self.takes_messages else TextProcessor.from_path(self.path)
        self.encoder = None if self._text is None else ConversationEncoder(self._text)
        self.tools = tool_format(self._text.template_source(tools=True) if self._text else "", settings.tool_parser)
        """Format in which the model writes function calls, where they are read here."""
        self.vocabulary = self._text.digest if self._text else _MESSAGES
        """Digest that is equal for pools whose prompts have the same token ids, so that a prompt is tokenised once for
        all of them."""
        self.defaults = self._text.defaults if self._text else _OPENAI_DEFAULTS
        """Sampling parameters where a request names none."""
        self.declared_context = settings.context or self.text.context
        """Most tokens of prompt and output together, as the checkpoint or the configuration has it."""
        self.engines: list[Engine] = []
        self.leaving: list[Engine] = []
        """Replicas that are no longer listed, but still used until one of `engines` is connected."""
        self.leases: dict[str, Lease] = {}
        """Leases of engines that have announced themselves for this pool and serve its model, by their ids."""
        self.strangers: dict[str, str] = {}
        """What is wrong with engines that have announced themselves but serve another model, by their ids."""
        self._leased: set[EnginePlace] = set()
        """Places of replicas that only leases have told of."""
        self.controls = controls
        self.renamed: Callable[[Engine, str], None] = lambda engine, former: None
        """Called with an engine that has another name from now on, and its former one."""
        self.taken: Callable[[str, Engine | None], bool] = lambda name, engine: False
        """Says whether a replica other than this one has a name now."""
        self.placer = Placer()
        self.turnover = Turnover()
        self.max_turns = 0
        """Most turns that this gateway sends to the pool at the same time; 0: any number."""
        self.answer_length = AnswerLength()
        self._server_name, self._connect = tls.server_name, connector(settings, tls, lambda: self.text)
        self.configure(settings, router)
        self.arrange(taken=())

    @property
    def text(self) -> TextProcessor:
        """Its tokenizer and chat template.

        Raises:
            InvalidRequest: its servers have them to themselves.
        """
        if self._text is None:
            raise InvalidRequest(
                f"model: {self.name} takes messages only, as its server keeps its tokenizer to itself; "
                "ask for another model, or for a chat completion",
                param="model",
            )
        return self._text

    @property
    def routable(self) -> list[Engine]:
        """Replicas to which new turns may go."""
        return self.engines if any(each.client.connected for each in self.engines) else self.engines + self.leaving

    @property
    def asleep(self) -> bool:
        """Whether it has no engine that takes turns, and gets one when it is wanted."""
        return self.may_sleep and not any(
            engine.client.connected and not engine.client.leaving for engine in self.routable
        )

    @property
    def context(self) -> int:
        """Most tokens of prompt and output together; the checkpoint's number until an engine has reported."""
        return max((engine.context for engine in self.engines), default=self.declared_context)

    def configure(self, settings: PoolSettings, router: RouterSettings) -> None:
        """Take over a new configuration; `arrange` follows the engines that it names."""
        self.weight = settings.weight
        """Share of its tier's conversations, beside other pools of the tier."""
        self.registered = settings.registered
        """Whether engines that announce themselves join."""
        if self.registered:
            _ = self.model.revision  # read here: this may be a thread, and leases come in the event loop
        self.may_sleep = settings.min_replicas == 0
        """Whether it may be without engines while nobody wants it."""
        self.waits = settings.when_asleep == "wait"
        """Whether turns of `auto` wait for it while it sleeps; else another tier answers."""
        self.max_turns = settings.max_turns
        self.placer.policy = ReplicaPolicy(beta=router.replica_beta, window=router.replica_window)
        self.zone = router.zone
        """Zone of this gateway."""
        self._configured = [EnginePlace(address, self._server_name) for address in settings.engines]
        self._router = router

    def announced(self, leases: Sequence[Lease]) -> None:
        """Take over leases, but for those of engines that serve another model than this pool's: what differs is
        told."""
        strangers = {
            lease.id: f"the engine {lease.id} of the {self.tier} pool is not used: {mismatch}"
            for lease in leases
            if (mismatch := self.model.mismatch(lease)) is not None
        }
        for id in strangers.keys() - self.strangers.keys():
            logger.warning(strangers[id])
        self.strangers = strangers
        self.leases = {lease.id: lease for lease in leases if lease.id not in strangers}

    def arrange(self, *, taken: Collection[str]) -> None:
        """Use the replicas that the configuration and the leases name; those that stay are left alone.

        Args:
            taken: names that no new replica may have.
        """
        before = {engine.place: engine for engine in self.leaving + self.engines}
        present = [
            PresentEngine(place, engine.client.id, engine.client.connected, place in self._leased)
            for place, engine in before.items()
        ]
        places = merge(self._configured, self.leases.values(), present)
        self._leased = places.keys() - self._configured
        for place, id in places.items():
            if place in before and id != before[place].name and id and not before[place].client.connected:
                before[place].client.retry()  # another process is there now
        free = (name for index in count() if (name := f"{self.label}-{index}") not in taken)
        self.engines = [
            before.pop(place)
            if place in before
            else Engine(
                id if id and not self.taken(id, None) else next(free),
                self,
                self._connect(place.address, place.server_name),
                Breaker(failures=1, pause=1.0),
            )
            for place, id in places.items()
        ]
        for engine in self.engines:
            engine.breaker.configure(failures=self._router.breaker_failures, pause=self._router.breaker_seconds)
        self.leaving = list(before.values())
        several = len(self.engines) + len(self.leaving) > 1
        for engine in self.engines + self.leaving:
            engine.follow_blocks(several)

    async def successor(
        self,
        able: Callable[[Engine], bool],
        until: float,
        full: Mapping[Engine, float],
        *,
        unless: Callable[[], bool],
    ) -> Engine | None:
        """Return the engine that takes over from one that was lost, which may be the same one, started again.

        None if there is none before the time `until`, or as soon as `unless` returns true.

        Args:
            able: says whether an engine can take over.
            full: engines that are not to be asked before a time.
        """
        while not unless():
            now = monotonic()
            found = [engine for engine in self.routable if able(engine) and full.get(engine, now) <= now]
            if found:
                # One that an operator has drained is better than none. Of equal ones that are left, the nearest comes
                # first, then those that stay: an answer may move twice only.
                return min(
                    found,
                    key=lambda each: (
                        each.control.drained,
                        not each.breaker.allows(now),
                        each.load,
                        not each.near,
                        each.spot,
                        each.name,
                    ),
                )
            if now > until:
                return None
            await asyncio.sleep(_POLL)
        return None

    @property
    def turns(self) -> int:
        """Number of turns that the pool's engines have from this gateway."""
        return sum(engine.turns for engine in self.engines + self.leaving)

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
