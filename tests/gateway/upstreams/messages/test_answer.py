"""The answer to a conversation, as its consumer sees it."""

from __future__ import annotations

import pytest

from engine.client.answer_stream import Delta
from engine.client.conversation import AnswerPart, CallPart, TextLogprob, TextPart
from engine.client.generation import EngineGone
from gateway.upstreams.messages.answer import MessageAnswer
from gateway.upstreams.messages.dialect import ServerUsage

pytestmark = pytest.mark.anyio


A, X = TextLogprob("a", (97,), -1.0), TextLogprob("x", (120,), -2.0)


class Asked:
    """An answer whose server a test is."""

    def __init__(self, *, stop: tuple[str, ...] = ()) -> None:
        self.cancelled: list[str] = []
        self.answer = MessageAnswer("1", 10, self.cancelled.append, stop=stop)
        self._tokens = 0

    def say(self, *parts: AnswerPart | str) -> None:
        self._tokens += len(parts)
        self.answer.feed([TextPart(part) if isinstance(part, str) else part for part in parts], self._tokens)

    async def rest(self) -> list[Delta]:
        return [delta async for delta in self.answer]


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


async def test_what_has_come_is_one_delta() -> None:
    asked = Asked()
    asked.say("Hel", "lo", CallPart("now"))
    delta = await anext(asked.answer)
    assert (delta.text, delta.token_ids) == ("Hello", [])
    assert delta.parts == [TextPart("Hel"), TextPart("lo"), CallPart("now")]


async def test_counts_are_estimates_until_the_server_has_counted() -> None:
    asked = Asked()
    asked.say("a", "b", "c")
    assert (asked.answer.usage.prompt_tokens, asked.answer.usage.output_tokens) == (10, 3)
    assert asked.answer.delivered.output_tokens == 0
    asked.answer.count(ServerUsage(20, 8, 2))
    asked.answer.end("stop")
    await asked.rest()
    found = asked.answer.result.usage
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (20, 8, 2)
    assert asked.answer.delivered == found


async def test_a_cancelled_answer_counts_what_was_taken() -> None:
    asked = Asked()
    asked.say("a", "b")
    await anext(asked.answer)
    asked.say("c", "d")
    asked.answer.cancel()
    assert asked.cancelled == ["1"]
    assert asked.answer.delivered.output_tokens == 0
    await anext(asked.answer)
    assert asked.answer.delivered.output_tokens == 2


async def test_a_cancelled_answer_counts_no_text_that_was_held_back() -> None:
    asked = Asked(stop=("END",))
    asked.say("a", "b", "EN")
    await anext(asked.answer)
    asked.answer.cancel()
    assert await asked.rest() == []
    assert asked.answer.delivered.output_tokens == 2


async def test_a_stop_string_ends_it_wherever_it_is_cut() -> None:
    asked = Asked(stop=("END",))
    asked.say("one E", "N")
    assert text([await anext(asked.answer)]) == "one "
    asked.say("D two")
    assert await asked.rest() == []
    assert (asked.answer.result.finish_reason, asked.answer.result.stop) == ("stop", "END")
    assert asked.cancelled == ["1"]


async def test_what_only_began_like_a_stop_string_is_shown_before_a_call_and_at_the_end() -> None:
    asked = Asked(stop=("END",))
    asked.say("E", CallPart("now"), "EN")
    asked.answer.end("stop")
    parts = [part for delta in await asked.rest() for part in delta.parts]
    assert parts == [TextPart("E", []), CallPart("now"), TextPart("EN", [])]


async def test_log_probabilities_are_held_back_with_their_text() -> None:
    asked = Asked(stop=("xyz",))
    asked.say(TextPart("a", [A]), TextPart("x", [X]))
    delta = await anext(asked.answer)
    assert delta.parts == [TextPart("a", [A])]
    asked.answer.end("length")
    (delta,) = await asked.rest()
    assert delta.parts == [TextPart("x", [X])]


async def test_a_server_that_filters_says_so() -> None:
    asked = Asked()
    asked.answer.end("stop", filtered=True)
    await asked.rest()
    assert asked.answer.result.filtered


async def test_an_answer_that_fails_before_it_was_taken_shows_nothing() -> None:
    asked = Asked()
    asked.say("a")
    asked.answer.fail(EngineGone("gone", started=False))
    with pytest.raises(EngineGone):
        await anext(asked.answer)
    assert not asked.answer.started
