"""How fast safety rules are, and how much they find: `python -m bench.safety`.

Recall and precision are measured on generated texts whose labels are known, among numbers and words that resemble what
rules look for. The generator shares no code with the recognisers: checksums are computed here.
"""

from __future__ import annotations

import argparse
import base64
import random
import re
import string
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from gateway.config.safety import SafetySettings
from gateway.recognisers.recogniser import Recogniser
from gateway.safety.hook import recognisers
from gateway.safety.stream import FilterRule, TextFilter, filter_text

RULES = ("private_key", "api_key", "email", "card", "iban", "phone", "ip_address")
DEFAULT = RULES[:-1]

_WORDS = re.findall(
    "[A-Za-z]+",
    """the of and a to in is you that it he was for on are as with his they I at be this have from or one had by
word but not what all were we when your can said there use an each which she do how their if will up other about out
many then them these so some her would make like him into time has look two more write go see number no way could people
invoice order account paid please call reach me contact mail shipping today tomorrow meeting customer""",
)
_NAMES = ("anna", "bob", "chen", "dimitri", "eva", "farid", "grace", "hiro", "ines", "jan", "kofi", "lena", "müller")
_DOMAINS = ("example.com", "mail.example.org", "test-firm.co.uk", "uni.edu", "a1.io", "subdomain.of.a-long-name.info")


def _digits(draw: random.Random, count: int) -> str:
    return "".join(draw.choices(string.digits, k=count))


def _text(draw: random.Random, characters: str, count: int) -> str:
    return "".join(draw.choices(characters, k=count))


_ALNUM = string.ascii_letters + string.digits


def _email(draw: random.Random) -> str:
    names = [name for name in _NAMES if name.isascii()]
    local = draw.choice(
        [draw.choice(names), f"{draw.choice(names)}.{draw.choice(names)}", f"{draw.choice(names)}+{draw.randrange(99)}"]
    )
    return f"{local}@{draw.choice(_DOMAINS)}"


def _card(draw: random.Random) -> str:
    prefix, length, groups = draw.choice(
        [
            ("4", 16, (4, 4, 4, 4)),
            ("51", 16, (4, 4, 4, 4)),
            ("2221", 16, (4, 4, 4, 4)),
            ("6011", 16, (4, 4, 4, 4)),
            ("3528", 16, (4, 4, 4, 4)),
            ("37", 15, (4, 6, 5)),
            ("36", 14, (4, 6, 4)),
        ]
    )
    body = prefix + _digits(draw, length - len(prefix) - 1)
    # Luhn's checksum as ISO/IEC 7812-1 writes it: from the right, every second digit doubled.
    total = 0
    for place, digit in enumerate(reversed(body)):
        value = int(digit) * (2 if place % 2 == 0 else 1)
        total += value // 10 + value % 10
    number = body + str(-total % 10)
    separator = draw.choice(["", " ", "-"])
    parts, at = [], 0
    for size in groups:
        parts.append(number[at : at + size])
        at += size
    return separator.join(parts)


_BBAN = {
    "DE": "n18",
    "GB": "a4n14",
    "FR": "n10c11n2",
    "NL": "a4n10",
    "NO": "n11",
    "ES": "n20",
    "IT": "a1n10c12",
    "CH": "n5c12",
}


def _iban(draw: random.Random) -> str:
    country = draw.choice(sorted(_BBAN))
    body, shape = "", _BBAN[country]
    while shape:
        kind = shape[0]
        count = int("".join(c for c in shape[1:].split("a")[0].split("n")[0].split("c")[0]))
        alphabet = {"n": string.digits, "a": string.ascii_uppercase, "c": string.digits + string.ascii_uppercase}[kind]
        body += _text(draw, alphabet, count)
        shape = shape[1 + len(str(count)) :]
    digits = "".join(str(string.digits.find(c)) if c in string.digits else str(ord(c) - 55) for c in body + country)
    check = 98 - int(digits + "00") % 97
    number = f"{country}{check:02}{body}"
    if draw.random() < 0.5:
        return number
    return " ".join(number[at : at + 4] for at in range(0, len(number), 4))


def _phone(draw: random.Random) -> str:
    def n(count: int) -> str:
        return _digits(draw, count)

    two = draw.choice("23456789")
    return draw.choice(
        [
            f"+49 {two}0 {n(7)}",
            f"+44 20 {n(4)} {n(4)}",
            f"+1-{two}{n(2)}-{two}{n(2)}-{n(4)}",
            f"+33{two}{n(8)}",
            f"({two}{n(2)}) {two}{n(2)}-{n(4)}",
            f"{two}{n(2)}.{two}{n(2)}.{n(4)}",
            f"0{two}0 {n(7)}",
            f"0{two}1/{n(8)}",
            f"06 {n(2)} {n(2)} {n(2)} {n(2)}",
            f"07{n(9)}",
            f"0091 {two}{n(9)}",
            f"{two}{n(2)}{two}{n(6)}",  # nothing tells it from any other number
        ]
    )


def _ip(draw: random.Random) -> str:
    if draw.random() < 0.7:
        return ".".join(str(draw.randrange(256)) for _ in range(4))
    return ":".join(f"{draw.randrange(65536):x}" for _ in range(8))


def _key(draw: random.Random) -> str:
    def ours() -> str:
        alphabet = string.digits + string.ascii_uppercase + string.ascii_lowercase
        body, value, check = _text(draw, alphabet, 43), 0, ""
        value = zlib.crc32(body.encode())
        for _ in range(6):
            value, digit = divmod(value, 62)
            check = alphabet[digit] + check
        return f"rh_{body}_{check}"

    def web_token() -> str:
        parts = [f'{{"alg":"HS256","kid":"{draw.randrange(99)}"}}', f'{{"sub":"{_digits(draw, 10)}"}}']
        encoded = [base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts]
        return ".".join([*encoded, _text(draw, _ALNUM + "-_", 43)])

    return draw.choice(
        [
            "sk-proj-" + _text(draw, _ALNUM, 48),
            "ghp_" + _text(draw, _ALNUM, 36),
            "AKIA" + _text(draw, string.ascii_uppercase + string.digits, 16),
            "AIza" + _text(draw, _ALNUM, 35),
            "xoxb-" + _digits(draw, 12) + "-" + _text(draw, _ALNUM, 24),
            "sk_live_" + _text(draw, _ALNUM, 24),
            "hf_" + _text(draw, _ALNUM, 34),
            "glpat-" + _text(draw, _ALNUM, 20),
            ours(),
            web_token(),
        ]
    )


def _private_key(draw: random.Random) -> str:
    kind = draw.choice(["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
    lines = "\n".join(_text(draw, _ALNUM + "+/", 64) for _ in range(draw.randrange(3, 20)))
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{lines}\n-----END {kind}PRIVATE KEY-----"


POSITIVE: Mapping[str, Callable[[random.Random], str]] = {
    "email": _email,
    "card": _card,
    "iban": _iban,
    "phone": _phone,
    "ip_address": _ip,
    "api_key": _key,
    "private_key": _private_key,
}


def _distractor(draw: random.Random) -> str:
    """Return a text that resembles a finding and is none."""

    def n(count: int) -> str:
        return _digits(draw, count)

    return draw.choice(
        [
            f"{draw.randrange(1, 29):02}.{draw.randrange(1, 13):02}.20{n(2)}",
            f"20{n(2)}-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}T{n(2)}:{n(2)}:{n(2)}",
            f"order {n(10)}",
            f"invoice INV-{n(8)}",
            f"1{n(15)}",  # an identifier
            f"{n(1)}.{n(12)}",
            f"v{n(1)}.{n(1)}.{n(2)}",
            f"${draw.randrange(1000)},{n(3)}.{n(2)}",
            _text(draw, "0123456789abcdef", 40),
            "-".join(_text(draw, "0123456789abcdef", size) for size in (8, 4, 4, 4, 12)),
            f"@{draw.choice(_WORDS)}",
            f"std::{draw.choice(_WORDS)}",
            f"{n(2)}:{n(2)}:{n(2)}",
            f"ISBN 978-{n(1)}-{n(3)}-{n(5)}-{n(1)}",
            f"{draw.choice(_WORDS)}-{draw.choice(_WORDS)}_{n(4)}",
            f"pages {n(3)}-{n(3)}",
            f"{n(4)} {n(4)} steps",
            f"17{n(11)}",  # a time in milliseconds
        ]
    )


def labelled(seed: int, count: int) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield texts with their labels: (rule, text) in order."""
    draw = random.Random(seed)
    for _ in range(count):
        parts, labels = [], []
        for _ in range(draw.randrange(2, 8)):
            parts.append(" ".join(draw.choices(_WORDS, k=draw.randrange(3, 15))))
            if draw.random() < 0.5:
                rule = draw.choice(sorted(POSITIVE))
                secret = POSITIVE[rule](draw)
                labels.append((rule, secret))
                parts.append(draw.choice(["{}", "{},", "({})", '"{}"', "{}."]).format(secret))
            else:
                parts.append(_distractor(draw) + draw.choice(["", ",", "."]))
        yield " ".join(parts), labels


def prose(seed: int, size: int) -> str:
    """Return ordinary text with a number now and then."""
    draw, parts, length = random.Random(seed), [], 0
    while length < size:
        part = " ".join(draw.choices(_WORDS, k=12)) + draw.choice([". ", ", ", f" {draw.randrange(3000)} "])
        parts.append(part)
        length += len(part)
    return "".join(parts)


def accuracy(count: int, seed: int = 1) -> list[tuple[str, int, float, float]]:
    """Return name, count, recall and precision of each rule. A finding counts if it is exactly what was planted."""
    known = recognisers(SafetySettings(), {}, b"")
    rules = [FilterRule(name, known[name], f"[{name}]") for name in known]
    wanted: Counter[str] = Counter()
    right: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for text, labels in labelled(seed, count):
        findings: list[tuple[str, str]] = []
        filter_text(text, rules, lambda rule, secret, findings=findings: findings.append((rule.name, secret)))  # type: ignore[misc]
        wanted.update(rule for rule, _ in labels)
        found.update(rule for rule, _ in findings)
        right.update(rule for rule, _ in (Counter(labels) & Counter(findings)).elements())
    return [(rule, wanted[rule], right[rule] / wanted[rule], right[rule] / found[rule]) for rule in RULES]


HOSTILE: Mapping[str, str] = {
    "a": "letters",
    "4": "digits",
    "4 ": "digits and spaces",
    "a@": "@",
    "+1 ": "plus signs",
    "eyJ": "token beginnings",
    "-----BEGIN ": "key beginnings",
    "DE89 ": "account beginnings",
    "(0": "brackets",
    "a:": "colons",
}
"""Texts that could make a careless expression slow, with their names."""


def speed(text: str, known: Mapping[str, Recogniser]) -> float:
    """Return megabytes per second."""
    rules = [FilterRule(name, recogniser, f"[{name}]") for name, recogniser in known.items()]
    best = 0.0
    for _ in range(3):
        began = time.perf_counter()
        filter_text(text, rules, lambda rule, secret: None)
        best = max(best, len(text) / (time.perf_counter() - began) / 1e6)
    return best


def per_delta(text: str, known: Mapping[str, Recogniser], size: int = 4) -> float:
    """Return the microseconds that one delta of an answer costs."""
    rules = [FilterRule(name, recogniser, f"[{name}]") for name, recogniser in known.items()]
    filter = TextFilter(rules, lambda rule, secret: None)
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    began = time.perf_counter()
    for chunk in chunks:
        filter.feed(chunk)
    return (time.perf_counter() - began) / len(chunks) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=20_000, help="labelled texts")
    parser.add_argument("--bytes", type=int, default=1_000_000, help="size of the texts for speed")
    arguments = parser.parse_args()
    known = recognisers(SafetySettings(), {}, b"")
    default = {name: known[name] for name in DEFAULT}
    print("| rule | generated | recall | precision |\n|---|---|---|---|")
    for rule, count, recall, precision in accuracy(arguments.texts):
        print(f"| `{rule}` | {count:,} | {recall:.2%} | {precision:.2%} |")
    text = prose(1, arguments.bytes)
    print("\n| text | rules | MB/s |\n|---|---|---|")
    print(f"| prose | all but `ip_address` | {speed(text, default):.1f} |")
    for name in RULES:
        print(f"| prose | `{name}` | {speed(text, {name: known[name]}):.1f} |")
    for unit, name in HOSTILE.items():
        # Twice the text may take twice the time, not four times.
        once, twice = (
            speed(unit * (size // len(unit)), known) for size in (arguments.bytes // 4, arguments.bytes // 2)
        )
        print(f"| only {name} | all | {once:.2f}, twice as long: {twice:.2f} |")
    print(f"\nA delta of four characters costs {per_delta(text[:200_000], default):.1f} µs.")


if __name__ == "__main__":
    main()
