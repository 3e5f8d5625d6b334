"""Loads: what is read from text and traces, and the requests that are drawn from one."""

from __future__ import annotations

import statistics
from itertools import pairwise

import msgspec
import pytest

from scale.planning.traffic import Length, PlannedTraffic, parse_traffic, read_trace, summarise

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE = [
    HEADER,
    "2023-11-16 18:17:03.9799600,4808,10\n",
    "2023-11-16 18:17:04.0319600,3180,8\n",
    "2023-11-16 18:17:05.9799600,110,27\n",
]


def test_a_load_is_read_from_text() -> None:
    assert parse_traffic("rate=20, input=1000, output=200, shared=0.4") == PlannedTraffic(
        rate=20, input=1000, output=200, shared=0.4
    )


def test_requests_of_a_day_come_at_the_rate_of_its_busiest_time() -> None:
    assert parse_traffic("daily=1e6,peak=3,input=8,output=8").rate == pytest.approx(1e6 / 86_400 * 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate=20,input=1000", "output"),
        ("rate=20,input=1000,output=10,shares=1", "shares"),
        ("rate=0,input=1,output=1", "rate"),
        ("rate=1,input=1,output=1,shared=1", "shared"),
        ("rate=1,daily=1,input=1,output=1", "rate or daily"),
        ("rate=many", "name=number"),
        ("rate", "name=number"),
    ],
)
def test_a_text_that_is_no_load_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError), match=message):
        parse_traffic(text)


def test_drawn_requests_have_the_load_s_means() -> None:
    traffic = PlannedTraffic(rate=50, input=600, output=120, shared=0.5)
    drawn = list(traffic.lengths(400))
    assert len(drawn) == pytest.approx(20_000, rel=0.03)
    assert statistics.fmean(each.prompt for each in drawn) == pytest.approx(600, rel=0.03)
    assert statistics.fmean(each.answer for each in drawn) == pytest.approx(120, rel=0.03)
    gaps = [later.at - earlier.at for earlier, later in pairwise(drawn)]
    assert statistics.stdev(gaps) == pytest.approx(statistics.fmean(gaps), rel=0.05)  # as at random


def test_the_same_seed_draws_the_same_requests() -> None:
    traffic = PlannedTraffic(rate=5, input=50, output=10)
    assert list(traffic.lengths(20, seed=3)) == list(traffic.lengths(20, seed=3)) != list(traffic.lengths(20, seed=4))


def test_prompts_begin_with_one_of_a_few_beginnings_and_share_nothing_else() -> None:
    traffic = PlannedTraffic(rate=5, input=100, output=10, shared=0.4)
    prompts = list(traffic.prompts([Length(0, 90, 1) for _ in range(100)]))
    assert len({tuple(prompt[:40]) for prompt in prompts}) == 16
    rest = [token for prompt in prompts for token in prompt[40:]]
    assert len(rest) == len(set(rest)) == 100 * 50


def test_a_trace_of_azure_s_is_read_and_summarised() -> None:
    trace = read_trace(AZURE)
    assert [(round(each.at, 3), each.prompt, each.answer) for each in trace] == [
        (0.0, 4808, 10),
        (0.052, 3180, 8),
        (2.0, 110, 27),
    ]
    assert summarise(trace) == PlannedTraffic(rate=1.5, input=8098 / 3, output=15)


@pytest.mark.parametrize(
    ("lines", "message"),
    [(["a,b\n", "1,2\n"], "no column 'TIMESTAMP'"), ([HEADER], "fewer than two"), ([*AZURE, "x,1,1\n"], "isoformat")],
)
def test_what_is_no_trace_is_refused(lines: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_trace(lines)
