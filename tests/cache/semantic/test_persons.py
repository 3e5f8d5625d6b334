"""Which persons a question is about."""

from __future__ import annotations

import pytest

from cache.semantic.persons import differ, persons


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("How do I swim", ()),
        ("How do you swim", ()),
        ("How to improve my English", ("anybody own",)),
        ("What is the best school that I can send my son to", ("1", "1 own")),
        ("What should I do if my wife is ill", ("anybody own",)),
        ("What should I do if his wife is ill", ("he own",)),
        ("How can I tell you that I like you", ("2", "anybody", "2")),
        ("How do we save our garden", ("anybody own",)),
        ("Do I love him", ("1", "he object")),
        ("Does he love me", ("he", "1 object")),
        ("How do I know if I'm rich", ("anybody",)),
        ("How do you know if you're rich", ("anybody",)),
        ("How do I wake myself", ("anybody",)),
        ("How do I know if she likes me", ("she", "anybody")),
        ("How do you know if she likes you", ("she", "anybody")),
        ("Is the us rich", ()),
        ("How do I know if she's rich", ("she",)),
        ("Can you help", ("2",)),
        ("Is the US rich", ()),
        ("Does it help us", ("1 we object",)),
    ],
)
def test_whoever_asks_for_a_way_means_anybody(text: str, found: tuple[str, ...]) -> None:
    assert persons(text.split()) == found


@pytest.mark.parametrize(
    ("ours", "theirs", "different"),
    [
        ((), (), False),
        (("he",), ("he",), False),
        (("he",), ("she",), True),
        (("he", "she own"), ("she own", "he"), True),
        (("1 own",), (), True),
        (("they own",), (), False),
        (("they own",), ("he own",), True),
        (("2 own",), (), False),
        (("anybody own",), (), False),
        (("anybody own",), ("2 own",), True),
        (("2 own",), ("1 we own",), True),
    ],
)
def test_some_persons_may_be_left_out_but_none_exchanged(
    ours: tuple[str, ...], theirs: tuple[str, ...], different: bool
) -> None:
    assert differ(ours, theirs) is differ(theirs, ours) is different
