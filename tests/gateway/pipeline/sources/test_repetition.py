"""Going on with an answer of which a part was shown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.sources.repetition import Repetition
from gateway.protocol.stream import TextDelta, TurnEvent

PIECES = st.lists(st.text("ab", max_size=3), max_size=8)


@given(PIECES, st.integers(0, 30))
def test_what_was_shown_does_not_come_again(pieces: list[str], shown: int) -> None:
    answer = "".join(pieces)
    given, rest = answer[:shown], []
    repetition = Repetition(given, lambda event: rest.append(_text(event)))
    for piece in pieces:
        repetition.append(TextDelta(piece))
    assert given + "".join(rest) == answer
    assert repetition.whole and not repetition.diverged


@given(PIECES, st.text("ab", max_size=12))
def test_another_answer_is_noticed_and_never_mixed_in(pieces: list[str], shown: str) -> None:
    answer, rest = "".join(pieces), []
    repetition = Repetition(shown, lambda event: rest.append(_text(event)))
    for piece in pieces:
        repetition.append(TextDelta(piece))
    assert repetition.whole == answer.startswith(shown)
    assert (shown + "".join(rest) == answer) if repetition.whole else not "".join(rest)


def _text(event: TurnEvent) -> str:
    assert isinstance(event, TextDelta)
    return event.text
