"""An index proposes what followed the longest match, however the text came in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.ngram import _OCCURRENCES, LONGEST, SHORTEST, NgramIndex

TEXT = st.lists(st.integers(0, 3), max_size=60)


def search(text: list[int], count: int) -> tuple[int, tuple[int, ...]]:
    """The same by looking through the text, at as many occurrences of its last pair as the index looks at."""
    pairs = [at for at in range(len(text) - 1, SHORTEST - 1, -1) if text[at - SHORTEST : at] == text[-SHORTEST:]]
    for n in range(LONGEST, SHORTEST - 1, -1):
        for position in pairs[:_OCCURRENCES]:
            if position >= n and text[position - n : position] == text[-n:]:
                continued = list(text)
                for _ in range(count):
                    continued.append(continued[position + len(continued) - len(text)])
                return n, tuple(continued[len(text) :])
    return 0, ()


@given(TEXT, TEXT, TEXT, st.integers(1, 9))
def test_it_finds_what_a_search_through_the_text_finds(
    one: list[int], two: list[int], three: list[int], count: int
) -> None:
    index = NgramIndex()
    for piece in (one, two, three):
        index.extend(piece)
    text = one + two + three
    assert len(index) == len(text)
    assert index.propose(count) == search(text, count)


def test_the_longest_match_wins_and_the_latest_of_equals() -> None:
    index = NgramIndex()
    index.extend([1, 2, 3, 4, 50, 9, 3, 4, 60, 9, 3, 4, 70, 1, 2, 3, 4])
    assert index.propose(1) == (4, (50,))
    index.extend([8, 3, 4])
    assert index.propose(2) == (2, (8, 3))


def test_a_repetition_goes_on() -> None:
    index = NgramIndex()
    index.extend([7, 1, 2, 1, 2, 1, 2])
    assert index.propose(5) == (4, (1, 2, 1, 2, 1))


def test_a_text_that_never_repeats_proposes_nothing() -> None:
    index = NgramIndex()
    assert index.propose(4) == (0, ())
    index.extend(range(100))
    assert index.propose(4) == (0, ())
