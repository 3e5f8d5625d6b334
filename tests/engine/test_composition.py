"""docs/composition.md lists what is tested, and nothing else."""

from __future__ import annotations

from pathlib import Path

from tests.engine.composition import FEATURES, LARGER, PAIRS, page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "composition.md"


def test_the_page_is_the_one_that_is_generated() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: make docs"


def test_no_pair_is_left_out() -> None:
    assert {frozenset(pair) for pair in PAIRS} == {frozenset((a, b)) for a in FEATURES for b in FEATURES if a != b}


def test_every_feature_is_part_of_several_larger_combinations() -> None:
    assert all(sum(feature in combination for combination in LARGER) > 3 for feature in FEATURES)
