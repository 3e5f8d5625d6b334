"""What clients are told of their limits, and whose limits count."""

from __future__ import annotations

import msgspec
import openai
import pytest
from websockets.exceptions import InvalidStatus

from gateway.access.identity import Principal
from gateway.config.settings import LimitSettings, PriceSettings
from gateway.limits.counters import DAY, UNIT, Counters, bounds_of
from gateway.limits.readings import check_size, duration, headers, leaves, read, refusal
from gateway.limits.subjects import every_subject, mode_of, share_of_quota, socket_subjects, subjects_of
from gateway.protocol.stream import LimitReading, LimitState
from gateway.records.directory import Tenant
from gateway.records.quota import Amounts, LimitSubject, Quota
from tests.gateway.conftest import Serve

KEY_QUOTA = Quota(requests_per_minute=2, open_sockets=1)
TENANT = Tenant(
    name="acme",
    quota=Quota(requests_per_minute=9, mode="expected"),
    model_quotas={"large": Quota(spend_per_day=5)},
    adapter_quotas={"law": Quota(concurrent_turns=1, mode="strict")},
)


def test_a_tenants_quota_comes_before_the_defaults() -> None:
    default = Quota(requests_per_minute=60, concurrent_turns=7)
    (subject,) = subjects_of(default, TENANT, Principal("acme", "ci"), "small", None)
    assert subject == LimitSubject("tenant", Quota(requests_per_minute=9, concurrent_turns=7, mode="expected"))


def test_subjects_are_read_back_from_the_json_of_a_journal_wherever_their_quotas_come_from() -> None:
    """Those of the configuration stand in a section that has more than limits."""
    subjects = subjects_of(LimitSettings(), TENANT, Principal("acme", "ci"), "large", "law")
    assert len(subjects) > 1
    assert msgspec.json.decode(msgspec.json.encode(subjects), type=tuple[LimitSubject, ...]) == subjects


def test_everything_that_has_a_limit_counts() -> None:
    caller = Principal("acme", "ci", quota=KEY_QUOTA)
    names = [subject.name for subject in subjects_of(Quota(), TENANT, caller, "large", "law")]
    assert names == ["tenant", "key:ci", "model:large", "adapter:law"]
    assert subjects_of(Quota(burst_seconds=5), None, Principal("acme", "ci"), "large", None) == ()
    assert [subject.name for subject in socket_subjects(Quota(), TENANT, caller)] == ["key:ci"]


def test_what_a_tenants_own_admins_set_counts_beside_what_operators_set() -> None:
    """Of users, and of adapters the stricter of both."""
    own = {"law": Quota(concurrent_turns=5, spend_per_day=3), "pirate": Quota(requests_per_minute=1)}
    users = {"ada": Quota(requests_per_minute=4)}
    tenant = msgspec.structs.replace(TENANT, own_adapter_quotas=own, user_quotas=users)
    ada = Principal("acme", "ci", "ada")
    subjects = {each.name: each.quota for each in subjects_of(Quota(), tenant, ada, "small", "law")}
    law = Quota(concurrent_turns=1, spend_per_day=3, mode="strict")
    assert subjects == {"tenant": TENANT.quota, "user:ada": users["ada"], "adapter:law": law}
    bob = [each.name for each in subjects_of(Quota(), tenant, Principal("acme", "ci", "bob"), "small", "pirate")]
    assert bob == ["tenant", "adapter:pirate"]
    by_token = Principal("acme", "token:corp", "ada@example.com", user_id="ada")
    assert [each.name for each in subjects_of(Quota(), tenant, by_token, "small", None)] == ["tenant", "user:ada"]
    every = {each.name: each.quota for each in every_subject(Quota(), tenant, [])}
    assert every.keys() == {"tenant", "user:ada", "model:large", "adapter:law", "adapter:pirate"}
    assert every["adapter:law"] == law


def test_strict_wins_beside_a_tenant() -> None:
    caller = Principal("acme", "ci", quota=KEY_QUOTA)
    assert mode_of(subjects_of(Quota(), TENANT, caller, "large", None)) == "expected"
    assert mode_of(subjects_of(Quota(), TENANT, caller, "large", "law")) == "strict"
    assert mode_of(()) == "strict"


def test_the_shares_of_gateways_are_no_more_than_the_whole() -> None:
    share = share_of_quota(Quota(requests_per_minute=10, concurrent_turns=1, spend_per_day=2, burst_seconds=7), 3)
    assert share == Quota(requests_per_minute=3, concurrent_turns=1, spend_per_day=0, burst_seconds=7)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.12, "120ms"), (6.5, "6.5s"), (360, "6m0s"), (3723, "1h2m3s"), (3600, "1h0m0s")]
)
def test_durations_are_those_of_openai(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_subject_with_least_left_is_told() -> None:
    subjects = [
        LimitSubject("tenant", Quota(output_tokens_per_minute=100, input_tokens_per_minute=50)),
        LimitSubject("key:ci", Quota(output_tokens_per_minute=40)),
    ]
    counters = [Counters(output=50 * UNIT + 1), Counters(held_output=8)]
    state = read(subjects, counters, 0.5)
    told = {reading.name: (reading.subject, reading.remaining, reading.warning) for reading in state.readings}
    assert told == {
        "input_tokens_per_minute": ("tenant", 50, False),
        "output_tokens_per_minute": ("key:ci", 32, False),
    }
    assert headers(state)["x-ratelimit-remaining-tokens"] == "32"
    assert "x-roundhouse-limit-warning" not in headers(state)


def test_the_wait_is_that_of_the_limit_that_takes_longest() -> None:
    quota = Quota(requests_per_minute=60, output_tokens_per_minute=60)
    counters = Counters(requests=60 * UNIT, output=60 * UNIT)
    short = counters.shortfall(bounds_of(quota), Amounts(requests=1, output_tokens=5))
    assert short is not None and (short[0].name, short[1]) == ("output_tokens_per_minute", 5000)


def test_a_refusal_says_whose_limit_it_is_and_what_was_wanted() -> None:
    spent = refusal(
        [LimitSubject("tenant", Quota(spend_per_day=30))],
        [Counters(at=DAY - 3_723_000, spent_day=22)],
        Amounts(requests=1, turns=1, spend=11),
        0.8,
    )
    assert spent.message == (
        "spend_per_day of the tenant is reached: 22 of 30 are used or held by running turns, and this request may need "
        "11; try again in 1h2m3s"
    )
    assert spent.headers["x-roundhouse-limit-reached"] == "spend_per_day; subject=tenant; used=22; limit=30"
    sockets = refusal([LimitSubject("key:ci", KEY_QUOTA)], [Counters(sockets=1)], Amounts(sockets=1), 0.8)
    assert sockets.message == "open_sockets of key:ci is reached: 1 of 1 are open; try again in 1s"


@pytest.mark.parametrize("field", Quota.__struct_fields__)
def test_every_limit_lets_through_what_fits(field: str) -> None:
    """Each alone, from its smallest value."""
    if field not in ("burst_seconds", "mode"):
        check_size([LimitSubject("tenant", Quota(**{field: 20}))], Amounts(1, 1, 1, 1, 1, 1))


@pytest.mark.anyio
@pytest.mark.parametrize("field", ["spend_per_day", "spend_per_month"])
async def test_a_budget_is_used_up_and_then_refuses(serve: Serve, field: str) -> None:
    """Alone, a micro-dollar a token."""
    price = PriceSettings(name="tiny-small", input=1_000_000, output=1_000_000)
    answers = []
    async with serve(limits={field: 30}, prices=[price]) as served:
        for number in range(30):
            try:
                made = await served.client.responses.create(model="small", input=f"{number}", max_output_tokens=1)
            except openai.RateLimitError as refused:
                answers.append((refused.code, refused.response.json()["error"]["message"].split()[0]))
                break
            answers.append(("spent", (made.model_extra or {})["roundhouse"]["cost_microdollars"]))
    spent = [cost for what, cost in answers if what == "spent"]
    assert 0 < sum(spent) <= 30
    assert answers[-1] == ("insufficient_quota", field)


def test_a_key_counts_as_the_one_that_it_replaced() -> None:
    new = Principal("acme", "new", quota=KEY_QUOTA, counts_as="old")
    assert [subject.name for subject in socket_subjects(Quota(), None, new)] == ["key:old"]


@pytest.mark.anyio
async def test_http_and_sockets_are_told_before_a_limit_bites(serve: Serve) -> None:
    limits = {"requests_per_minute": 3, "output_tokens_per_minute": 1000, "open_sockets": 1}
    async with serve(limits=limits) as served:
        first = await served.client.responses.with_raw_response.create(model="auto", input="x", max_output_tokens=9)
        assert first.headers["x-ratelimit-limit-requests"] == "3"
        assert first.headers["x-ratelimit-remaining-requests"] == "2"
        assert first.headers["x-ratelimit-limit-output-tokens"] == "1000"
        assert first.headers["x-ratelimit-remaining-tokens"] == "991"
        assert "x-roundhouse-limit-warning" not in first.headers
        await served.client.chat.completions.create(
            model="auto", messages=[{"role": "user", "content": "x"}], max_tokens=1
        )
        third = await served.client.chat.completions.with_raw_response.create(
            model="auto", messages=[{"role": "user", "content": "x"}], max_tokens=1, stream=True
        )
        assert third.headers["x-roundhouse-limit-warning"] == "requests_per_minute of tenant"
        async with served.connect():
            with pytest.raises(InvalidStatus) as caught:
                await served.connect()
            assert caught.value.response.status_code == 429
        await served.settle()
        async with served.connect():
            pass
        await served.settle()


@pytest.mark.parametrize(
    ("name", "limit", "remaining", "turns", "room"),
    [
        ("requests_per_minute", 10, 6, 0, True),
        ("requests_per_minute", 10, 5, 0, False),
        ("output_tokens_per_minute", 1, 1, 9, True),
        ("concurrent_turns", 1, 1, 0, True),
        ("concurrent_turns", 1, 0, 0, False),
        ("concurrent_turns", 4, 4, 1, True),
        ("concurrent_turns", 4, 4, 2, False),
        ("concurrent_turns", 4, 2, 0, False),
        ("spend_per_day", 10, 0, 0, True),
        ("open_sockets", 10, 0, 0, True),
    ],
)
def test_what_is_left_to_others(name: str, limit: int, remaining: int, turns: int, room: bool) -> None:
    """Half of the rates and running turns; budgets are not kept back."""
    state = LimitState((LimitReading(name, "tenant", limit, remaining, 0.0),))
    assert leaves(state, 0.5, turns) == room
    assert leaves(LimitState(), 0.5, turns)
