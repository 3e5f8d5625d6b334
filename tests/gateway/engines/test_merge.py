"""Which engines a pool has: pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.registration import Lease
from engine.wire import PROTOCOL_VERSION
from gateway.engines.merge import EnginePlace, PresentEngine, merge
from tests.engine.test_registration import LEASE

ADDRESSES = [f"ws://10.0.0.{number}:9001" for number in range(6)]
IDS = [f"small-{number:06x}" for number in range(6)]
NAMES = [None, "engines.internal"]


def lease(id: int, address: int, *, time: float = 0.0, **fields: object) -> Lease:
    changes = {"id": IDS[id], "address": ADDRESSES[address], "server_name": None, "time": time, **fields}
    return msgspec.structs.replace(LEASE, **changes)


def places(addresses: list[str]) -> list[EnginePlace]:
    return [EnginePlace(address) for address in addresses]


@dataclass
class World:
    configured: list[str]
    leases: list[Lease]
    present: list[PresentEngine]

    @property
    def merged(self) -> dict[EnginePlace, str]:
        return merge(places(self.configured), self.leases, self.present)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    number = st.integers(0, 5)
    leases = draw(
        st.lists(
            st.builds(
                lease,
                number,
                number,
                time=st.sampled_from([1.0, 2.0, 3.0]),
                server_name=st.sampled_from(NAMES),
                state=st.sampled_from(["ready", "draining", "asleep"]),
                protocol=st.sampled_from([PROTOCOL_VERSION, 0]),
            ),
            unique_by=lambda each: each.id,
        )
    )
    configured = draw(st.lists(st.sampled_from(ADDRESSES)))
    present = st.builds(EnginePlace, st.sampled_from(ADDRESSES), st.sampled_from(NAMES))
    engines = st.builds(PresentEngine, present, st.sampled_from(["", *IDS]), st.booleans(), st.booleans())
    present = draw(st.lists(engines, unique_by=lambda each: each.place))
    return World(configured, leases, present)


@given(worlds(), st.randoms())
def test_a_pool_has_what_is_configured_and_what_is_connected(world: World, random: object) -> None:
    merged = world.merged
    addresses = [place.address for place in merged]
    configured = list(dict.fromkeys(world.configured))
    assert addresses[: len(configured)] == configured
    assert len(addresses) == len(set(addresses))
    own = {each.id for each in world.present if each.connected and each.place.address in configured} - {""}
    for each in world.present:
        if each.leased and each.connected and each.place.address not in configured and each.id not in own:
            assert each.place.address in addresses
    for place, id in merged.items():
        told = [each for each in world.leases if each.address == place.address and each.understood]
        here = any(each.place == place and each.connected and each.leased for each in world.present)
        assert place.address in configured or here or any(each.state == "ready" for each in told)
        assert place.address in configured or not id or id not in own


@given(worlds())
def test_no_engine_goes_while_it_is_connected(world: World) -> None:
    """Not when the list is lost, and whatever order it comes in."""
    merged = world.merged
    connected = [PresentEngine(place, id, True, place.address not in world.configured) for place, id in merged.items()]
    assert merge(places(world.configured), [], connected).keys() == merged.keys()
    assert merge(places(world.configured), world.leases[::-1], world.present) == merged


def test_an_engine_whose_lease_has_ended_goes_when_its_connection_breaks() -> None:
    place = EnginePlace(ADDRESSES[0])
    assert merge([], [], [PresentEngine(place, IDS[0], True, True)]) == {place: IDS[0]}
    assert merge([], [], [PresentEngine(place, IDS[0], False, True)]) == {}
    assert merge([], [lease(0, 0)], [PresentEngine(place, IDS[0], False, True)]) == {place: IDS[0]}


def test_an_engine_that_is_configured_no_more_goes() -> None:
    here = PresentEngine(EnginePlace(ADDRESSES[0]), IDS[0], True, False)
    assert merge([], [], [here]) == {}
    assert merge([], [lease(0, 0)], [here]) == {here.place: IDS[0]}


def test_a_process_that_was_started_again_counts_at_its_address() -> None:
    """Also while the lease of the one before it lasts."""
    assert merge([], [lease(1, 0, time=5.0), lease(0, 0, time=2.0)], []) == {EnginePlace(ADDRESSES[0]): IDS[1]}


def test_a_process_under_two_addresses_counts_once() -> None:
    here = PresentEngine(EnginePlace(ADDRESSES[0]), IDS[3], True, False)
    assert merge(places([ADDRESSES[0]]), [lease(3, 1)], [here]) == {EnginePlace(ADDRESSES[0]): ""}
    both = [here, PresentEngine(EnginePlace(ADDRESSES[1]), IDS[3], True, True)]
    assert merge(places([ADDRESSES[0]]), [lease(3, 1)], both) == {EnginePlace(ADDRESSES[0]): ""}


@pytest.mark.parametrize("fields", [{"state": "draining"}, {"state": "asleep"}, {"protocol": 0}])
def test_engines_that_take_no_turns_are_not_joined(fields: dict[str, object]) -> None:
    assert merge([], [lease(0, 0, **fields)], []) == {}
