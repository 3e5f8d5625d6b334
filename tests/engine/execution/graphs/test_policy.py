"""Which steps are recorded: few shapes, little padding, the most used first, and no more than there is memory for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.execution.graphs.policy import CapturePolicy, Shape

ROWS = st.integers(1, 600)
LENGTHS = st.integers(1, 200_000)


@given(ROWS, LENGTHS, ROWS, LENGTHS)
def test_a_shape_holds_its_step_and_little_more(most_rows: int, context: int, rows: int, length: int) -> None:
    policy = CapturePolicy(most_rows, context)
    shape = policy.pad(rows, length)
    if rows > most_rows or length > context:
        assert shape is None
        return
    assert shape is not None
    assert rows <= shape.rows <= min(most_rows, max(2 * rows - 1, rows + 7))
    assert length <= shape.length <= min(context, max(1024, 4 * length - 1))
    assert policy.pad(*shape) == shape


@given(ROWS, LENGTHS, ROWS, LENGTHS, ROWS, LENGTHS)
def test_larger_steps_have_larger_shapes(
    most_rows: int, context: int, rows: int, length: int, more_rows: int, more_length: int
) -> None:
    policy = CapturePolicy(most_rows, context)
    small, large = policy.pad(rows, length), policy.pad(max(rows, more_rows), max(length, more_length))
    if large is not None:
        assert small is not None
        assert small.rows <= large.rows
        assert small.length <= large.length


def test_there_are_few_shapes() -> None:
    policy = CapturePolicy(256, 131_072)
    assert len({policy.pad(rows, 1) for rows in range(1, 257)}) == 4 + 31
    assert len({policy.pad(1, length) for length in range(1, 131_073)}) == 5


@given(st.lists(st.sampled_from([Shape(1, 64), Shape(2, 64), Shape(4, 64)]), max_size=60), st.integers(0, 5))
def test_a_shape_is_recorded_after_its_uses_and_while_there_is_memory(runs: list[Shape], uses: int) -> None:
    """Each recording takes 10 of 15 bytes: two fit, the second of which goes beyond."""
    policy = CapturePolicy(8, 64, uses=uses, memory=15)
    recorded: list[Shape] = []
    for place, shape in enumerate(runs):
        if shape in recorded:
            continue
        due = policy.due(shape)
        assert due == (runs[:place].count(shape) >= uses and len(recorded) < 2)
        if due:
            recorded.append(shape)
            policy.spent(10)
