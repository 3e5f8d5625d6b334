"""Questions that no adapter is trained on: whether it still knows what the base knows."""

import re

from deploy.adapters.task import Example

_QUESTIONS = (
    ("What is the capital of France?", "Paris"), ("What is the capital of Germany?", "Berlin"),
    ("What is the capital of Spain?", "Madrid"), ("What is the capital of Japan?", "Tokyo"),
    ("What is the capital of Egypt?", "Cairo"), ("What is the capital of Russia?", "Moscow"),
    ("In which country is the Eiffel Tower?", "France"), ("On which continent is Kenya?", "Africa"),
    ("Which planet is known as the Red Planet?", "Mars"), ("Which planet is closest to the Sun?", "Mercury"),
    ("What is H2O?", "water"), ("What gas do humans need to breathe?", "oxygen"),
    ("What is the chemical symbol for iron?", r"\bFe\b"), ("What do you call frozen water?", r"\bice\b"),
    ("How many months are in a year?", r"12|twelve"), ("How many hours are in a day?", r"24|twenty-four"),
    ("How many legs does a dog have?", r"\b4\b|four"), ("How many sides does a triangle have?", r"\b3\b|three"),
    ("How many continents are there?", r"\b7\b|seven"), ("What is 2 + 2?", r"\b4\b|four"),
    ("What is 10 minus 3?", r"\b7\b|seven"), ("What is 5 times 5?", r"25|twenty-five"),
    ("Who wrote Hamlet?", "Shakespeare"), ("Who developed the theory of relativity?", "Einstein"),
    ("Who was the first president of the United States?", "Washington"), ("Who discovered gravity?", "Newton"),
    ("Who invented the light bulb?", "Edison"), ("Who painted the Starry Night?", "Gogh"),
    ("What language is spoken in Mexico?", "Spanish"), ("What language is spoken in Germany?", "German"),
    ("What is the currency of the United States?", "dollar"), ("What is the currency of France?", "euro"),
    ("What is the largest mammal?", "whale"), ("What is the tallest animal?", "giraffe"),
    ("Which animal is known as the king of the jungle?", "lion"), ("What do cows give us to drink?", "milk"),
    ("What is a baby dog called?", r"pup"), ("What is a baby cat called?", "kitten"),
    ("What colour is the grass?", "green"), ("What colour is a ripe banana?", "yellow"),
    ("What colour do you get from red and white?", "pink"), ("What is the opposite of up?", "down"),
    ("What is the opposite of big?", "small|little|tiny"), ("Which season comes after winter?", "spring"),
    ("Which day comes after Monday?", "Tuesday"), ("Which month comes after June?", "July"),
    ("What organ pumps blood through the body?", "heart"), ("What do we use to see?", "eyes?"),
    ("What is the star at the centre of our solar system?", r"\bsun\b"),
    ("What is the largest desert in Africa?", "Sahara"),
)  # fmt: skip
"""Question, and an expression that a right answer has."""


def unrelated() -> list[Example]:
    return [Example(question, fact) for question, fact in _QUESTIONS]


def names_fact(example: Example, answer: str) -> bool:
    return re.search(example.answer, answer, re.IGNORECASE) is not None
