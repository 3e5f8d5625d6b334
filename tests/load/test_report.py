"""The report's files can be read, and hold no secrets and no texts."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from load.objectives import Objectives
from load.records import MeasuredTurn, TurnEnd
from load.report.document import LoadReport, make_report
from load.report.files import turns_csv, write_report
from load.report.page import milliseconds
from load.report.svg import HEIGHT, WIDTH, ChartAxis, ChartLine, chart
from load.report.table import show
from load.statistics import LoadRun, summarise
from tests.load.samples import measured, planned

OBJECTIVES = Objectives(ttft=0.5)
SVG = "{http://www.w3.org/2000/svg}"
TURNS = [
    measured(0.0, number=0, gaps=(0.05, 0.05), digest="d0"),
    measured(1.0, number=1, gaps=(0.1,), error=None),
    measured(2.0, number=2, end=TurnEnd.REFUSED, first=None, last=None, error="429 <script>alert(1)</script>"),
    msgspec.structs.replace(measured(3.0), plan=planned(3, 3.0, tenant="b", protocol="responses", model="two")),
]


def made(turns: Sequence[MeasuredTurn] = TURNS, rates: Sequence[float] = (1.0,)) -> LoadReport:
    """Of one run of all turns, or of a search in which the first two came at the first rate, which is the best one."""
    runs = [
        LoadRun(rate, rate > 3, summarise(turns[:2] if rate == 1 < len(rates) else turns, OBJECTIVES, 4.0))
        for rate in rates
    ]
    return make_report(runs, turns, OBJECTIVES, "http://h/v1", {"seed": 7}, searched=len(rates) > 1)


class Tags(HTMLParser):
    """Collects tags, and checks that each that is open is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


@pytest.mark.parametrize("rates", [(1.0,), (1.0, 2.0, 4.0)])
def test_the_page_is_whole_and_needs_no_other_file(tmp_path: Path, rates: Sequence[float]) -> None:
    write_report(made(rates=rates), TURNS, tmp_path)
    text = (tmp_path / "report.html").read_text("utf-8")
    tags = Tags()
    tags.feed(text)
    assert tags.stack == []
    names = [name for name, _ in tags.seen]
    assert "script" not in names and "link" not in names
    assert not [attributes for _, attributes in tags.seen if {"src", "href"} & attributes.keys()]
    assert names.count("svg") == (6 if len(rates) > 1 else 4)
    for words in ("By tenant", "By model", "By protocol"):
        assert words in text
    if len(rates) == 1:
        assert "Objectives missed" in text and "429 &lt;script&gt;alert(1)" in text
    else:
        assert "Objectives met" in text and "<b>1/s</b>" in text


def test_json_gives_the_report_again(tmp_path: Path) -> None:
    report = made()
    write_report(report, TURNS, tmp_path)
    assert msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=LoadReport) == report


def test_csv_has_a_line_for_each_turn() -> None:
    rows = list(csv.DictReader(io.StringIO(turns_csv(TURNS[::-1]))))
    assert [row["number"] for row in rows] == ["0", "1", "2", "3"]
    assert (rows[0]["end"], rows[0]["ttft"], rows[0]["output_tokens"]) == ("completed", "0.100000", "11")
    assert rows[0]["digest"] == "d0" and rows[2]["ttft"] == ""
    assert (rows[3]["tenant"], rows[3]["protocol"], rows[3]["model"]) == ("b", "responses", "two")
    assert "prompt" not in rows[0]


def test_a_search_shows_the_highest_rate_that_kept_the_objectives() -> None:
    report = made(rates=(1.0, 2.0, 4.0))
    assert report.capacity == 1.0
    assert report.run.rate == 1.0 and report.verdict.met


def test_a_search_without_such_a_rate_is_missed() -> None:
    report = made(rates=(2.0, 4.0))
    assert (report.capacity, report.verdict.met) == (None, False)
    assert report.verdict.reasons == ("no rate kept the objectives",)


def test_one_run_has_no_capacity() -> None:
    assert made().capacity is None


@pytest.mark.parametrize("rates", [(1.0,), (1.0, 2.0)])
def test_the_terminal_shows_figures_and_reasons(rates: Sequence[float]) -> None:
    output = io.StringIO()
    report = made(TURNS[2:3], rates=(2.0,)) if len(rates) == 1 else made(rates=rates)
    show(report, Console(file=output, width=120))
    said = output.getvalue()
    if len(rates) == 1:
        assert "0.00 % of turns were good" in said and "objectives missed" in said
        assert "1 times: 429 <script>" in said
    else:
        assert "highest rate that keeps the objectives: 1 turns per second" in said and "objectives met" in said


POINTS = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6)), min_size=1, max_size=30)


@given(POINTS, st.booleans(), st.booleans(), st.none() | st.floats(1e-6, 1e6))
@example([(1e-20, 1.0)], False, False, None)  # Ticks that were rounded to twelve places were far outside.
def test_everything_that_a_chart_shows_is_within_it(
    points: list[tuple[float, float]], logarithmic: bool, scattered: bool, bound: float | None
) -> None:
    y = ChartAxis("y", logarithmic=logarithmic, at_least=None if logarithmic else 0.0)
    drawn = ElementTree.fromstring(chart("t <&>", ChartAxis("x"), y, [ChartLine("l", points, scattered)], bound))
    if scattered:
        path = drawn.findall(f"{SVG}path")[0].get("d") or ""
        places = path.replace("h0", "").split("M")[1:]
    else:
        places = (drawn.findall(f"{SVG}polyline")[0].get("points") or "").split()
    assert len(places) == len(points)
    ends = [(line.get(f"x{at}"), line.get(f"y{at}")) for line in drawn.findall(f"{SVG}line") for at in (1, 2)]
    for x, y_place in [*(map(float, each.split(",")) for each in places), *(map(float, each) for each in ends)]:  # type: ignore[arg-type]
        assert 0 <= x <= WIDTH and 0 <= y_place <= HEIGHT


def test_a_chart_of_nothing_is_left_out() -> None:
    assert chart("t", ChartAxis("x"), ChartAxis("y"), [ChartLine("l", [])]) == ""


@pytest.mark.parametrize(("seconds", "shown"), [(0.0, "0"), (0.0000123, "0.0123"), (0.0456, "45.6"), (1.2345, "1,234")])
def test_times_have_about_three_digits(seconds: float, shown: str) -> None:
    assert milliseconds(seconds) == shown
