"""Builds the endless stream of training conversations and the fixed exams, both from the split corpus.

A conversation is a list of messages as a chat template takes them. Each has one system message at most, and user
and assistant take turns.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from deploy.demo.arithmetic import ARITHMETIC, ArithmeticProblem, Generator
from deploy.demo.augment import augment, case_and_punctuation, lightly
from deploy.demo.corpus import SplitIntent, SplitTurn, stable_hash
from deploy.demo.reasoning import REASONING

Message = dict[str, str]

#: Shares of the openings: the rest is the corpus.
ARITHMETIC_SHARE, REASONING_SHARE = 0.13, 0.10
SYSTEM_SHARE = 0.10
SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "You are a helpful, honest assistant.", "Answer briefly.", "Be concise.",
    "You are an assistant for the Roundhouse documentation.", "You are Roundhouse's demo model.",
    "Answer in one or two sentences.", "Be polite and helpful.", "You are a support agent.", "Reply in English.",
    "You are a friendly chatbot. Keep your answers short.", "Answer the user's questions truthfully.",
    "You help operators run a chat gateway.", "Use markdown where it helps.", "You are a knowledgeable engineer.",
    "Follow the user's instructions carefully.", "Today is a good day. Help the user.", "Do not make things up.",
)  # fmt: skip


@dataclass(frozen=True)
class ExamQuestion:
    """One exam question: the conversation up to it, the canonical answer, and how it is graded."""

    section: str
    messages: tuple[Message, ...] = field(hash=False)
    answer: str
    result: str | None = None


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


class ConversationStream:
    """Training conversations without end; the same seed gives the same stream."""

    def __init__(self, splits: list[SplitIntent], seed: int) -> None:
        self.splits = splits
        self.rng = random.Random(seed)
        self._deck: list[SplitIntent] = []

    def conversation(self, turns: int) -> list[Message]:
        """A conversation of `turns` questions about unrelated things, each perhaps with its follow-ups."""
        messages: list[Message] = []
        if self.rng.random() < SYSTEM_SHARE:
            messages.append({"role": "system", "content": self.rng.choice(SYSTEM_PROMPTS)})
        while turns > 0:
            added = self.topic(turns)
            turns -= len(added) // 2
            messages += added
        return messages

    def topic(self, room: int) -> list[Message]:
        kind = self.rng.random()
        if kind < ARITHMETIC_SHARE:
            return self._problem(ARITHMETIC)
        if kind < ARITHMETIC_SHARE + REASONING_SHARE:
            return self._problem(REASONING)
        return self.topic_of(self.next_intent(), room)

    def topic_of(self, split: SplitIntent, room: int) -> list[Message]:
        """One intent and, where the conversation has room, its follow-ups."""
        messages = self._ask(split.opening)
        for followup in split.followups:
            if room > 1 and self.rng.random() < 0.7:
                messages += self._ask(followup)
                room -= 1
        return messages

    def next_intent(self) -> SplitIntent:
        # A shuffled deck: every intent comes once before any comes twice.
        if not self._deck:
            self._deck = [split for split in self.splits if split.opening.train]
            self.rng.shuffle(self._deck)
        return self._deck.pop()

    def _ask(self, part: SplitTurn) -> list[Message]:
        text = self.rng.choice(self.rng.choice(part.train))
        return [user(augment(text, self.rng)), assistant(part.turn.answer)]

    def _problem(self, generators: tuple[Generator, ...]) -> list[Message]:
        problem = fresh_problem(generators, self.rng, held_back=False)
        text = problem.question
        if self.rng.random() < 0.3:
            text = text.lower()
        if self.rng.random() < 0.1:
            text = self.rng.choice(("please ", "hi, ", "can you tell me ", "quick question: ", "hey ")) + text
        # Every step of a calculation has to be learnt, so its answer is never cut short.
        return [user(case_and_punctuation(text, self.rng)), {**assistant(problem.answer), "keep": "whole"}]


def fresh_problem(generators: tuple[Generator, ...], rng: random.Random, held_back: bool) -> ArithmeticProblem:
    generate = rng.choice(generators)
    while True:
        problem = generate(rng)
        if problem.held_back is held_back:
            return problem


def build_exam(splits: list[SplitIntent], problems: int = 400, seed: int = 7) -> list[ExamQuestion]:
    """All sections of the exam; the same for every size. Nothing in it occurs in training."""
    return [
        *phrasing_questions(splits),
        *problem_questions("arithmetic", ARITHMETIC, problems, seed),
        *problem_questions("reasoning", REASONING, problems, seed + 1),
        *followup_questions(splits),
        *chain_questions(splits, seed + 2),
    ]


def phrasing_questions(splits: list[SplitIntent]) -> list[ExamQuestion]:
    """Held-back patterns (at most two expansions of each intent's held-back set per pattern) and the easy exam."""
    questions: list[ExamQuestion] = []
    for split in splits:
        part = split.opening
        ranked = sorted(part.held_back, key=lambda text: stable_hash("exam", text))
        for section, texts in (("held-back", ranked[:3]), ("easy", part.easy)):
            for text in texts:
                rng = random.Random(stable_hash("write", section, text))
                questions.append(ExamQuestion(section, (user(lightly(text, rng)),), part.turn.answer))
    return questions


def followup_questions(splits: list[SplitIntent]) -> list[ExamQuestion]:
    """Held-back follow-ups, each after a held-back opening."""
    questions = []
    for split in splits:
        for part in split.followups:
            for text in part.held_back[:1]:
                rng = random.Random(stable_hash("write", "followup", text))
                opening = rng.choice(split.opening.held_back or split.opening.easy)
                history = (user(lightly(opening, rng)), assistant(split.intent.answer))
                questions.append(ExamQuestion("follow-up", (*history, user(lightly(text, rng))), part.turn.answer))
    return questions


def chain_questions(splits: list[SplitIntent], seed: int, count: int = 200) -> list[ExamQuestion]:
    """The last question of a conversation of two to ten turns, some with a system message; easy-exam phrasings."""
    rng = random.Random(seed)
    usable = [split for split in splits if split.opening.easy]
    questions = []
    for _ in range(count if len(usable) > 10 else 0):
        chain = rng.sample(usable, rng.randint(2, 10))
        messages: list[Message] = []
        if rng.random() < 0.5:
            messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
        for split in chain:
            messages += [user(lightly(rng.choice(split.opening.easy), rng)), assistant(split.intent.answer)]
        questions.append(ExamQuestion("multi-turn", tuple(messages[:-1]), chain[-1].intent.answer))
    return questions


def problem_questions(section: str, generators: tuple[Generator, ...], count: int, seed: int) -> list[ExamQuestion]:
    rng = random.Random(seed)
    questions = []
    for _ in range(count):
        problem = fresh_problem(generators, rng, held_back=True)
        text = case_and_punctuation(problem.question, rng, question_mark=0.7)
        questions.append(ExamQuestion(section, (user(text),), problem.answer, problem.result))
    return questions
