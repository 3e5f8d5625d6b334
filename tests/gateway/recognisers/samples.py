"""Texts for the tests of recognisers: findings, what resembles them, and what stands between them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from gateway.recognisers.accounts import Card, Iban
from gateway.recognisers.blocked import Blocked, line, read
from gateway.recognisers.contacts import Email, IpAddress, Phone
from gateway.recognisers.credentials import ApiKey, PrivateKey
from gateway.recognisers.pattern import Pattern
from gateway.recognisers.recogniser import Recogniser
from gateway.records.api_keys import new_key

SECRET = b"k" * 32
PHRASES = ("project nightingale", "the blue door opens at noon", "Zürich", "xyzzy")
OUR_KEY = new_key(SECRET)[0]
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow+/Ab=\n\n-----END RSA PRIVATE KEY-----"

RECOGNISERS: dict[str, Recogniser] = {
    "private_key": PrivateKey(),
    "api_key": ApiKey(),
    "email": Email(),
    "card": Card(),
    "iban": Iban(),
    "phone": Phone(),
    "ip_address": IpAddress(),
    "custom": Pattern(r"\bEMP-\d{4,6}\b|case [A-Z]{2}\d"),
    "blocked": Blocked(read(line(phrase, SECRET) for phrase in PHRASES), SECRET),
}

FOUND: dict[str, tuple[str, ...]] = {
    "private_key": (
        PEM,
        "-----BEGIN PRIVATE KEY-----\\nMIIB\\n-----END PRIVATE KEY-----",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nxcMG\n-----END PGP PRIVATE KEY BLOCK-----",
        "-----BEGIN EC PRIVATE KEY-----\nMHQCAQEE",
    ),
    "api_key": (
        OUR_KEY,
        "sk-proj-T3BlbkFJabcdefghij0123456789",
        "ghp_" + "a1B2" * 9,
        "AKIAIOSFODNN7EXAMPLE",
        "AIza" + "Sy0_-" * 7,
        "xoxb-123456789012-abcdef",
        "sk_live_" + "4eC39HqLyjWDarjt",
        "hf_" + "abcDEF" * 6,
        "glpat-" + "x" * 20,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    ),
    "email": ("bob@example.com", "a.b+c@mail.example.co.uk", "O'Brien@x-y.io", "user_1@sub.sub2.example.org"),
    "card": ("4111 1111 1111 1111", "5500-0000-0000-0004", "378282246310005", "6011000990139424", "30569309025904"),
    "iban": (
        "DE89370400440532013000",
        "GB82 WEST 1234 5698 7654 32",
        "NO93 8601 1117 947",
        "fr1420041010050500013m02606",
    ),
    "phone": (
        "+49 30 1234567",
        "+1 (202) 555-0173",
        "0049-171-1234567",
        "(202) 555-0173",
        "202-555-0173",
        "030 1234567",
        "06 12 34 56 78",
        "(020) 7946 0958",
        "07911123456",
    ),
    "ip_address": ("10.0.0.1", "192.168.100.200", "fe80::1ff:fe23:4567:890a", "2001:db8::1", "::1"),
    "custom": ("EMP-1234", "EMP-123456", "case AB7"),
    "blocked": ("Project  Nightingale", "the blue door, opens at NOON", "ZU\u0308RICH", "xyz\u200bzy"),
}
"""Texts that have to be found in any place, by rule."""

NOT_FOUND: dict[str, tuple[str, ...]] = {
    "private_key": ("-----BEGIN PUBLIC KEY-----", "-----BEGIN CERTIFICATE-----", "PRIVATE KEY"),
    "api_key": ("risk-free", OUR_KEY[:-1] + ("A" if OUR_KEY[-1] != "A" else "B"), "sk-short", "AKIA", "eyJ.eyJ"),
    "email": ("@home", "a@b", "version@1.2.3", "me @ example.com", "@@"),
    "card": ("4111 1111 1111 1112", "1234567890123456", "41111111111111111111111", "4111  1111 1111 1111"),
    "iban": ("DE89370400440532013001", "XX89370400440532013000", "DE89", "XDE89370400440532013000"),
    "phone": ("2024", "12:30", "01.02.2024", "3.14159265", "1234567890", "10-20", "0.5", "A-0123456789"),
    "ip_address": ("1.2.3", "999.1.1.1", "1.2.3.4.5", "std::vector", "12:34:56", "::", "v1.2.3.4"),
    "custom": ("EMP-123", "XEMP-1234", "EMP-1234567", "case ab7"),
    "blocked": ("project", "nightingale project", "project nightingales", "the blue door", "zurich"),
}
"""Texts that resemble findings and must not be found, by rule."""

_fragments: Sequence[str] = [text for texts in (*FOUND.values(), *NOT_FOUND.values()) for text in texts]
_between = st.sampled_from(
    [" ", ", ", ".", "\n", "", "-", ":", "(", ")", '"', "4", "a", " and ", "é", "\u3000", "+", "0"]
)
_pieces = st.sampled_from(_fragments).flatmap(
    lambda text: st.sampled_from([text, text[: len(text) // 2], text[len(text) // 2 :], text[:-1], text[1:]])
)
texts = st.lists(st.one_of(_pieces, _between, st.text(max_size=5)), max_size=12).map("".join)
"""Texts of such pieces and anything between."""


@st.composite
def cuts(draw: st.DrawFn, text: str) -> list[str]:
    """Draw any way to cut a text into chunks, empty ones included."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]
