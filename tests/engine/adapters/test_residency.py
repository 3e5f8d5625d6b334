"""Where adapters are: states, references, budgets, pins, and who loses memory to whom."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.adapters.residency import AdapterFit, Residency, ResidencyConfig
from engine.adapters.states import ON_HOST, Adapter, AdapterVersionState
from engine.cache.blocks import BlockPool, block_hash

OPEN, DRAINING, ENTERING = AdapterVersionState.OPEN, AdapterVersionState.DRAINING, AdapterVersionState.ENTERING


def make(blocks: int = 20, **config: object) -> Residency:
    return Residency(BlockPool(blocks), ResidencyConfig(**config))  # type: ignore[arg-type]


def bring(residency: Residency, version: str, sectors: int = 2) -> None:
    """Load an adapter that requests hold, or that is pinned, all the way to the device."""
    residency.prepare(version)
    residency.prepared(version, sectors)
    assert residency.room(version, 0) is AdapterFit.YES
    residency.install(version)
    residency.installed(version)


def bring_idle(residency: Residency, version: str, sectors: int = 2) -> None:
    residency.hold(version)
    bring(residency, version, sectors)
    residency.release(version)


def test_an_adapter_goes_from_disk_to_host_to_device() -> None:
    residency = make()
    residency.hold("a")
    states = [residency.state("a")]
    residency.prepare("a")
    states.append(residency.state("a"))
    residency.prepared("a", 3)
    states.append(residency.state("a"))
    job = residency.install("a")
    states.append(residency.state("a"))
    residency.installed("a")
    states.append(residency.state("a"))
    order = ["absent", "preparing", "host", "installing", "resident"]
    assert [state.value for state in states] == order
    assert (len(set(job.sectors)), residency.sectors("a"), residency.loads) == (3, 3, 1)


@pytest.mark.parametrize("state", [AdapterVersionState.HOST, AdapterVersionState.RESIDENT, AdapterVersionState.FAILED])
def test_an_illegal_transition_raises(state: AdapterVersionState) -> None:
    with pytest.raises(RuntimeError, match=f"adapter a: illegal transition absent -> {state.value}"):
        Adapter("a").move_to(state)


def test_a_request_cannot_run_before_its_adapter_is_resident() -> None:
    residency = make()
    residency.hold("a")
    with pytest.raises(RuntimeError, match="a request starts while it is absent"):
        residency.start("a")


def test_a_request_cannot_start_while_its_adapter_is_closed() -> None:
    residency = make()
    residency.hold("a")
    bring(residency, "a")
    with pytest.raises(RuntimeError, match="a request starts while it is resident"):
        residency.start("a")


def test_an_adapter_that_enters_keeps_its_place_until_a_request_of_it_runs() -> None:
    residency = make()
    residency.hold("a")
    bring(residency, "a")
    assert residency.next_wanted == "a"
    residency.move("a", ENTERING)
    assert residency.next_wanted is None
    residency.start("a")
    residency.stop("a")
    assert (residency.state("a"), residency.next_wanted) == (OPEN, "a")
    residency.check_integrity()


def test_an_idle_adapter_gives_its_sectors_to_kv_and_stays_on_the_host() -> None:
    residency = make()
    bring_idle(residency, "a")
    residency._pool.allocate(19)
    assert residency.state("a") is AdapterVersionState.HOST
    assert residency.take_removed() == ["a"]
    assert residency.take_forgotten() == []
    residency.check_integrity()


@pytest.mark.parametrize("running", [False, True])
def test_an_adapter_that_requests_name_does_not_give_its_sectors_to_kv(running: bool) -> None:
    residency = make()
    residency.hold("a")
    bring(residency, "a")
    if running:
        residency.move("a", OPEN)
        residency.start("a")
    assert residency._pool.available == 18
    with pytest.raises(MemoryError):
        residency._pool.allocate(19)
    assert residency.resident == ["a"]


def test_a_prefix_or_an_adapter_goes_whichever_was_used_longer_ago() -> None:
    residency = make(blocks=4, share=0.75)
    pool = residency._pool
    digests = [block_hash(b"", [number]) for number in range(2)]

    def cache(digest: bytes) -> None:
        blocks = pool.allocate(1)
        pool.register(blocks[0], digest)
        pool.release(blocks)

    cache(digests[0])
    bring_idle(residency, "a")
    cache(digests[1])
    one = pool.allocate(1)
    assert (pool.match(digests[:1]), residency.state("a")) == ([], AdapterVersionState.RESIDENT)
    two = pool.allocate(2)
    assert residency.state("a") is AdapterVersionState.HOST
    assert pool.match(digests[1:]) != []
    pool.check_integrity([one, two])


def test_adapters_hold_no_more_than_their_share() -> None:
    residency = make(blocks=8)
    for version in "abc":
        bring_idle(residency, version)
    assert residency.resident == ["b", "c"]
    assert residency._pool.lent == 4
    residency.hold("b")
    residency.move("b", OPEN)
    residency.start("b")
    residency.hold("c")
    residency.hold("d")
    residency.prepare("d")
    residency.prepared("d", 2)
    assert residency.room("d", 0) is AdapterFit.SHARE
    assert residency.room("d", 0, urgent=True) is AdapterFit.YES
    assert residency.next_wanted == "c"
    residency.evict("c")
    residency.install("d")
    residency.check_integrity()


def test_an_adapter_leaves_blocks_for_running_requests_to_grow_into() -> None:
    residency = make(blocks=8)
    residency._pool.allocate(5)
    residency.hold("a")
    residency.prepare("a")
    residency.prepared("a", 2)
    assert residency.room("a", 1) is AdapterFit.YES
    assert residency.room("a", 2) is AdapterFit.BLOCKS


def test_an_adapter_larger_than_the_share_never_fits() -> None:
    residency = make(blocks=8)
    residency.hold("a")
    residency.prepare("a")
    residency.prepared("a", 5)
    assert residency.room("a", 0, urgent=True) is AdapterFit.NEVER


def test_idle_copies_on_the_host_go_least_recently_used_first_when_the_budget_is_spent() -> None:
    residency = make(host_bytes=50, sector_bytes=10)
    for version in "ab":
        bring_idle(residency, version)
    residency.hold("a")
    residency.release("a")
    bring_idle(residency, "c")
    assert residency.take_forgotten() == ["b"]
    assert residency.take_removed() == ["b"]
    assert (residency.host_bytes, residency.state("b")) == (40, AdapterVersionState.ABSENT)
    residency.check_integrity()


def test_an_adapter_that_lost_its_sectors_keeps_its_place_among_the_idle_copies() -> None:
    residency = make(blocks=8, host_bytes=6)
    for version in "abc":  # a gives its sectors to c
        bring_idle(residency, version)
    assert residency.state("a") is AdapterVersionState.HOST
    bring_idle(residency, "d")
    assert residency.take_forgotten() == ["a"]


def test_copies_that_requests_name_stay_whatever_the_budget_says() -> None:
    residency = make(host_bytes=0)
    residency.hold("a")
    bring(residency, "a")
    assert residency.take_forgotten() == []
    residency.release("a")
    assert residency.take_forgotten() == ["a"]


def test_pinned_adapters_stay_on_host_and_device() -> None:
    residency = make(blocks=8, host_bytes=0)
    residency.pin(["a"])
    bring(residency, "a")
    bring_idle(residency, "b")
    assert residency._pool.available == 6
    residency._pool.allocate(6)
    assert residency.resident == ["a"]
    residency.pin([])
    assert (residency.resident, residency.take_forgotten()) == ([], ["b", "a"])
    residency.check_integrity()


def test_pins_hold_no_more_than_half_of_the_share() -> None:
    residency = make(blocks=8)
    residency.pin(["a", "b"])
    for version in "ab":
        bring(residency, version)
    assert [residency.anchored(version) for version in "ab"] == [True, False]
    residency._pool.allocate(6)
    assert (residency.state("a"), residency.state("b")) == (AdapterVersionState.RESIDENT, AdapterVersionState.HOST)
    residency.check_integrity()


def test_a_failed_adapter_leaves_nothing_and_is_tried_again_by_the_next_request() -> None:
    residency = make()
    residency.hold("a")
    residency.prepare("a")
    residency.prepared("a", 2)
    residency.install("a")
    residency.failed("a")
    assert residency.state("a") is AdapterVersionState.FAILED
    assert (residency._pool.lent, residency.host_bytes, residency.loading) == (0, 0, 0)
    assert (residency.take_removed(), residency.take_forgotten()) == (["a"], ["a"])
    residency.release("a")
    assert residency.state("a") is AdapterVersionState.ABSENT
    residency.hold("a")
    bring(residency, "a")
    residency.check_integrity()


@pytest.mark.parametrize("config", [{"share": -0.1}, {"share": 1}, {"host_bytes": -1}, {"step_bytes": 0}, {"loads": 0}])
def test_senseless_sizes_are_refused(config: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        ResidencyConfig(**config)  # type: ignore[arg-type]


class ResidencyMachine(RuleBasedStateMachine):
    """Requests, loads, KV and pins in any order: the books balance, and nobody loses what is in use."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(16)
        self.residency = Residency(self.pool, ResidencyConfig(host_bytes=9))
        self.held: list[str] = []
        self.running: list[str] = []
        self.pinned: set[str] = set()
        self.tables: list[list[int]] = []
        self.host: dict[str, int] = {}
        """What a bank would hold on the host, and on the device."""
        self.device: set[str] = set()

    versions = st.sampled_from("abcde")

    @rule(version=versions)
    def arrive(self, version: str) -> None:
        self.residency.hold(version)
        self.held.append(version)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(self.held))
        self.held.remove(version)
        if version not in (*self.held, *self.running):
            self.close(version)
        self.residency.release(version)

    @rule(version=versions)
    def start(self, version: str) -> None:
        if version in self.held and self.residency.state(version) in (OPEN, ENTERING):
            self.residency.start(version)
            self.held.remove(version)
            self.running.append(version)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(self.running))
        self.running.remove(version)
        self.held.append(version)
        self.residency.stop(version)

    @rule(version=versions, state=st.sampled_from([OPEN, ENTERING, DRAINING]))
    def open_or_drain(self, version: str, state: AdapterVersionState) -> None:
        if version in self.held and self.residency.state(version) is AdapterVersionState.RESIDENT:
            self.residency.move(version, state)

    @rule(version=versions)
    def close(self, version: str) -> None:
        if self.residency.state(version) in (OPEN, ENTERING, DRAINING):
            self.residency.move(version, AdapterVersionState.RESIDENT)

    @rule(versions=st.sets(versions))
    def pin(self, versions: set[str]) -> None:
        self.residency.pin(sorted(versions))
        self.pinned = versions

    @rule(version=versions, sectors=st.integers(1, 4), fails=st.booleans())
    def load(self, version: str, sectors: int, fails: bool) -> None:
        state = self.residency.state(version)
        if state is AdapterVersionState.ABSENT:
            self.residency.prepare(version)
        elif state is AdapterVersionState.PREPARING and not fails:
            self.residency.prepared(version, sectors)
            self.host[version] = sectors
        elif state is AdapterVersionState.HOST and self.residency.room(version, 0) is AdapterFit.YES:
            job = self.residency.install(version)
            assert len(job.sectors) == self.host[version]
        elif state is AdapterVersionState.INSTALLING and not fails:
            self.residency.installed(version)
            self.device.add(version)
        elif state in (AdapterVersionState.PREPARING, AdapterVersionState.INSTALLING):
            self.residency.failed(version)

    @rule()
    def evict(self) -> None:
        version = self.residency.next_wanted
        if version is not None:
            self.close(version)
            self.residency.evict(version)

    @rule(count=st.integers(0, 16))
    def take(self, count: int) -> None:
        if count <= self.pool.available:
            self.tables.append(self.pool.allocate(count))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), number=st.integers(0, 10**6))
    def give(self, data: st.DataObject, number: int) -> None:
        table = data.draw(st.sampled_from(self.tables))
        self.tables.remove(table)
        for index, block in enumerate(table):
            self.pool.register(block, block_hash(b"", [number, index]))
        self.pool.release(table)

    @invariant()
    def books_balance(self) -> None:
        self.device.difference_update(self.residency.take_removed())
        for version in self.residency.take_forgotten():
            self.host.pop(version, None)
        self.pool.check_integrity(self.tables)
        self.residency.check_integrity()

    @invariant()
    def the_bank_agrees(self) -> None:
        on_host = {v for v in "abcde" if self.residency.state(v) in ON_HOST}
        assert self.host.keys() == on_host
        assert self.residency.host_bytes == sum(self.host.values())
        assert self.device == set(self.residency.resident)

    @invariant()
    def what_is_used_is_there(self) -> None:
        assert self.device >= set(self.running)
        assert self.pool.lent <= self.residency.share

    @invariant()
    def the_host_keeps_its_budget_except_for_what_is_needed(self) -> None:
        needed = {*self.held, *self.running, *self.pinned}
        busy = {v for v in self.host if self.residency.state(v) is AdapterVersionState.INSTALLING}
        if self.residency.host_bytes > 9:
            assert self.host.keys() <= needed | busy


TestResidencyMachine = ResidencyMachine.TestCase
