"""API keys: made, recognised, digested."""

from __future__ import annotations

import hashlib
import hmac
import re
import zlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gateway.records.api_keys import PATTERN, digest, new_key, well_formed

SECRET = bytes(range(32))
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

keys = st.builds(lambda _: new_key(SECRET)[0], st.integers())


def test_a_new_key_is_well_formed_and_never_made_twice() -> None:
    made = {new_key(SECRET)[0] for _ in range(200)}
    assert len(made) == 200
    assert all(well_formed(key) and re.fullmatch(PATTERN, key) for key in made)


def test_a_scanner_finds_a_key_in_a_text() -> None:
    key, _ = new_key(SECRET)
    assert re.findall(PATTERN, f'api_key = "{key}"\n# rh_short_123456\n') == [key]


def test_the_digest_is_a_plain_hmac() -> None:
    key, stored = new_key(SECRET)
    assert stored == digest(key, SECRET) == hmac.new(SECRET, key.encode(), hashlib.sha256).hexdigest()
    assert digest(key, b"another secret") != stored


@given(keys)
def test_the_checksum_is_the_crc_32_of_the_random_part(key: str) -> None:
    _, random, checksum = key.split("_")
    number = 0
    for digit in checksum:
        number = number * 62 + ALPHABET.index(digit)
    assert number == zlib.crc32(random.encode())


@given(keys, st.data())
def test_one_wrong_character_is_noticed(key: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(key) - 1))
    wrong = data.draw(st.sampled_from(ALPHABET + "_-é\n").filter(lambda character: character != key[place]))
    assert not well_formed(key[:place] + wrong + key[place + 1 :])


@given(keys, st.integers(3, 44))
def test_two_neighbours_swapped_are_noticed(key: str, place: int) -> None:
    swapped = key[:place] + key[place + 1] + key[place] + key[place + 2 :]
    assert well_formed(swapped) == (swapped == key)


@given(st.text(max_size=80) | st.from_regex(PATTERN, fullmatch=True).map(lambda key: key + "x"))
def test_no_other_text_is_a_key(text: str) -> None:
    assert not well_formed(text)


@given(keys, st.sampled_from(["", " ", "\n", "\r\n", "\0"]), st.sampled_from([" ", "\n", "\0", "0"]))
def test_nothing_may_stand_around_a_key(key: str, before: str, after: str) -> None:
    assert not well_formed(before + key + after)


def test_the_regular_expression_is_documented() -> None:
    assert f"`{PATTERN}`" in Path("docs/identity.md").read_text("utf-8")
