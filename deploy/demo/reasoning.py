"""Generated short reasoning: word problems in two or three steps, orderings, days, simple logic.

The answers show their steps, because a small model reaches the end more often when it writes the way down.
"""

from __future__ import annotations

import random

from deploy.demo.arithmetic import ArithmeticProblem, Generator

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jonas", "Kim", "Max", "Nora", "Tom")
THINGS = ("apples", "books", "coins", "pens", "cards", "cups", "keys", "eggs", "stamps", "tickets", "balls", "plates")
BOXES = ("boxes", "bags", "shelves", "baskets", "drawers", "crates")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_RELATIONS = (
    ("taller", "tallest", "shortest"), ("older", "oldest", "youngest"), ("faster", "fastest", "slowest"),
    ("richer", "richest", "poorest"), ("stronger", "strongest", "weakest"),
)  # fmt: skip


def gain_and_loss(rng: random.Random) -> ArithmeticProblem:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    a, b = rng.randint(2, 20), rng.randint(1, 20)
    c = rng.randint(1, a + b - 1)
    gain = rng.choice(("buys", "gets", "finds", "is given"))
    loss = rng.choice(("gives away", "loses", "sells", "uses"))
    question = rng.choice((
        "{n} has {a} {t}, {g} {b} more and {l} {c}. how many {t} does {n} have",
        "{n} has {a} {t} and {g} {b} more, then {l} {c}. how many are left",
        "if {n} has {a} {t}, {g} {b} and then {l} {c}, how many {t} does {n} have now",
        "{n} starts with {a} {t}, {g} {b}, {l} {c}. how many {t} remain",
    )).format(n=name, a=a, b=b, c=c, t=thing, g=gain, l=loss)  # fmt: skip
    answer = f"{a} + {b} = {a + b}, and {a + b} - {c} = {a + b - c}. {name} has {a + b - c} {thing}."
    return ArithmeticProblem("gain-and-loss", (a, b, c), question, answer, str(a + b - c))


def groups(rng: random.Random) -> ArithmeticProblem:
    box, thing, a, b = rng.choice(BOXES), rng.choice(THINGS), rng.randint(2, 9), rng.randint(2, 9)
    c = rng.randint(1, 9)
    more = rng.random() < 0.5
    total = a * b + c if more else a * b - min(c, a * b - 1)
    c = abs(total - a * b)
    question = rng.choice((
        "there are {a} {x} with {b} {t} each, and {c} {t} {w}. how many {t} are there",
        "{a} {x} hold {b} {t} each. {c} {t} {w}. how many {t} are there now",
        "i have {a} {x} of {b} {t}, then {c} {t} {w}. how many {t} do i have",
    )).format(a=a, b=b, c=c, x=box, t=thing, w="are added" if more else "are taken away")  # fmt: skip
    sign = "+" if more else "-"
    answer = f"{a} x {b} = {a * b}, and {a * b} {sign} {c} = {total}. There are {total} {thing}."
    return ArithmeticProblem("groups", (a, b, c, more), question, answer, str(total))


def sharing(rng: random.Random) -> ArithmeticProblem:
    thing, people, each = rng.choice(THINGS), rng.randint(2, 9), rng.randint(2, 9)
    first = rng.randint(1, people * each - 1)
    second = people * each - first
    question = rng.choice((
        "{p} friends share {a} and {b} {t} equally. how many does each get",
        "{a} {t} and {b} {t} are divided among {p} people. how many {t} does each person get",
        "we put {a} and {b} {t} together and split them between {p} people. how many each",
    )).format(p=people, a=first, b=second, t=thing)  # fmt: skip
    total = first + second
    answer = f"{first} + {second} = {total}, and {total} / {people} = {each}. Each gets {each} {thing}."
    return ArithmeticProblem("sharing", (first, second, people), question, answer, str(each))


def ordering(rng: random.Random) -> ArithmeticProblem:
    a, b, c = rng.sample(NAMES, 3)
    relation, most, least = rng.choice(_RELATIONS)
    wants_most = rng.random() < 0.5
    facts = [f"{a} is {relation} than {b}", f"{b} is {relation} than {c}"]
    if rng.random() < 0.5:
        facts.reverse()
    wanted = most if wants_most else least
    question = rng.choice((
        "{f} and {g}. who is the {w}", "{f}, and {g}. who is {w}", "if {f} and {g}, who is the {w}",
    )).format(f=facts[0], g=facts[1], w=wanted)  # fmt: skip
    who = a if wants_most else c
    answer = f"{a} is {relation} than {b}, and {b} is {relation} than {c}, so {who} is the {wanted}."
    return ArithmeticProblem("ordering", (a, b, c, wanted), question, answer, f"{who} is the {wanted}")


def weekday(rng: random.Random) -> ArithmeticProblem:
    start, distance, forward = rng.randrange(7), rng.randint(1, 6), rng.random() < 0.65
    end = (start + distance if forward else start - distance) % 7
    unit = "day" if distance == 1 else "days"
    when = "after" if forward else "before"
    question = rng.choice((
        "which day is {n} {u} {w} {d}", "what day comes {n} {u} {w} {d}", "what day is it {n} {u} {w} {d}",
        "if we count {n} {u} {w} {d}, which day is it",
    )).format(n=distance, u=unit, w=when, d=DAYS[start].lower())  # fmt: skip
    answer = f"{distance} {unit} {when} {DAYS[start]} is {DAYS[end]}."
    return ArithmeticProblem("weekday", (start, distance, forward), question, answer, DAYS[end])


def double_and_half(rng: random.Random) -> ArithmeticProblem:
    a, b = rng.randint(1, 20), rng.randint(1, 15)
    if rng.random() < 0.5:
        question = rng.choice((
            "double {a} and add {b}", "what is twice {a} plus {b}", "take {a}, double it, then add {b}",
            "start with {a}, double it and add {b}. what do you get",
        ))  # fmt: skip
        total = 2 * a + b
        answer = f"2 x {a} = {2 * a}, and {2 * a} + {b} = {total}."
        key = ("double", a, b)
    else:
        question = rng.choice((
            "take half of {e} and add {b}", "what is half of {e} plus {b}", "halve {e}, then add {b}",
            "start with {e}, halve it and add {b}. what do you get",
        ))  # fmt: skip
        total = a + b
        answer = f"{2 * a} / 2 = {a}, and {a} + {b} = {total}."
        key = ("half", a, b)
    return ArithmeticProblem("double-and-half", key, question.format(a=a, b=b, e=2 * a), answer, str(total))


def traffic(rng: random.Random) -> ArithmeticProblem:
    engines, each, more = rng.randint(2, 9), rng.randint(2, 10), rng.randint(1, 9)
    question = rng.choice((
        "{e} engines run {k} requests each and {m} more wait. how many requests are there",
        "there are {e} engines with {k} requests each, plus {m} in the queue. how many requests in total",
        "each of {e} engines serves {k} requests, {m} requests are queued. how many is that",
    )).format(e=engines, k=each, m=more)  # fmt: skip
    product, total = engines * each, engines * each + more
    answer = f"{engines} x {each} = {product}, and {product} + {more} = {total}. There are {total} requests."
    return ArithmeticProblem("traffic", (engines, each, more), question, answer, str(total))


REASONING: tuple[Generator, ...] = (gain_and_loss, groups, sharing, ordering, weekday, double_and_half, traffic)
