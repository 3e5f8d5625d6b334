"""How an answer was streamed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.shape import MAX_DELTAS, DeltaShape, check, shape_of

DELTAS = st.lists(st.tuples(st.text(max_size=3), st.lists(st.integers(0, 2**32 - 1), max_size=3)), max_size=600)


@given(DELTAS)
def test_a_shape_fits_its_text(deltas: list[tuple[str, list[int]]]) -> None:
    text = "".join(text for text, _ in deltas)
    tokens = [token for _, ids in deltas for token in ids]
    shape = shape_of([len(text) for text, _ in deltas], [len(ids) for _, ids in deltas], tokens)
    check(shape, text)
    assert shape.token_ids == tuple(tokens)
    assert len(shape.lengths) <= MAX_DELTAS
    if len(deltas) <= MAX_DELTAS:
        assert shape.lengths == tuple(len(text) for text, _ in deltas)


@given(st.lists(st.integers(0, 9), min_size=MAX_DELTAS + 1, max_size=2000))
def test_borders_that_are_kept_are_borders_that_were(lengths: list[int]) -> None:
    """Neighbours are merged, evenly."""
    shape = shape_of(lengths, (), ())
    ends = {sum(lengths[:index]) for index in range(len(lengths) + 1)}
    assert {sum(shape.lengths[:index]) for index in range(len(shape.lengths) + 1)} <= ends
    assert MAX_DELTAS / 2 <= len(shape.lengths) <= MAX_DELTAS


@pytest.mark.parametrize(
    "shape",
    [
        DeltaShape((2,), (0,), ()),
        DeltaShape((3,), (1,), ()),
        DeltaShape((3,), (), ()),
        DeltaShape((4, -1), (0, 0), ()),
        DeltaShape((3, *(0,) * MAX_DELTAS), (0,) * (MAX_DELTAS + 1), ()),
    ],
)
def test_a_shape_that_is_no_other_text_s(shape: DeltaShape) -> None:
    with pytest.raises(ValueError, match="add up"):
        check(shape, "abc")
