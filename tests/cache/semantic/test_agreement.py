"""Whether two answers say the same."""

from __future__ import annotations

import pytest

from cache.semantic.agreement import agree, same


@pytest.mark.parametrize(
    ("fresh", "stored", "similarity", "agrees"),
    [
        ("Paris.", "paris", None, True),
        ("It is  in\nParis!", "It is in Paris", None, True),
        ("It takes five days.", "That takes 5 days.", 0.95, True),
        ("It takes 5 days.", "It takes 6 days.", 0.99, False),
        ("It takes 5 days.", "It takes 5 hours.", 0.99, False),
        ("You can return it.", "You can not return it.", 0.99, False),
        ("Ask Anna about it.", "Ask Berta about it.", 0.99, False),
        ("Ask about it.", "Ask about this.", 0.5, False),
        ("Ask about it.", "Ask about this.", None, False),
        ("x " * 2000, "y " * 2000, 0.99, False),
    ],
)
def test_when_in_doubt_they_do_not(fresh: str, stored: str, similarity: float | None, agrees: bool) -> None:
    assert agree(fresh, stored, similarity) is agrees
    assert agree(stored, fresh, similarity) is agrees


def test_the_same_words_in_another_order_are_not_the_same() -> None:
    assert not same("Anna beats Berta.", "Berta beats Anna.")
