"""Generated questions with one checkable number: sums, differences, products, quotients, percentages, sequences.

Operands are divided by a hash: one pair in eight is never trained on and makes up the exam.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from deploy.demo.corpus import SPLIT_SEED, stable_hash

HELD_BACK_SHARE = 8


@dataclass(frozen=True)
class ArithmeticProblem:
    """A generated question. `result` is what a correct answer must end with; `key` identifies the operands."""

    kind: str
    key: tuple[object, ...]
    question: str
    answer: str
    result: str

    @property
    def held_back(self) -> bool:
        return stable_hash(SPLIT_SEED, self.kind, *self.key) % HELD_BACK_SHARE == 0


Generator = Callable[[random.Random], ArithmeticProblem]

_ADD = (
    "what is {a} plus {b}", "what is {a} + {b}", "{a} + {b}", "{a} plus {b}", "add {a} and {b}", "{a}+{b}", "{a}+{b}=",
    "how much is {a} plus {b}", "calculate {a} + {b}", "compute {a} + {b}", "what do {a} and {b} make",
    "sum of {a} and {b}", "what is the sum of {a} and {b}", "what does {a} + {b} equal", "{a} and {b} together",
)  # fmt: skip
_SUBTRACT = (
    "what is {a} minus {b}", "what is {a} - {b}", "{a} - {b}", "{a} minus {b}", "subtract {b} from {a}", "{a}-{b}",
    "how much is {a} minus {b}", "calculate {a} - {b}", "compute {a} - {b}", "take {b} away from {a}", "{a}-{b}=",
    "what is left when i take {b} from {a}", "what does {a} - {b} equal", "difference between {a} and {b}",
)  # fmt: skip
_MULTIPLY = (
    "what is {a} times {b}", "what is {a} * {b}", "{a} * {b}", "{a} times {b}", "multiply {a} by {b}", "{a} x {b}",
    "how much is {a} times {b}", "calculate {a} * {b}", "compute {a} x {b}", "product of {a} and {b}", "{a}*{b}",
    "what is the product of {a} and {b}", "what does {a} * {b} equal", "{a} multiplied by {b}",
)  # fmt: skip
_DIVIDE = (
    "what is {a} divided by {b}", "what is {a} / {b}", "{a} / {b}", "{a} divided by {b}", "divide {a} by {b}",
    "how much is {a} divided by {b}", "calculate {a} / {b}", "compute {a} / {b}", "{a}/{b}", "{a} over {b}",
    "how many times does {b} go into {a}", "what does {a} / {b} equal",
)  # fmt: skip
_LARGER = (
    "which is larger, {a} or {b}", "what is bigger, {a} or {b}", "is {a} or {b} greater", "larger of {a} and {b}",
    "which number is bigger, {a} or {b}", "which is more, {a} or {b}", "max of {a} and {b}",
)  # fmt: skip
_SMALLER = (
    "which is smaller, {a} or {b}", "what is less, {a} or {b}", "is {a} or {b} smaller", "smaller of {a} and {b}",
    "which number is smaller, {a} or {b}", "which is less, {a} or {b}", "min of {a} and {b}",
)  # fmt: skip
_PERCENT = (
    "what is {p}% of {a}", "{p}% of {a}", "{p} percent of {a}", "what is {p} percent of {a}", "calculate {p}% of {a}",
    "how much is {p}% of {a}", "compute {p} percent of {a}",
)  # fmt: skip
_SEQUENCE = (
    "what comes next: {s}", "what is the next number: {s}", "next number in {s}", "continue the sequence {s}",
    "which number follows {s}", "{s}, what comes next", "continue {s}", "complete the series {s}",
)  # fmt: skip


def addition(rng: random.Random) -> ArithmeticProblem:
    a, b = rng.randint(0, 99), rng.choice((rng.randint(0, 9), rng.randint(0, 99)))
    if a > 9 and b > 9:
        tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
        steps = f"{a // 10 * 10} + {b // 10 * 10} = {tens} and {a % 10} + {b % 10} = {ones}, so {a} + {b} = {a + b}."
    else:
        steps = f"{a} + {b} = {a + b}."
    return ArithmeticProblem("addition", (a, b), rng.choice(_ADD).format(a=a, b=b), steps, str(a + b))


def subtraction(rng: random.Random) -> ArithmeticProblem:
    a = rng.randint(0, 99)
    b = rng.randint(0, min(a, rng.choice((9, 99))))
    if b > 9 and b % 10:
        tens = a - b // 10 * 10
        steps = f"{a} - {b // 10 * 10} = {tens} and {tens} - {b % 10} = {a - b}, so {a} - {b} = {a - b}."
    else:
        steps = f"{a} - {b} = {a - b}."
    return ArithmeticProblem("subtraction", (a, b), rng.choice(_SUBTRACT).format(a=a, b=b), steps, str(a - b))


def multiplication(rng: random.Random) -> ArithmeticProblem:
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    if rng.random() < 0.35:
        a, b = rng.randint(13, 49), rng.randint(2, 9)
        tens, ones = a // 10 * 10, a % 10
        steps = f"{tens} x {b} = {tens * b} and {ones} x {b} = {ones * b}, so {a} x {b} = {a * b}."
    else:
        steps = f"{a} x {b} = {a * b}."
    return ArithmeticProblem("multiplication", (a, b), rng.choice(_MULTIPLY).format(a=a, b=b), steps, str(a * b))


def division(rng: random.Random) -> ArithmeticProblem:
    b, quotient = rng.randint(1, 12), rng.randint(0, 12)
    a = b * quotient
    steps = f"{a} / {b} = {quotient}, because {quotient} x {b} = {a}."
    return ArithmeticProblem("division", (a, b), rng.choice(_DIVIDE).format(a=a, b=b), steps, str(quotient))


def comparison(rng: random.Random) -> ArithmeticProblem:
    a, b = rng.sample(range(0, rng.choice((20, 100, 1000))), 2)
    if rng.random() < 0.5:
        answer, templates = f"{max(a, b)} is larger than {min(a, b)}.", _LARGER
    else:
        answer, templates = f"{min(a, b)} is smaller than {max(a, b)}.", _SMALLER
    return ArithmeticProblem("comparison", (a, b), rng.choice(templates).format(a=a, b=b), answer, answer.split()[0])


def percentage(rng: random.Random) -> ArithmeticProblem:
    percent, a = rng.choice((10, 20, 25, 30, 40, 50, 75)), rng.randint(1, 20) * 10
    if percent % 25 == 0:
        a = rng.randint(1, 25) * 4
        part = a // 4 if percent != 50 else a // 2
        share = "a quarter" if percent != 50 else "half"
        tail = f", so 75% is {part * 3}." if percent == 75 else "."
        steps = f"{percent if percent != 75 else 25}% is {share}, and {share} of {a} is {part}{tail}"
        result = part * 3 if percent == 75 else part
    else:
        result = a // 10 * (percent // 10)
        steps = f"10% of {a} is {a // 10}" + ("." if percent == 10 else f", so {percent}% of {a} is {result}.")
    return ArithmeticProblem(
        "percentage", (percent, a), rng.choice(_PERCENT).format(p=percent, a=a), steps, str(result)
    )


def sequence(rng: random.Random) -> ArithmeticProblem:
    start, step, length = rng.randint(1, 30), rng.randint(1, 10), rng.randint(3, 5)
    kind = rng.random()
    if kind < 0.6:
        terms, why = [start + step * i for i in range(length + 1)], f"each step adds {step}"
    elif kind < 0.85:
        start += step * length
        terms, why = [start - step * i for i in range(length + 1)], f"each step subtracts {step}"
    else:
        start = rng.randint(1, 6)
        terms, why = [start * 2**i for i in range(4)], "each number is double the one before"
    text = rng.choice((", ", " ", ", ")).join(map(str, terms[:-1]))
    question = rng.choice(_SEQUENCE).format(s=text)
    answer = f"The next number is {terms[-1]}, because {why}."
    return ArithmeticProblem("sequence", tuple(terms), question, answer, str(terms[-1]))


ARITHMETIC: tuple[Generator, ...] = (
    addition, addition, subtraction, subtraction, multiplication, multiplication, division, comparison, percentage,
    sequence,
)  # fmt: skip
