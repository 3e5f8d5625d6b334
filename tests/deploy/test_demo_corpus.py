"""The demo corpus keeps its rules, and nothing of the exam is ever trained on."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from deploy.demo.arithmetic import ARITHMETIC
from deploy.demo.augment import augment
from deploy.demo.conversations import ConversationStream, build_exam, fresh_problem
from deploy.demo.corpus import (
    CorpusError,
    Intent,
    SplitIntent,
    all_questions,
    check,
    expand,
    load_file,
    load_intents,
    normalise,
    split_corpus,
)
from deploy.demo.evaluate import is_correct
from deploy.demo.reasoning import REASONING
from gateway.cli.root import main
from gateway.config.settings import Settings


@pytest.fixture(scope="module")
def intents() -> list[Intent]:
    return load_intents()


@pytest.fixture(scope="module")
def splits(intents: list[Intent]) -> list[SplitIntent]:
    return split_corpus(intents)


def test_there_are_at_least_500_intents(intents: list[Intent]) -> None:
    assert len({intent.answer for intent in intents}) >= 500


def test_no_two_intents_share_an_id_or_a_question(intents: list[Intent]) -> None:
    assert check(intents) == []


def answers(intents: list[Intent]) -> Iterator[tuple[str, str]]:
    """Every answer, with the id of its intent."""
    for intent in intents:
        for turn in (intent, *intent.followups):
            yield intent.id, turn.answer


def test_answers_name_only_settings_that_exist(intents: list[Intent]) -> None:
    """What the demo says of the configuration is what `docs/configuration.md` says, which is made from the code."""
    tables = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    sections = {name: type_ for name, type_ in tables.items() if isinstance(type_, type) and issubclass(type_, Struct)}
    named = re.compile(rf"(?<!\.)\b({'|'.join(sections)})\.([a-z_]+)\b")
    found = [(id, *match) for id, answer in answers(intents) for match in named.findall(answer)]
    fields = {name: {field.name for field in msgspec.structs.fields(type_)} for name, type_ in sections.items()}
    assert len(found) > 30
    assert [(id, section, name) for id, section, name in found if name not in fields[section]] == []


def test_answers_name_only_commands_that_exist(intents: list[Intent]) -> None:
    named = re.compile(r"`roundhouse ([a-z]+)")
    found = [(id, command) for id, answer in answers(intents) for command in named.findall(answer)]
    assert len(found) > 10
    assert [(id, command) for id, command in found if command not in main.commands] == []


def test_answers_promise_nothing(intents: list[Intent]) -> None:
    """A promise is false from the day on which it is kept."""
    assert [id for id, answer in answers(intents) if re.search(r"\bplanned\b|\bnot yet\b|\bno .* yet\b", answer)] == []


def test_every_intent_has_many_phrasings(intents: list[Intent]) -> None:
    assert [intent.id for intent in intents if len(set(all_questions(intent))) < 20] == []


def test_every_intent_has_training_and_held_back_phrasings(splits: list[SplitIntent]) -> None:
    assert [split.intent.id for split in splits if not (split.opening.train and split.opening.held_back)] == []


def test_no_exam_phrasing_is_a_training_phrasing(splits: list[SplitIntent]) -> None:
    trained = {normalise(text) for split in splits for pool in split.opening.train for text in pool}
    exam = {normalise(text) for split in splits for text in (*split.opening.held_back, *split.opening.easy)}
    assert exam and not trained & exam


def test_held_back_patterns_are_whole(splits: list[SplitIntent]) -> None:
    for split in splits:
        held = set(split.opening.held_back)
        whole = [pattern for pattern in split.intent.ask if set(expand(pattern)) <= held]
        assert len(whole) >= 2, split.intent.id


def test_the_training_stream_asks_no_exam_question(splits: list[SplitIntent]) -> None:
    exam = {
        question.messages[0]["content"] for question in build_exam(splits, problems=50) if len(question.messages) == 1
    }
    held = {normalise(text) for split in splits for text in split.opening.held_back}
    stream = ConversationStream(splits, seed=3)
    said = [stream.conversation(1)[-2]["content"] for _ in range(2000)]
    # Augmentation may rarely turn one phrasing into another by dropping words; as written, none may coincide.
    assert sum(text in exam or normalise(text) in held for text in said) <= 20


@pytest.mark.parametrize("generators", [ARITHMETIC, REASONING])
def test_generated_answers_are_right_by_their_own_grading(generators: tuple[object, ...]) -> None:
    rng = random.Random(1)
    for question in build_exam([], problems=300):
        assert is_correct(question, question.answer), question
    assert not fresh_problem(ARITHMETIC, rng, held_back=False).held_back
    assert generators


def test_a_wrong_number_is_not_correct() -> None:
    question = next(item for item in build_exam([], problems=5) if item.section == "arithmetic")
    assert not is_correct(question, "The answer is 123456.")


def test_a_stream_depends_on_its_seed_only(splits: list[SplitIntent]) -> None:
    one, two = (ConversationStream(splits, seed=9) for _ in range(2))
    assert [one.conversation(3) for _ in range(20)] == [two.conversation(3) for _ in range(20)]


def test_conversations_alternate_between_user_and_assistant(splits: list[SplitIntent]) -> None:
    stream = ConversationStream(splits, seed=4)
    for turns in range(1, 13):
        roles = [message["role"] for message in stream.conversation(turns)]
        spoken = roles[1:] if roles[0] == "system" else roles
        assert spoken == ["user", "assistant"] * (len(spoken) // 2)
        assert len(spoken) // 2 >= turns


def test_augmentation_keeps_a_question_a_question() -> None:
    rng = random.Random(2)
    variants = {augment("how do i change the port", rng) for _ in range(300)}
    assert len(variants) > 100 and all(variant.strip() for variant in variants)


@pytest.mark.parametrize(
    ("pattern", "strings"),
    [
        ("plain", ["plain"]),
        ("[a|b] c", ["a c", "b c"]),
        ("a[ b|]", ["a b", "a"]),
        ("[x|x]", ["x"]),
        ("[a|b] [c|d]", ["a c", "a d", "b c", "b d"]),
    ],
)
def test_patterns_expand(pattern: str, strings: list[str]) -> None:
    assert expand(pattern) == strings


@pytest.mark.parametrize("pattern", ["a ]b", "a [b", "a | b"])
def test_a_malformed_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(CorpusError):
        expand(pattern)


@pytest.mark.parametrize(
    "text", ["[[intent]]\nid = 'x'\nask = []\nanswer = 'y'\n", "[[intent]\n", "[[intent]]\nid='x'"]
)
def test_a_malformed_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CorpusError, match=r"broken\.toml"):
        load_file(path)
