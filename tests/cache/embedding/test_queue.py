"""Who is computed next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cache.embedding.queue import BULK_BATCH, URGENT_BATCH, EmbedQueue, Pending


def pending(name: str = "", deadline: float = 10.0) -> Pending:
    return Pending(owner=name, index=0, text=name, deadline=deadline)


def test_what_turns_wait_for_goes_first_and_alone() -> None:
    """A batch that nobody waits for never delays one that somebody does."""
    queue = EmbedQueue(100)
    bulk, urgent = [pending("bulk") for _ in range(20)], [pending("urgent") for _ in range(3)]
    assert queue.add(bulk, urgent=False) and queue.add(urgent, urgent=True)
    assert queue.take(0)[0] == urgent
    assert queue.take(0)[0] == bulk[:BULK_BATCH]


def test_the_bound_takes_all_texts_of_a_request_or_none() -> None:
    queue = EmbedQueue(5)
    assert queue.add([pending() for _ in range(3)], urgent=True)
    assert not queue.add([pending() for _ in range(3)], urgent=True)
    assert len(queue) == 3


def test_what_is_late_is_told_and_what_is_cancelled_vanishes() -> None:
    queue = EmbedQueue(10)
    late, gone, good = pending("late", deadline=1), pending("gone"), pending("good")
    gone.cancelled = True
    queue.add([late, gone, good], urgent=True)
    assert queue.take(2) == ([good], [late])
    assert queue.take(2) == ([], [])


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=20))
def test_everything_that_was_added_is_computed_once_in_the_order_of_its_line(requests: list[tuple[bool, int]]) -> None:
    """Whatever arrives in whatever sizes."""
    queue, expected = EmbedQueue(300), {True: [], False: []}  # type: ignore[var-annotated]
    for urgent, size in requests:
        texts = [pending() for _ in range(size)]
        if queue.add(texts, urgent=urgent):
            expected[urgent] += texts
    taken = []
    while len(queue):
        batch, late = queue.take(0)
        assert not late and 0 < len(batch) <= URGENT_BATCH
        taken += batch
    assert taken == expected[True] + expected[False]
