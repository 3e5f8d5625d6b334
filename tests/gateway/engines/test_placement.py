"""The placement of turns on a pool's replicas, by what their engines tell, and what a decision keeps of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from engine.cache.prefix_keys import BLOCK_SIZE, block_hashes, chain_root, pack_numbers
from engine.wire import Blocks
from gateway.engines.placement import MOST_SCORES, Placement, PlacementQuery, Placer, salt_of
from router.in_flight import InFlightLoad
from router.replica import Replica
from router.route import RouteDecision, RouteReason
from tests.engine.ledger_runner import model_info

QUERY = PlacementQuery(prompt=range(100), adapter=None, tenant="acme", response="resp_1", previous=None)
DECISION = RouteDecision(
    tier="small",
    model="tiny",
    replica="small-0",
    why=RouteReason.REQUESTED,
    complexity=0.1,
    reasons=(),
    fallbacks=("large-0",),
)
MODEL = model_info(context=200_000)
NAMES = ("small-0", "small-1")


@pytest.mark.parametrize(("count", "kept", "left_out"), [(1, 0, 0), (2, 2, 0), (8, 8, 0), (1000, 8, 992)])
def test_of_many_replicas_the_scores_of_the_first_are_kept(count: int, kept: int, left_out: int) -> None:
    replicas = [Replica(name=f"small-{number}", load=number) for number in range(count)]
    placement = Placer().place("tiny", None, QUERY, lambda matched, last: replicas, draw=7)
    decision = placement.apply(DECISION)
    order = (decision.replica, *decision.fallbacks)
    assert list(decision.scores) == list(order[:kept]) and kept <= MOST_SCORES
    assert decision.scores_left_out == left_out
    assert len(order) == count + 1 and order[-1] == "large-0"


def place(placer: Placer, prompt: Sequence[int]) -> Placement:
    def snapshot(matched: Mapping[str, int], last: str | None) -> list[Replica]:
        return [Replica(name=name, matched_tokens=matched.get(name, 0)) for name in NAMES]

    question = PlacementQuery(prompt=prompt, adapter=None, tenant="t", response="r", previous=None)
    return placer.place("m", MODEL, question, snapshot, draw=0)


def told(prompt: Sequence[int], tokens: int) -> Blocks:
    """Return what an engine tells that holds the first tokens of a prompt."""
    keys = block_hashes(chain_root(MODEL, len(prompt), None, salt_of("t")), prompt)
    return Blocks(stored=pack_numbers(keys[: tokens // BLOCK_SIZE]))


def test_prompts_are_seen_to_their_end() -> None:
    """Two replicas hold the same first 60,000 tokens, one holds more."""
    placer, prompt = Placer(), list(range(100_000))
    for name, tokens in zip(NAMES, (60_000, 99_200), strict=True):
        placer.index.resize(name, 10_000)
        placer.told(name, told(prompt, tokens))
    placement = place(placer, prompt)
    assert placement.matched == {"small-0": 60_000, "small-1": 99_200}
    assert placement.choice.order == ("small-1", "small-0")


def test_a_replica_that_is_forgotten_while_it_answers_stays_forgotten() -> None:
    """One that does not tell what it stores: a turn's end must not bring it back."""
    for gone in (False, True):
        placer = Placer()
        with InFlightLoad().carry(48, 10) as flight, placer.expecting("small-0", [1, 2, 3], flight, told=False):
            flight.prefilled()
            if gone:
                placer.forget("small-0")
        assert len(placer.index) == (0 if gone else 3)


def test_the_last_token_always_runs() -> None:
    placer, prompt = Placer(), list(range(160))
    placer.told("small-0", told(prompt, 160))
    assert place(placer, prompt).matched == {"small-0": 159}
