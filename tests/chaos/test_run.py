"""Random faults under load, in a short form: `make chaos` is the long one. Real processes, real engines."""

from __future__ import annotations

import random

import pytest

from tests.chaos.faults import Kind
from tests.chaos.run import Plan, chaos, rolling_update

pytestmark = pytest.mark.anyio

SHORT = (
    Kind.CLIENTS_CUT,
    Kind.REDIS_KILLED,
    Kind.ENGINE_CUT,
    Kind.DISK_FULL,
    Kind.REDIS_PARTED,
    Kind.ENGINE_KILLED,
    Kind.GATEWAY_DRAINED,
    Kind.REDIS_FULL,
    Kind.ENGINE_PARTED,
    Kind.GATEWAY_STOPPED,
    Kind.GATEWAY_KILLED,
    Kind.CORE_FAILING,
)
"""Those that take seconds; each lane runs its own in this order."""


@pytest.mark.timeout(1200)
async def test_faults_lose_no_character_and_no_charge() -> None:
    """Every turn ends as undisturbed, or fails where docs/failures.md says that it may; nothing is held afterwards."""
    plan = Plan(seed=random.SystemRandom().randrange(2**32), clients=4, kinds=SHORT, budget=1000)
    print(f"seed: {plan.seed}")
    outcome = await chaos(plan)
    assert outcome.problems == []
    assert {fault.kind for fault in outcome.injected} == set(SHORT)
    assert sum(not turn.failure for turn in outcome.turns) > plan.clients


@pytest.mark.deep
@pytest.mark.timeout(1200)
async def test_a_rolling_update_of_everything_fails_no_turn() -> None:
    plan = Plan(seed=random.SystemRandom().randrange(2**32), clients=16)
    print(f"seed: {plan.seed}")
    outcome = await rolling_update(plan, turns=1000)
    assert outcome.problems == []


@pytest.mark.deep
@pytest.mark.timeout(1200)
async def test_gateways_that_go_on_without_redis_lose_no_character() -> None:
    """With `on_redis_down = "allow_local"`, where limits may be exceeded by what is under way."""
    plan = Plan(seed=random.SystemRandom().randrange(2**32), clients=16, faults=40, on_redis_down="allow_local")
    print(f"seed: {plan.seed}")
    outcome = await chaos(plan)
    assert outcome.problems == []
