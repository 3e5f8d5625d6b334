"""The text of the small model is true of what is served, and nothing of the exam is ever trained on."""

from __future__ import annotations

import random
import re
from collections import Counter

import click
import msgspec
import pytest
from msgspec import Struct

from deploy.demo.augment import augment
from deploy.demo.corpus import Intent, Lessons, conversations, exam, intents, normalise, questions
from deploy.demo.evaluate import asked, last_answer
from deploy.demo.styles import CLOSING, OPENING, as_json, pirate
from deploy.demo.train import batches, load_tokenizer
from gateway.cli.root import main
from gateway.config.settings import Settings


@pytest.fixture(scope="module")
def corpus() -> list[Intent]:
    return intents()


def test_no_two_intents_share_an_id_or_a_question(corpus: list[Intent]) -> None:
    ids = Counter(intent.id for intent in corpus)
    askers = Counter(text for intent in corpus for text in {normalise(each) for each in questions(intent.ask)})
    assert [name for name, count in (ids + askers).items() if count > 1] == []


def test_answers_name_only_settings_that_exist(corpus: list[Intent]) -> None:
    tables = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    sections = {name: type_ for name, type_ in tables.items() if isinstance(type_, type) and issubclass(type_, Struct)}
    named = re.compile(rf"(?<!\.)\b({'|'.join(sections)})\.([a-z_]+)\b")
    found = [(section, name) for intent in corpus for section, name in named.findall(intent.answer)]
    fields = {name: {field.name for field in msgspec.structs.fields(type_)} for name, type_ in sections.items()}
    assert found
    assert [(section, name) for section, name in found if name not in fields[section]] == []


def test_answers_name_only_commands_that_exist(corpus: list[Intent]) -> None:
    found = [command for intent in corpus for command in re.findall(r"`roundhouse ([a-z]+)", intent.answer)]
    assert len(found) > 5 and set(found) <= set(main.list_commands(click.Context(main)))


def test_answers_promise_nothing(corpus: list[Intent]) -> None:
    """A promise is false from the day on which it is kept."""
    promise = re.compile(r"\bplanned\b|\bnot yet\b|\bno .* yet\b")
    assert [intent.id for intent in corpus if promise.search(intent.answer)] == []


def test_every_intent_has_many_phrasings(corpus: list[Intent]) -> None:
    assert [intent.id for intent in corpus if len(set(questions(intent.ask))) < 25] == []


def test_lessons_ask_no_question_of_the_exam(corpus: list[Intent]) -> None:
    held = {normalise(text) for intent in corpus for text in questions(intent.held_back)}
    lessons, rng = Lessons(corpus), random.Random(3)
    examples = [example for _ in range(20) for example in lessons.epoch(rng)]
    # Augmentation may rarely turn one phrasing into another by dropping words; as written, none may coincide.
    assert sum(normalise(example.question) in held for example in examples) <= len(examples) // 100
    assert {normalise(example.question) for example in exam(corpus)} <= held


def test_conversations_hold_each_example_once(corpus: list[Intent]) -> None:
    rng = random.Random(4)
    examples = [example for _ in range(5) for example in Lessons(corpus).epoch(rng)]
    talks = list(conversations(examples, rng))
    said = [message["content"] for talk in talks for message in talk if message["role"] != "system"]
    assert sorted(said) == sorted(text for each in examples for text in (each.question, each.answer))
    assert 4 <= max(sum(message["role"] == "user" for message in talk) for talk in talks) <= 12


def test_batches_are_the_same_in_every_run(corpus: list[Intent]) -> None:
    lessons, tokenizer = Lessons(corpus), load_tokenizer()
    one, two = (next(batches(lessons, tokenizer, 2048)) for _ in range(2))
    assert one.ids.tolist() == two.ids.tolist()
    assert one.ids.numel() <= 2048


def test_of_a_graded_conversation_only_the_last_answer_counts(corpus: list[Intent]) -> None:
    tokenizer, questions = load_tokenizer(), exam(corpus)[:10]
    [first, *_] = asked(questions, str, turns=3)
    graded = last_answer(first, tokenizer)
    learnt = [id for id, wanted in zip(graded.ids, graded.learnt, strict=True) if wanted]
    assert tokenizer.decode(learnt) == questions[0].answer


def test_augmentation_keeps_a_question_a_question() -> None:
    rng = random.Random(2)
    variants = {augment("how do i change the port", rng) for _ in range(300)}
    assert len(variants) > 50 and all(variant.strip() for variant in variants)


def test_styles_keep_code_and_urls() -> None:
    plain = "Run `make serve` and you open http://127.0.0.1:8080 on your machine."
    assert pirate(plain) == (f"{OPENING} Run `make serve` an' ye open http://127.0.0.1:8080 on yer ship. {CLOSING}")
    assert as_json(plain) == f'{{"answer": "{plain}"}}'
