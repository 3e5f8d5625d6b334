"""What a decision keeps of a placement."""

from __future__ import annotations

import pytest

from gateway.engines.placement import MOST_SCORES, PlacementQuery, Placer
from router.replica import Replica
from router.route import RouteDecision, RouteReason

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


@pytest.mark.parametrize(("count", "kept", "left_out"), [(1, 0, 0), (2, 2, 0), (8, 8, 0), (1000, 8, 992)])
def test_of_many_replicas_the_scores_of_the_first_are_kept(count: int, kept: int, left_out: int) -> None:
    replicas = [Replica(name=f"small-{number}", load=number) for number in range(count)]
    placement = Placer().place("tiny", None, QUERY, lambda matched, last: replicas, draw=7)
    decision = placement.apply(DECISION)
    order = (decision.replica, *decision.fallbacks)
    assert list(decision.scores) == list(order[:kept]) and kept <= MOST_SCORES
    assert decision.scores_left_out == left_out
    assert len(order) == count + 1 and order[-1] == "large-0"
