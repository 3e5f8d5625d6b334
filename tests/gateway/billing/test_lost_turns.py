"""What another gateway does with the journal of one that died: its running turns are entered, and charged, once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.billing.entry import Group
from gateway.billing.ledger import Ledger
from gateway.config.settings import UsageSettings
from gateway.records.quota import Amounts, Charge, LimitSubject, Quota
from tests.gateway.billing.test_ledger import client, counted, die, entered, entry

pytestmark = pytest.mark.anyio


async def test_running_turns_of_a_dead_gateway_are_entered_as_lost(redis_url: str, tmp_path: Path) -> None:
    """With the figures of their last checkpoint; one that had ended since is not entered twice."""
    async with client(redis_url) as redis:
        ledger = Ledger(redis, UsageSettings(), tmp_path)
        for index in (1, 2, 3):
            ledger.open(f"resp_{index}", lambda index=index: entry(index, outcome="lost", output=index))
        await ledger.flush()
        ledger.close("resp_2", entry(2, output=20))
        await ledger.flush()
        ledger.close("resp_1", entry(1, output=10))
        die(ledger)
        await Ledger(redis, UsageSettings(), tmp_path).adopt()
        found = {one.turn: (one.outcome, one.output) for one in await entered(redis)}
        assert found == {"resp_1": ("completed", 10), "resp_2": ("completed", 20), "resp_3": ("lost", 3)}
        assert (await counted(redis))[Group("llama", "", "ci")].turns == 3


async def test_limits_are_charged_what_lost_turns_are_entered_with(redis_url: str, tmp_path: Path) -> None:
    """One that had ended since, only if it was not settled; nothing before all is known, also if Redis goes away."""
    charged: list[tuple[str, Charge]] = []
    fails = True

    async def charge(tenant: str, owed: Charge) -> None:
        nonlocal fails
        if fails:
            fails = False
            raise ConnectionError
        charged.append((tenant, owed))

    def owed(index: int, *, if_held: bool = False) -> list[Charge]:
        subjects = (LimitSubject("tenant", Quota(spend_per_day=5)),)
        return [Charge(f"resp_{index}", Amounts(output_tokens=index, spend=1), subjects, if_held)]

    async with client(redis_url) as redis:
        ledger = Ledger(redis, UsageSettings(), tmp_path)
        for index in (1, 2):
            ledger.open(
                f"resp_{index}",
                lambda index=index: entry(index, outcome="lost", output=index),
                lambda index=index: owed(index),
            )
        await ledger.flush()
        ledger.close("resp_1", entry(1), owed(1, if_held=True))
        die(ledger)
        adopter = Ledger(redis, UsageSettings(), tmp_path, charge_lost=charge)
        await adopter.adopt()
        assert charged == []
        for _ in range(2):
            await adopter.adopt()
        assert charged == [("acme", *owed(1, if_held=True)), ("acme", *owed(2))]
        assert {one.turn for one in await entered(redis)} == {"resp_1", "resp_2"}


async def test_a_journal_of_a_newer_version_is_finished(redis_url: str, tmp_path: Path) -> None:
    """Its quotas have a limit that nobody here knows, in its lines and in its checkpoint."""
    charged: list[Charge] = []

    async def charge(_: str, owed: Charge) -> None:
        charged.append(owed)

    def renew(folder: Path) -> None:
        for path in (*folder.glob("*.journal"), *folder.glob("*.running")):
            written = path.read_bytes()
            assert b'"quota":{' in written
            path.write_bytes(written.replace(b'"quota":{', b'"quota":{"images_per_minute":5,'))

    def owed(index: int) -> list[Charge]:
        subjects = (LimitSubject("tenant", Quota(spend_per_day=5)),)
        return [Charge(f"resp_{index}", Amounts(spend=1), subjects)]

    async with client(redis_url) as redis:
        ledger = Ledger(redis, UsageSettings(), tmp_path)
        for index in (1, 2):
            ledger.open(
                f"resp_{index}", lambda index=index: entry(index, outcome="lost"), lambda index=index: owed(index)
            )
        await ledger.flush()
        ledger.close("resp_1", entry(1), owed(1))
        die(ledger)
        renew(tmp_path)
        await Ledger(redis, UsageSettings(), tmp_path, charge_lost=charge).adopt()
        assert charged == [*owed(1), *owed(2)]
        assert {one.turn for one in await entered(redis)} == {"resp_1", "resp_2"}


async def test_a_journal_of_an_older_version_is_finished(redis_url: str, tmp_path: Path) -> None:
    async with client(redis_url) as redis:
        ledger = Ledger(redis, UsageSettings(), tmp_path)
        ledger.open("resp_1", lambda: entry(1, outcome="lost"))
        await ledger.flush()
        die(ledger)
        path = tmp_path / f"{ledger._writer}.running"
        written = msgspec.json.decode(path.read_bytes())
        del written["charges"]
        path.write_bytes(msgspec.json.encode(written))
        await Ledger(redis, UsageSettings(), tmp_path).adopt()
        assert [one.turn for one in await entered(redis)] == ["resp_1"]
