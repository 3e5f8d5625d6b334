"""Chooses the replica of a pool for a turn, by what prefix caches hold and what is on its way to them.

A pool with one replica has none of this. With several, each engine tells which prefix blocks it stores and gives up
(`engine.wire.Blocks`); what it says is the gateway's prefix index. Every gateway hears every engine itself, so that the
index needs no Redis, and a gateway that has just started is told everything by the engines. What was sent and is not
stored yet counts as held already, so that requests that begin alike and come together find each other.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from cache.prefix import PrefixIndex
from engine.cache.prefix_keys import BLOCK_SIZE, block_numbers, chain_root, unpack_numbers
from engine.wire import Blocks, ModelInfo
from router.in_flight import InFlightRequest
from router.replica import Replica, ReplicaChoice, ReplicaPolicy, choose, explain
from router.route import RouteDecision

if TYPE_CHECKING:
    from gateway.engines.engine import Engine

CONVERSATIONS = 10_000
"""Most conversations whose last replica is remembered."""
MOST_SCORES = 8
"""Most replicas whose scores a decision keeps: those that are tried first."""
NO_BLOCKS: Sequence[int] = ()


class PlacementQuery(Struct, frozen=True):
    """The part of a turn that its placement depends on."""

    prompt: Sequence[int]
    adapter: str | None
    """Version of its adapter, if it has one."""
    tenant: str
    response: str
    """Id of the turn."""
    previous: str | None
    """Id of the response that the turn continues."""
    premium: bool = False
    """Whether its service class is premium."""


class Placement(Struct, frozen=True):
    """The replicas for a turn in order, and what they hold of its prompt."""

    pool: str
    """Public name of the model."""
    choice: ReplicaChoice
    prompt_tokens: int
    blocks: Sequence[int]
    """Numbers of the prompt's blocks."""
    matched: Mapping[str, int]
    """Tokens of the prompt that each replica holds, if any."""

    def known(self, engine: Engine) -> tuple[int, Sequence[int]]:
        """Return the tokens of the prompt that an engine holds, and the prompt's blocks if it may store them."""
        if engine.pool.name != self.pool:
            return 0, NO_BLOCKS
        return self.matched.get(engine.name, 0), self.blocks

    def apply(self, decision: RouteDecision) -> RouteDecision:
        """Return the decision with the pool's replicas in this order, before those of other pools, and the reasons."""
        order = self.choice.order
        placed = set(order)
        others = [name for name in decision.fallbacks if name not in placed]
        return msgspec.structs.replace(
            decision,
            replica=order[0],
            fallbacks=(*order[1:], *others),
            reasons=(*decision.reasons, explain(self.choice, self.prompt_tokens)),
            scores={name: self.choice.scores[name] for name in order[:MOST_SCORES]} if self.choice.scores else {},
            scores_left_out=max(0, len(self.choice.scores) - MOST_SCORES),
        )


class Placer:
    """Places turns on one pool's replicas."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.policy = ReplicaPolicy()
        self._answered: OrderedDict[str, str] = OrderedDict()
        """Replica that gave each response, by the response's id."""

    def told(self, replica: str, news: Blocks) -> None:
        """Record that an engine stores or gives up blocks, or that its connection is lost.

        Raises:
            ValueError: the frame makes no sense.
        """
        if news.cleared:
            self.index.cleared(replica)
        self.index.removed(replica, unpack_numbers(news.removed))
        self.index.stored(replica, unpack_numbers(news.stored))

    def forget(self, replica: str) -> None:
        """Forget a replica that is gone."""
        self.index.forget(replica)

    def place(
        self,
        pool: str,
        model: ModelInfo | None,
        question: PlacementQuery,
        snapshot: Callable[[Mapping[str, int], str | None], Sequence[Replica]],
        draw: int,
    ) -> Placement:
        """Put the replicas in the order in which they are to be tried.

        Args:
            pool: its public name.
            model: what its engines serve.
            snapshot: the replicas as they are, given the tokens that each holds and who answered the last turn.
            draw: a random number of 64 bits.
        """
        prompt = question.prompt
        blocks: list[int] = []
        if model is not None and model.block_size == BLOCK_SIZE:
            root = chain_root(model, len(prompt), question.adapter, salt_of(question.tenant))
            blocks = block_numbers(root, prompt)
        # The last token always runs.
        longest = len(prompt) - 1
        matched = {name: min(count * BLOCK_SIZE, longest) for name, count in self.index.match(blocks).items()}
        last = None if question.previous is None else self._answered.get(question.previous)
        adapter, replicas = question.adapter is not None, snapshot(matched, last)
        choice = choose(replicas, len(prompt), self.policy, draw, adapter=adapter, premium=question.premium)
        self._answered[question.response] = choice.order[0]
        if len(self._answered) > CONVERSATIONS:
            self._answered.popitem(last=False)
        return Placement(pool, choice, len(prompt), blocks, matched)

    @contextlib.contextmanager
    def expecting(self, replica: str, blocks: Sequence[int], flight: InFlightRequest, *, told: bool) -> Iterator[None]:
        """Count a prompt's blocks as held while the body runs.

        Args:
            told: whether the engine says itself what it stores. Of one that does not, what it has computed counts as
                held until the index is full.
        """
        expected = self.index.expect(replica, blocks)
        try:
            yield
        finally:
            if flight.computed and not told and self.index.knows(replica):  # it may be gone meanwhile
                self.index.stored(replica, blocks)
            self.index.settle(replica, expected)


def salt_of(tenant: str) -> bytes:
    """Return the salt of a tenant's block keys. Tenants never share KV: how long a prompt takes would tell one of them
    what another has asked."""
    return hashlib.blake2b(tenant.encode(), digest_size=16).digest()
