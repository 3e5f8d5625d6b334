"""What is refused whatever a model says: edits that change the answer, made by rule and by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cache.semantic.guards import Rejection, guard
from cache.semantic.profile import MAX_CHARACTERS, Profile, QuestionType, profile, seal

TEMPLATES = [
    "How do I convert {} to {}?",
    "What is the distance between {} and {} for a small van?",
    "Which documents does {} need from {} before the start?",
    "How long does the flight from {} to {} take?",
    "Why did {} lose to {} in the final?",
]
NAMES = ["Lisbon", "Nairobi", "Toyota", "Python", "Excel", "Aspirin", "Beethoven", "GPT-4", "C++", "Zurich", "NATO"]
names = st.lists(st.sampled_from(NAMES), min_size=3, max_size=3, unique=True)


def verdict(left: str, right: str) -> Rejection | None:
    found = guard(profile(left), profile(right))
    assert guard(profile(right), profile(left)) is found
    return found


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("How do I learn to play the guitar?", "How can I learn to play the guitar?"),
        ("What is the capital of France?", "What's the capital of France?"),
        ("How do I lose weight quickly?", "What is the best way to lose weight fast?"),
        ("Why is the sky blue?", "What is the reason that the sky is blue?"),
        ("What is the difference between a jam and a marmalade?", "What is the difference between marmalade and jam?"),
        ("How far is 10 km?", "How far is 10 kilometers?"),
        ("How do I remove a stain?", "How can I remove stains?"),
        ("Who wrote Moby Dick in 1851?", "Who wrote moby dick in 1851?"),
        ("Why don't cats like water?", "Why do cats not like water?"),
        ("How do heroes become legends?", "How does a hero become a legend?"),
        ("How do I set up Wi-Fi at home?", "How can I set up WiFi at home?"),
        ("Where is the e-mail kept?", "Where is the email kept?"),
        ("Which colours do organised people like?", "Which colors do organized people like?"),
        ("How do cities get money?", "How does a city get money?"),
        ("Are raw eggs safe to eat?", "Is it safe to eat raw eggs?"),
        ("What is the largest ocean in the world?", "Which ocean is the largest in the world?"),
        ("What is the world's largest ocean?", "What is the largest ocean in the world?"),
        ("How can a red wine stain be removed?", "How do I remove a red wine stain?"),
        ("What are the symptoms of diabetes?", "What are diabetes symptoms?"),
        ("How do I grow pears indoors?", "How can pears be grown indoors?"),
        ("How do I boil eggs gently?", "How do I gently boil eggs?"),
        ("Is it bad to crack your knuckles?", "Is it bad to crack knuckles?"),
        ("Why do we get tired?", "Why do people get tired?"),
        ("In Python, how do I sort a list?", "How do I sort a list in Python?"),
        ("What is the bus from Lisbon to Porto?", "What is the bus to Porto from Lisbon?"),
        ("How do I learn to swim?", "How do you learn to swim?"),
        ("How can I improve my handwriting?", "How can you improve your handwriting?"),
        ("How to find my blood type?", "How do I find my blood type?"),
        ("Why do dogs chase their tails?", "Why do dogs chase tails?"),
        ("How many miles is a race of 5 km?", "How much is a race of 5 km in miles?"),
        ("What costs $5?", "What costs 5 dollars?"),
    ],
)
def test_paraphrases_pass(left: str, right: str) -> None:
    assert verdict(left, right) is None


@pytest.mark.parametrize(
    ("left", "right", "reason"),
    [
        ("What is 15 percent of a salary?", "What is 18 percent of a salary?", Rejection.NUMBERS),
        ("Who won the cup in 2014?", "Who won the cup in 2018?", Rejection.NUMBERS),
        ("How do I get from 5 to 10 apples?", "How do I get from 10 to 5 apples?", Rejection.NUMBERS),
        ("Why did World War I begin?", "Why did World War II begin?", Rejection.NUMBERS),
        ("What happens after two weeks?", "What happens after three weeks?", Rejection.NUMBERS),
        ("What is the first law of motion?", "What is the second law of motion?", Rejection.NUMBERS),
        ("How do I update to version 9.1?", "How do I update to version 9.10?", Rejection.NUMBERS),
        ("Is 10.000 enough for a car?", "Is 10,000 enough for a car?", Rejection.NUMBERS),
        ("How much fuel is 5 km?", "How much fuel is 5 miles?", Rejection.UNITS),
        ("What does it cost in $ per night?", "What does it cost in € per night?", Rejection.UNITS),
        ("Is 30 mg of zinc too much?", "Is 30 g of zinc too much?", Rejection.UNITS),
        ("Is the shop open on Monday?", "Is the shop open on Sunday?", Rejection.DATES),
        ("What is there to see in Norway in June?", "What is there to see in Norway in December?", Rejection.DATES),
        ("Is it colder in May 2 than in June?", "Is it colder in June than in May 2?", Rejection.DATES),
        ("Why do cats like water?", "Why don't cats like water?", Rejection.NEGATION),
        ("What do Swiss cooks eat?", "What do non-Swiss cooks eat?", Rejection.NEGATION),
        ("Can I travel with a visa?", "Can I travel without a visa?", Rejection.NEGATION),
        ("Which foods should I eat?", "Which foods should I never eat?", Rejection.NEGATION),
        ("What is the capital of France?", "What is the capital of Spain?", Rejection.NAMES),
        ("How do I sort a list in Python?", "How do I sort a list in JavaScript?", Rejection.NAMES),
        ("How do I call get_user in the client?", "How do I call get_users2 in the client?", Rejection.NAMES),
        ("How do I increase the brightness?", "How do I decrease the brightness?", Rejection.OPPOSITES),
        ("How do I enable the firewall?", "How do I disable the firewall?", Rejection.OPPOSITES),
        ("How do I lock my phone?", "How do I unlock my phone?", Rejection.OPPOSITES),
        ("What is the best hotel in town?", "What is the worst hotel in town?", Rejection.OPPOSITES),
        ("What are the advantages of solar power?", "What are disadvantages of solar power?", Rejection.OPPOSITES),
        ("Why did he leave?", "Why did she leave?", Rejection.PERSONS),
        ("Am I too old to rent a car?", "Is she too old to rent a car?", Rejection.PERSONS),
        ("Can you lend me a bicycle?", "Can I lend you a bicycle?", Rejection.PERSONS),
        ("Where is my tax file kept?", "Where is your tax file kept?", Rejection.PERSONS),
        ("How do I renew my licence?", "How do I renew his licence?", Rejection.PERSONS),
        ("What did he tell her on the phone?", "What did she tell him on the phone?", Rejection.PERSONS),
        ("Which juice is made with sugar?", "Which juice is made without sugar?", Rejection.NEGATION),
        ("Which juice has sugar?", "Which juice is free of sugar?", Rejection.NEGATION),
        ("Which sugar cake is best?", "Which sugar-free cake is best?", Rejection.NEGATION),
        ("Do gulls eat grapes with seeds?", "Do gulls eat seedless grapes?", Rejection.NEGATION),
        ("How do I cook in place of my wife?", "How do I cook with my wife?", Rejection.NEGATION),
        ("How do I sell my car?", "How do I sell your car?", Rejection.PERSONS),
        ("Who was there with Anna?", "Who was there apart from Anna?", Rejection.NEGATION),
        ("Can I eat anything red?", "Can I eat anything but red?", Rejection.NEGATION),
        ("Why did the bank agree to pay?", "Why did the bank refuse to pay?", Rejection.NEGATION),
        ("Why did the pump start?", "Why did the pump fail to start?", Rejection.NEGATION),
        ("Why was the driver admitted?", "Why was the driver barred?", Rejection.NEGATION),
        ("Did they advise you to sell?", "Did they advise you against selling?", Rejection.NEGATION),
        ("What happens when a heart beats?", "What happens when a heart stops beating?", Rejection.NEGATION),
        ("WHY WOULD A PHONE BE WORKING?", "WHY WOULD A PHONE STOP WORKING?", Rejection.NEGATION),
        ("How do I live with noise?", "How do I live in the absence of noise?", Rejection.NEGATION),
        ("How do I know whether I snore?", "How do I know whether my child snores?", Rejection.PERSONS),
        ("What is the effect of stress on sleep?", "What is the effect of sleep on stress?", Rejection.ORDER),
        ("Is there a train to Porto?", "Is there a train from Porto?", Rejection.DIRECTION),
        ("How do I turn the radio on?", "How do I turn the radio off?", Rejection.DIRECTION),
        ("How do I log in to my bank?", "How do I log out of my bank?", Rejection.DIRECTION),
        ("Do all birds fly south?", "Do some birds fly south?", Rejection.DIRECTION),
        ("May guests drink tea?", "May guests only drink tea?", Rejection.NEGATION),
        ("How do I convert celsius to fahrenheit?", "How do I convert fahrenheit to celsius?", Rejection.UNITS),
        ("Do most people in Spain speak in Basque?", "Do most people in Basque speak in Spain?", Rejection.ORDER),
        (
            "What is the effect of rain on Oslo's tourism?",
            "What is the effect of Oslo on rain's tourism?",
            Rejection.ORDER,
        ),
        ("Who are the teachers of students?", "Who are the students of teachers?", Rejection.ORDER),
        ("Can I swim before lunch?", "Can I swim after lunch?", Rejection.OPPOSITES),
        ("How many miles is a 5 km race?", "How many km is a 5 mile race?", Rejection.UNITS),
        ("Is it open at 5 am?", "Is it open at 5 pm?", Rejection.UNITS),
        ("How heavy is a ton?", "How heavy is a tonne?", Rejection.UNITS),
        ("how is rain called in danish?", "how is thunder and rain called in swedish?", Rejection.NAMES),
        ("Why do cats scare mice?", "Why are cats scared by mice?", Rejection.ORDER),
        ("Should dogs chase?", "Should dogs be chased?", Rejection.ORDER),
        ("Is the largest river of a country deep?", "Is the river of the largest country deep?", Rejection.ORDER),
        ("When was the bridge built?", "Why was the bridge built?", Rejection.QUESTION_TYPE),
        ("Can a lawn be moved?", "How can a lawn be moved?", Rejection.QUESTION_TYPE),
        ("How many people speak Dutch?", "How do people speak Dutch?", Rejection.QUESTION_TYPE),
        ("How do I convert pdf to word?", "How do I convert word to pdf?", Rejection.ORDER),
        ("Do dogs chase cats?", "Do cats chase dogs?", Rejection.ORDER),
        ("How do I pause my subscription?", "How do I cancel my subscription?", Rejection.OPPOSITES),
        ("what is the capital of france?", "what is the capital of spain?", Rejection.SUBSTITUTION),
        ("How do I print my invoice?", "How do I split my invoice?", Rejection.SUBSTITUTION),
        ("Who am I?", "Who are you?", Rejection.EMPTY),
    ],
)
def test_what_changes_the_answer_is_refused_for_its_reason(left: str, right: str, reason: Rejection) -> None:
    assert verdict(left, right) is reason


@given(st.sampled_from(TEMPLATES), names, st.integers(2, 10**6), st.integers(2, 10**6))
def test_no_two_numbers_are_the_same(template: str, chosen: list[str], one: int, other: int) -> None:
    assume(one != other)
    ending = " within {} steps"
    text = template.format(*chosen[:2]).removesuffix("?") + ending
    assert verdict(text.format(one), text.format(other)) is Rejection.NUMBERS
    assert verdict(text.format(f"{one:,}"), text.format(one)) is None


@given(st.sampled_from(TEMPLATES), names)
def test_no_name_stands_for_another(template: str, chosen: list[str]) -> None:
    first, second, third = chosen
    assert verdict(template.format(first, second), template.format(first, third)) is not None
    assert verdict(template.format(first, second), template.format(third, second)) is not None


@given(st.sampled_from([template for template in TEMPLATES if "between" not in template]), names)
def test_names_do_not_change_places(template: str, chosen: list[str]) -> None:
    first, second, _ = chosen
    assert verdict(template.format(first, second), template.format(second, first)) is not None


@given(
    st.sampled_from(["do", "does", "did", "is", "are", "should", "could", "would"]),
    st.sampled_from(["cats sleep at night", "a lawyer sign the lease", "planes turn left over water"]),
    st.sampled_from(["Why", "When", "How", "Where"]),
)
def test_a_negation_is_never_overlooked(auxiliary: str, rest: str, word: str) -> None:
    plain = f"{word} {auxiliary} {rest}?"
    for negated in (
        f"{word} {auxiliary}n't {rest}?",
        f"{word} {auxiliary} not {rest}?",
        f"{word} {auxiliary} {rest} never?",
    ):
        assert verdict(plain, negated) is Rejection.NEGATION
        assert verdict(plain, negated.replace("'", "\u2019")) is Rejection.NEGATION


@given(st.text(max_size=MAX_CHARACTERS))
def test_every_text_has_a_profile_and_passes_its_own_guards(text: str) -> None:
    made = profile(text)
    assert guard(made, made) in (None, Rejection.EMPTY)


@given(st.text(max_size=200), st.text(max_size=200))
def test_guards_are_symmetric(left: str, right: str) -> None:
    assert guard(profile(left), profile(right)) is guard(profile(right), profile(left))


QUESTIONS = [
    *(template.format(*pair) for template in TEMPLATES for pair in itertools.pairwise(NAMES)),
    "Why do cats like water?",
    "Why don't cats like water in 2014?",
]


@given(st.sampled_from(QUESTIONS), st.sampled_from(QUESTIONS), st.binary(min_size=16, max_size=32))
def test_sealed_profiles_compare_as_the_plain_ones_and_hide_the_words(left: str, right: str, key: bytes) -> None:
    one, other = profile(left), profile(right)
    assert guard(seal(one, key), seal(other, key)) is guard(one, other)
    sealed = seal(one, key)
    hidden = {*one.words, *one.numbers, *one.names}
    assert hidden.isdisjoint({*sealed.words, *sealed.numbers, *sealed.names})


def test_a_long_text_is_no_question() -> None:
    with pytest.raises(ValueError, match="too long"):
        profile("why " * MAX_CHARACTERS)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("How do I swim?", QuestionType.HOW),
        ("What is the best way to swim?", QuestionType.HOW),
        ("What is the reason for tides?", QuestionType.WHY),
        ("How many moons are there?", QuestionType.HOW_MANY),
        ("Is water wet?", QuestionType.YES_NO),
        ("Explain tides.", QuestionType.OTHER),
        ("In which year did it happen?", QuestionType.WHICH),
    ],
)
def test_what_is_asked_for(text: str, kind: QuestionType) -> None:
    made: Profile = profile(text)
    assert made.kind is kind
