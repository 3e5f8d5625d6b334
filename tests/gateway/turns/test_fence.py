"""`record.lua` against a model of it, whoever writes in whatever order: what its gateway says of its end stays."""

from __future__ import annotations

import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gateway.turns.records import script

TENANT, TTL, CAP, MOST_BYTES = "alice", 60_000, 3, 20
INDEX = f"rh1:turn-index:{{{TENANT}}}"
BYTES = f"rh1:turn-bytes:{{{TENANT}}}"
PREFIX = f"rh1:turn:{{{TENANT}}}:"

ALLOWED = {
    (None, "running"),
    (None, "ended"),
    ("running", "running"),
    ("running", "ended"),
    ("running", "lost"),
    ("lost", "running"),
    ("lost", "ended"),
}
"""Besides deleting, which is always allowed."""

turns = st.sampled_from(["resp_1", "resp_2", "resp_3", "resp_4", "resp_5"])
gateways = st.sampled_from(["gw_1", "gw_2"])
sizes = st.sampled_from([4, 9, 25])
"""Bytes of a turn: three, two and one of them fit."""


class Fence(RuleBasedStateMachine):
    """Several gateways write several turns of one tenant."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        self.client = client
        client.flushall()
        self.script = client.register_script(script("record.lua"))
        self.states: dict[str, tuple[str, bytes]] = {}
        self.index: list[str] = []
        """The turns that are kept, the oldest write first."""
        self.bytes: dict[str, int] = {}
        """Of each turn in the index."""
        self.written = 0
        self.endings: dict[str, int] = {}

    @rule(id=turns, state=st.sampled_from(["running", "ended", "lost"]), gateway=gateways, size=sizes)
    def write(self, id: str, state: str, gateway: str, size: int) -> None:
        self.written += 1
        data = f"{self.written}".encode().rjust(size)
        before = self.states.get(id)
        allowed = (before[0] if before else None, state) in ALLOWED
        assert self._call(id, state, gateway, data) == allowed
        if not allowed:
            return
        self.states[id] = (state, data)
        self.endings[id] = self.endings.get(id, 0) + (state == "ended")
        if id in self.index:
            self.index.remove(id)
        self.index.append(id)
        self.bytes[id] = size
        while len(self.index) > CAP or (sum(self.bytes.values()) > MOST_BYTES and len(self.index) > 1):
            oldest = self.index.pop(0)
            del self.bytes[oldest]
            self.states.pop(oldest, None)  # it may be over already
            self.endings.pop(oldest, None)

    @rule(id=turns)
    def delete(self, id: str) -> None:
        before = self.states.get(id)
        assert self._call(id, "deleted", "gw_1", b"") == (before is not None and before[0] != "deleted")
        self.states[id] = ("deleted", b"")
        if id in self.index:
            self.index.remove(id)
            del self.bytes[id]

    @rule(id=turns)
    def end_its_life(self, id: str) -> None:
        """Its time is over."""
        self.client.delete(PREFIX + id)
        self.states.pop(id, None)
        self.endings.pop(id, None)

    @invariant()
    def redis_agrees(self) -> None:
        for id in ("resp_1", "resp_2", "resp_3", "resp_4", "resp_5"):
            state, data = self.client.hmget(PREFIX + id, ["state", "data"])
            expected = self.states.get(id)
            assert (state, data or b"") == ((expected[0].encode(), expected[1]) if expected else (None, b""))
            if expected:
                assert 0 < self.client.pttl(PREFIX + id) <= TTL
        assert {id.decode() for id in self.client.zrange(INDEX, 0, -1)} == set(self.index)
        counted = {id.decode(): int(count) for id, count in self.client.hgetall(BYTES).items()}
        assert counted.pop("", 0) == sum(counted.values())
        assert counted == self.bytes

    @invariant()
    def nothing_ends_twice(self) -> None:
        assert all(count <= 1 for count in self.endings.values())

    def _call(self, id: str, state: str, gateway: str, data: bytes) -> bool:
        # Writes of the same millisecond are sorted by id: each gets one of its own.
        now = self.client.time()
        while self.client.time() == now or self.client.time()[1] // 1000 == now[1] // 1000:
            pass
        arguments = [state, gateway, data, TTL, id, CAP, MOST_BYTES, PREFIX]
        return self.script(keys=[PREFIX + id, INDEX, BYTES], args=arguments) == 1


def test_a_turn_ends_once(redis_url: str) -> None:
    """Any order of checkpoints, ends, losses, deletions and expiries, with small caps of turns and of bytes."""
    with redis.Redis.from_url(redis_url) as client:
        run_state_machine_as_test(lambda: Fence(client), settings=settings(max_examples=40, stateful_step_count=30))
