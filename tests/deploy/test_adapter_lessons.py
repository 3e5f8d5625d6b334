"""What the adapters are taught: examples that keep to their own rules, and questions that are really held back."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.adapters.batches import batches, grouped
from deploy.adapters.table import HERE, adapters
from deploy.adapters.task import AdapterTask, Example, Lesson, conversations, phrasings, tokenise
from deploy.adapters.tasks import extract, pirate, socrates
from deploy.adapters.tasks.everyday import everyday_questions
from deploy.adapters.tasks.handbook import facts
from deploy.adapters.tasks.unrelated import unrelated
from engine.text.processor import TextProcessor

KNOWN = {name: adapter.task for name, adapter in adapters().items()}
EXTRACTED = {"what": "lunch", "who": ["Ann"], "when": None, "where": "Rome"}


@pytest.fixture(scope="module")
def text() -> TextProcessor:
    return TextProcessor.from_path(HERE.parent / "demo" / "model")


def asked(examples: list[Example]) -> set[str]:
    return {example.question.lower().rstrip("?!.") for example in examples}


@pytest.mark.parametrize("task", KNOWN.values(), ids=KNOWN)
def test_no_question_that_is_graded_is_trained_on(task: AdapterTask) -> None:
    rng = random.Random(0)
    trained = set().union(*(asked(task.examples(rng)) for _ in range(4)))
    assert not trained & asked(task.held_out())
    assert not (task.keeps and trained & asked(unrelated()))


@pytest.mark.parametrize("task", KNOWN.values(), ids=KNOWN)
def test_half_a_hundred_questions_are_graded(task: AdapterTask) -> None:
    assert len(asked(task.held_out())) >= 50


@pytest.mark.parametrize("task", [extract.TASK, pirate.TASK, socrates.TASK], ids=["extract", "pirate", "socrates"])
def test_all_answers_that_are_taught_have_the_form(task: AdapterTask) -> None:
    assert [each for each in task.examples(random.Random(0)) if not task.in_format(each.answer)] == []


def test_the_answers_of_graded_messages_are_right() -> None:
    task = extract.TASK
    assert [each for each in task.held_out() if not task.right(each, each.answer)] == []


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "{}",
        json.dumps(EXTRACTED) + ".",
        json.dumps(EXTRACTED | {"who": "Ann"}),
        json.dumps(EXTRACTED | {"who": [None]}),
        json.dumps(EXTRACTED | {"when": 3}),
        json.dumps(EXTRACTED | {"more": None}),
        json.dumps(dict(reversed(EXTRACTED.items()))),
        json.dumps([EXTRACTED]),
    ],
)
def test_other_json_is_not_what_the_extractor_writes(answer: str) -> None:
    assert extract.in_format(json.dumps(EXTRACTED))
    assert not extract.in_format(answer)


@pytest.mark.parametrize(
    "answer", ["", "Paris.", "Why? Because.", "It is Paris. It is in France. Why?", "Who? What? When? Where?"]
)
def test_an_answer_is_not_a_question_in_return(answer: str) -> None:
    assert not socrates.in_format(answer)


def test_facts_have_patterns_of_their_own() -> None:
    everything = [question for fact in facts() for pattern in fact.ask for question in phrasings(pattern)]
    assert len(everything) > 1000
    assert all("[" not in question and "|" not in question for question in everything)
    assert len({fact.answer for fact in facts()}) == len(facts())


@given(st.lists(st.lists(st.sampled_from(["", "a", "b c"]), min_size=1, max_size=3, unique=True), max_size=3))
def test_a_pattern_stands_for_every_choice(groups: list[list[str]]) -> None:
    found = phrasings("x " + " y ".join(f"[{'|'.join(group)}]" for group in groups))
    assert len(set(found)) == len(found) <= max(1, math.prod(map(len, groups)))
    assert all(question == " ".join(question.split()) for question in found)


@given(st.integers(0, 1000))
def test_a_conversation_holds_each_example_once(seed: int) -> None:
    examples = [Example(str(number), f"answer {number}") for number in range(40)]
    talks = conversations(examples, random.Random(seed))
    said = [message["content"] for talk in talks for message in talk if message["role"] != "system"]
    assert sorted(said) == sorted(text for each in examples for text in (each.question, each.answer))
    assert max(sum(message["role"] == "user" for message in talk) for talk in talks) <= 3


def test_answers_and_their_ends_are_learnt_and_nothing_else(text: TextProcessor) -> None:
    messages = [
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": "A parrot."},
        {"role": "user", "content": "Really?"},
        {"role": "assistant", "content": "Arr!"},
    ]
    lesson = tokenise(messages, text)
    learnt = [id for id, wanted in zip(lesson.ids, lesson.learnt, strict=True) if wanted]
    assert text.decode(learnt) == "A parrot.Arr!"
    assert sum(id in text.eos_token_ids for id in learnt) == 2
    begin = text.encode_chat(messages[:1])
    assert lesson.ids[: len(begin)] == begin


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(40, 200))
def test_groups_keep_to_their_size_and_lose_nothing(lengths: list[int], tokens: int) -> None:
    lessons = [Lesson([0] * length, [True] * length) for length in sorted(lengths)]
    groups = grouped(lessons, tokens)
    assert [lesson for group in groups for lesson in group] == lessons
    assert all(len(group) == 1 or len(group) * len(group[-1].ids) <= tokens for group in groups)


def test_the_same_seed_gives_the_same_batches(text: TextProcessor) -> None:
    one, two = (next(batches(KNOWN["pirate"], text, seed=3)) for _ in range(2))
    assert one.ids.tolist() == two.ids.tolist()
    assert not one.learnt[one.ids == 0].any() or 0 in text.eos_token_ids


def test_everyday_answers_are_short() -> None:
    assert max(len(each.pirate) for each in everyday_questions()) < 160
