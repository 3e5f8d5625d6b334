"""The `[judge]` section."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from gateway.config.pools import PoolSettings
from gateway.config.routing import RouterSettings
from gateway.records.section import Section, SettingsError


class JudgeSettings(Section, frozen=True):
    """A model that compares answers, for the router to learn from, see [routing.md](routing.md#a-judge)."""

    pool: Annotated[
        str | None, Meta(description="Name of the pool whose model judges; it needs a price. Empty: nobody does.")
    ] = None
    share: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of `auto` of which the next best tier is asked as well, so that there are two answers "
            "to compare; what people have compared is judged in any case.",
        ),
    ] = 0.01
    dollars_per_day: Annotated[
        float, Meta(gt=0, description="What all gateways may spend on it in a day of UTC, second answers included.")
    ] = 1.0


def check_judge(judge: JudgeSettings, pools: Sequence[PoolSettings], router: RouterSettings) -> None:
    """
    Raises:
        SettingsError: there is no such pool, it cannot judge, or nothing would be learnt from it.
    """
    if judge.pool is None:
        return
    names = [pool.name for pool in pools]
    if judge.pool not in names:
        raise SettingsError(f"judge.pool: no pool is named {judge.pool!r}; name one of {', '.join(names)}")
    if any(pool.takes_messages for pool in pools if pool.name == judge.pool):
        raise SettingsError(
            f"judge.pool: {judge.pool} takes messages only, and cannot be held to a judge's answers; name a pool whose "
            "servers continue tokens"
        )
    if not router.log_entries:
        raise SettingsError("judge.pool: with router.log_entries = 0 nothing is learnt from a judge; set one of both")
