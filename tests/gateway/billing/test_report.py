"""Reports are the sums of what was entered; what does not add up is found."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from gateway.billing import report
from gateway.billing.entry import Group, LedgerEntry, Totals, counters_key, entries_key, group, totals
from gateway.billing.report import ReportQuery, ReportRow, periods
from gateway.billing.store import LedgerStore, Numbered
from gateway.cli.root import main
from gateway.config.settings import UsageSettings
from tests.gateway.billing.test_ledger import AT, DAY, HOUR, client, entry

SINCE = datetime(2026, 11, 20, tzinfo=UTC)
hours = st.integers(0, 24 * 4).map(lambda number: SINCE + timedelta(hours=number))
entries = st.lists(
    st.builds(
        entry,
        st.integers(1, 10**6),
        at=st.integers(0, 24 * 4 - 1).map(lambda number: int(SINCE.timestamp() * 1000) + number * HOUR + 1234),
        tenant=st.sampled_from(["acme", "umbrella"]),
        model=st.sampled_from(["llama", "org/mistral|7b"]),
        adapter=st.sampled_from([None, "pirate"]),
        key=st.sampled_from(["ci", "laptop"]),
        user=st.sampled_from([None, "ada"]),
        cache=st.sampled_from(["hit", "miss"]),
        picodollars=st.none() | st.integers(0, 2**55),
    ),
    max_size=40,
)
wanted = st.none() | st.just("llama")


async def fill(redis: Redis, many: list[LedgerEntry], store: UsageSettings | None = None) -> None:
    numbered = [Numbered(number, one) for number, one in enumerate(many, 1)]
    await LedgerStore(redis, store or UsageSettings()).write("w", numbered)


def name(by: report.By, one: LedgerEntry) -> str:
    time = datetime.fromtimestamp(one.at / 1000, UTC).isoformat()
    plain = {"day": time[:10], "hour": time[:13], "adapter": one.adapter or "", "user": one.user or ""}
    return plain[by] if by in plain else str(getattr(one, by))


@given(hours, hours, st.booleans())
def test_days_and_hours_make_up_a_time(since: datetime, until: datetime, hourly: bool) -> None:
    """Every hour once; days only where they are whole."""
    covered = []
    for period in periods(since, until, hourly=hourly):
        begin = report.begin_of(period)
        covered += [begin + timedelta(hours=hour) for hour in range(24 if len(period) == 8 else 1)]
    assert covered == [since + timedelta(hours=hour) for hour in range(max(0, (until - since) // timedelta(hours=1)))]


@pytest.mark.anyio
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries, hours, hours, st.lists(st.sampled_from(report.BY), unique=True, max_size=4), wanted)
async def test_a_report_is_the_sum_of_the_turns_in_its_time(
    redis_url: str, many: list[LedgerEntry], one: datetime, other: datetime, by: list[report.By], model: str | None
) -> None:
    """By whatever it groups and filters; and the books agree."""
    since, until = sorted((one, other))
    async with client(redis_url) as redis:
        await fill(redis, many)
        whole = ReportQuery(since=SINCE, until=SINCE + timedelta(days=4))
        async for verified in report.verify(redis, whole):
            # Hypothesis may have given two turns the same id.
            assert not [problem for problem in verified.problems if "is there" not in problem]
        if since == until:
            return
        query = ReportQuery(since=since, until=until, by=tuple(by), model=model)
        begin, end = (int(time.timestamp() * 1000) for time in (since, until))
        inside = [turn for turn in many if begin <= turn.at < end and model in (None, turn.model)]
        expected: dict[tuple[str, ...], Totals] = defaultdict(Totals)
        for turn in inside:
            expected[tuple(name(part, turn) for part in by)] += totals(turn)
        assert await report.report(redis, query) == [ReportRow(names, expected[names]) for names in sorted(expected)]
        found = [turn async for turn in report.turns(redis, query)]
        assert sorted(map(repr, found)) == sorted(map(repr, inside))


@pytest.mark.anyio
class TestVerify:
    """What does not add up."""

    async def problems(self, redis: Redis) -> list[str]:
        query = ReportQuery(since=SINCE, until=SINCE + timedelta(days=4))
        return [problem async for verified in report.verify(redis, query) for problem in verified.problems]

    async def test_changed_sums_are_found(self, redis_url: str) -> None:
        async with client(redis_url) as redis:
            await fill(redis, [entry(1), entry(2, at=AT + HOUR)])
            assert await self.problems(redis) == []
            field = Group("llama", "", "ci").field + "|output"
            await redis.hincrby(counters_key("acme", DAY), field, 1)
            assert await self.problems(redis) == [
                "llama||ci output: the day says 7, its hours 6",
                "llama||ci output: the day says 7, its turns 6",
            ]
            await redis.hincrby(counters_key("acme", DAY + "14"), field, 1)
            assert await self.problems(redis) == [
                "llama||ci output: the day says 7, its turns 6",
                f"llama||ci output: hour {DAY}14 says 4, its turns 3",
            ]

    async def test_changed_turns_are_found(self, redis_url: str) -> None:
        async with client(redis_url) as redis:
            await fill(redis, [entry(1)])
            await redis.xadd(entries_key("acme", DAY), {"entry": b"{}"})
            assert await self.problems(redis) == ["2 turns are kept, 1 were counted"]
            await fill(redis, [entry(2)])  # sent under a number that was counted already
            await redis.delete(entries_key("acme", DAY))
            await LedgerStore(redis, UsageSettings()).write("other", [Numbered(number, entry(3)) for number in (1, 2)])
            await redis.hincrby(counters_key("acme", DAY), Group("llama", "", "ci").field + "|turns", -1)
            await redis.hincrby(counters_key("acme", DAY + "14"), Group("llama", "", "ci").field + "|turns", -1)
            assert "resp_3 is there 2 times" in await self.problems(redis)

    async def test_what_was_trimmed_or_pruned_is_no_problem(self, redis_url: str) -> None:
        async with client(redis_url) as redis:
            await fill(redis, [entry(number) for number in range(1000)], UsageSettings(entries_per_day=100))
            assert await self.problems(redis) == []
            await LedgerStore(redis, UsageSettings(hour_days=1, entry_days=10)).prune(SINCE + timedelta(days=9))
            assert await self.problems(redis) == []
            query = ReportQuery(since=SINCE, until=SINCE + timedelta(days=4))
            assert report.total(await report.report(redis, query)).turns == 1000


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"since": SINCE + timedelta(minutes=1)}, "from: expected a whole hour"),
        ({"until": datetime(2026, 11, 21)}, "to: expected a whole hour of UTC"),
        ({"until": SINCE}, "to: must be after from"),
        ({"since": datetime(1970, 1, 1, tzinfo=UTC)}, "from: too long ago"),
    ],
)
def test_a_query_says_what_is_wrong_with_it(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReportQuery(**{"since": SINCE, "until": SINCE + timedelta(days=1), "by": ("hour",), **fields})


class TestCommand:
    """`roundhouse usage`."""

    TIME = ("--from", "2026-11-20", "--to", "2026-11-24")

    @pytest.fixture(autouse=True)
    def filled(self, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REDIS_URL", redis_url)
        many = [
            entry(1, picodollars=1_500_000_000_000),
            entry(2, adapter="=1+1", at=AT + 24 * HOUR),
            entry(3, tenant="umbrella", outcome="cancelled", picodollars=None),
        ]

        async def write() -> None:
            async with client(redis_url) as redis:
                await fill(redis, many)

        asyncio.run(write())

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["usage", *arguments], env={"COLUMNS": "120"})

    def test_a_table_has_lines_and_a_total(self) -> None:
        result = self.run(*self.TIME)
        assert result.exit_code == 0, result.output
        lines = [line.split() for line in result.output.splitlines() if line.strip()]
        assert ["2026-11-22", "2", "0", "20", "8", "6", "1.500000"] in lines
        assert ["2026-11-23", "1", "0", "10", "4", "3", "0.000000"] in lines
        assert ["total", "3", "0", "30", "12", "9", "1.500000"] in lines

    def test_programs_get_json(self) -> None:
        result = self.run(*self.TIME, "--by", "tenant", "--by", "adapter", "--tenant", "acme", "--json")
        shown = json.loads(result.stdout)
        assert [(row["tenant"], row["adapter"], row["turns"]) for row in shown["rows"]] == [
            ("acme", "", 1),
            ("acme", "=1+1", 1),
        ]
        assert shown["total"] == {
            "turns": 2,
            "cache_hits": 0,
            "input_tokens": 20,
            "cached_input_tokens": 8,
            "output_tokens": 6,
            "cost_microdollars": 1_500_000,
        }

    def test_spreadsheets_get_csv_without_formulas(self, tmp_path: Path) -> None:
        file = tmp_path / "usage.csv"
        assert self.run(*self.TIME, "--by", "adapter", "--csv", str(file)).exit_code == 0
        rows = list(csv.DictReader(io.StringIO(file.read_text("utf-8"))))
        assert [row["adapter"] for row in rows] == ["", "'=1+1"]
        assert rows[0]["cost_dollars"] == "1.500000"

    def test_every_turn_can_be_exported(self) -> None:
        rows = list(csv.DictReader(io.StringIO(self.run(*self.TIME, "--turns", "--csv", "-").stdout)))
        assert [(row["turn"], row["outcome"], row["cost_picodollars"]) for row in rows] == [
            ("resp_1", "completed", "1500000000000"),
            ("resp_2", "completed", "7"),
            ("resp_3", "cancelled", ""),
        ]
        assert rows[0]["time"] == "2026-11-22T14:30:00.000+00:00"
        lines = [json.loads(line) for line in self.run(*self.TIME, "--turns", "--json").stdout.splitlines()]
        assert [line["turn"] for line in lines] == ["resp_1", "resp_2", "resp_3"]

    def test_the_books_are_verified(self, redis_url: str) -> None:
        result = self.run("verify", *self.TIME)
        assert (result.exit_code, result.output) == (
            0,
            "3 days of tenants agree: 3 turns, 3 of them with their entries\n",
        )

        async def tamper() -> None:
            async with Redis.from_url(redis_url) as redis:
                await redis.hincrby(counters_key("acme", DAY), group(entry(1)).field + "|input", 5)

        asyncio.run(tamper())
        result = self.run("verify", *self.TIME)
        assert result.exit_code == 1
        assert "acme 20261122: llama||ci input: the day says 15, its hours 10" in result.output

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--from", "yesterday"], "expected a day or hour of UTC"),
            (["--from", "2026-11-22", "--to", "2026-11-22"], "--to: must be after from"),
            (["--csv", "-", "--json"], "--csv and --json"),
            (["--turns"], "--turns: say --csv FILE or --json"),
            (["--turns", "--json", "--by", "key"], "--turns and --by"),
            (["--by", "colour"], "'colour' is not one of"),
            (["--csv", "/nowhere/usage.csv"], "No such file or directory"),
            (["verify", "--model", "llama"], "verify compares whole days"),
        ],
        ids=" ".join,
    )
    def test_mistakes_are_explained(self, arguments: list[str], message: str) -> None:
        result = self.run(*arguments)
        assert result.exit_code in (1, 2)
        assert message in result.output

    def test_nothing_used_is_said(self) -> None:
        assert self.run("--from", "2001-01-01", "--to", "2001-02-01").output == "nothing was used in this time\n"
