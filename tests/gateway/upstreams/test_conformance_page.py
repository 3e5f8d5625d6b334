"""The conformance page says what the conformance suite asks, and every test of the suite is a row of it."""

from pathlib import Path

from tests.gateway.upstreams import test_conformance
from tests.gateway.upstreams.conformance import FEATURES
from tests.gateway.upstreams.conformance_page import page

PAGE = Path(__file__).parents[3] / "docs" / "upstreams-conformance.md"


def test_the_page_is_what_the_suite_makes() -> None:
    assert PAGE.read_text("utf-8") == page(), "run `make docs`"


def test_every_test_is_a_row() -> None:
    tests = {name for name in vars(test_conformance) if name.startswith("test_")}
    assert tests == FEATURES.keys()
