"""Several pools of a tier in the configuration."""

from __future__ import annotations

import msgspec
import pytest

from gateway.config.configuration import changes, fixed
from gateway.config.pools import PoolSettings
from gateway.config.settings import Settings, SettingsError
from gateway.config.tiers import check_tiers, first_pools, pools_by_label

OURS = PoolSettings(tier="large", name="ours", model="/m")
THEIRS = PoolSettings(tier="large", name="theirs", model="/t", dialect="vllm", engines=["http://h:1"], weight=3)
SMALL = PoolSettings(tier="small", name="tiny", model="/s")


def test_pools_are_labelled_by_their_tier_and_their_place_in_it() -> None:
    labelled = pools_by_label([OURS, SMALL, THEIRS])
    assert {label: pool.name for label, pool in labelled.items()} == {
        "large": "ours",
        "small": "tiny",
        "large2": "theirs",
    }
    assert first_pools([THEIRS, SMALL, OURS])["large"] is THEIRS


def test_one_pool_of_a_tier_may_have_engines_that_serve_starts_and_each_its_own_name() -> None:
    check_tiers([OURS, THEIRS, SMALL])
    with pytest.raises(SettingsError, match=r"2 pools are named 'ours'"):
        check_tiers([OURS, msgspec.structs.replace(THEIRS, name="ours")])
    for second in ({}, {"registered": True}):
        other = msgspec.structs.replace(OURS, name="other", **second)
        with pytest.raises(SettingsError, match=r"2 pools of the large tier.* name their addresses in engines"):
            check_tiers([OURS, other])


def test_weights_and_addresses_change_while_a_gateway_runs_and_pools_do_not() -> None:
    before = Settings(pools=[OURS, THEIRS])
    moved = msgspec.structs.replace(THEIRS, engines=["http://h:2"], weight=0)
    after = msgspec.structs.replace(before, pools=[OURS, moved])
    assert changes(before, after) == ["pools.large2.engines", "pools.large2.weight"]
    assert fixed(before, after) == []
    gone = msgspec.structs.replace(before, pools=[OURS])
    assert fixed(before, gone) == ["pools.large2"]
    named = msgspec.structs.replace(OURS, engines=["ws://h:1"])
    assert fixed(before, msgspec.structs.replace(before, pools=[named, THEIRS])) == ["pools.large.engines"]
