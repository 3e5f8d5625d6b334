"""Streaming text: deltas that concatenate to the decoding of the whole, and stop strings across their borders."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from engine.text.detokenizer import IncrementalDetokenizer, StopMatcher, TokenBytes, UnsupportedDecoder, detokenize
from tests.engine.tokenizer_zoo import FAMILIES

TEXT = st.text(max_size=40) | st.text(st.sampled_from("ab 世界😀é\n▁�<s>"), max_size=30)


@cache
def tokenizer_of(family: str) -> tuple[Tokenizer, TokenBytes]:
    tokenizer = FAMILIES[family]()
    return tokenizer, TokenBytes(tokenizer)


def deltas(pieces: TokenBytes, ids: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(pieces)
    return [*(detokenizer.push(id) for id in ids), detokenizer.flush()]


@pytest.mark.parametrize("family", FAMILIES)
@given(text=TEXT)
def test_the_deltas_of_any_text_concatenate_to_what_the_tokenizer_decodes(family: str, text: str) -> None:
    tokenizer, pieces = tokenizer_of(family)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert "".join(deltas(pieces, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
def test_the_deltas_of_any_token_ids_concatenate_to_what_the_tokenizer_decodes(
    family: str, data: st.DataObject
) -> None:
    """Also of nonsense, except that broken byte-fallback runs keep their good characters."""
    tokenizer, pieces = tokenizer_of(family)
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=12))
    text, expected = "".join(deltas(pieces, ids)), tokenizer.decode(ids, skip_special_tokens=True)
    if family == "byte-level" or "�" not in expected:
        assert text == expected


@pytest.mark.parametrize("family", ["byte-level", "llama2", "unigram"])
@given(text=st.text(st.characters(min_codepoint=0x80, exclude_categories=["Cs"], exclude_characters="\ufffd")))
def test_a_character_is_never_split(family: str, text: str) -> None:
    tokenizer, pieces = tokenizer_of(family)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert not any("\ufffd" in delta for delta in deltas(pieces, ids))


def test_text_is_shown_as_soon_as_its_last_byte_is_there() -> None:
    tokenizer, pieces = tokenizer_of("byte-level")
    ids = [tokenizer.token_to_id(token) for token in ["a", "ð", "Ł", "ĺ", "Ģ", "b"]]
    assert deltas(pieces, ids) == ["a", "", "", "", "😀", "b", ""]


def test_an_unfinished_character_at_the_end_becomes_a_replacement() -> None:
    tokenizer, pieces = tokenizer_of("byte-level")
    assert deltas(pieces, [tokenizer.token_to_id("ð"), tokenizer.token_to_id("Ł")]) == ["", "", "�"]


def test_good_characters_before_broken_byte_tokens_are_kept() -> None:
    tokenizer, pieces = tokenizer_of("llama2")
    ids = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in [*"é".encode(), 0xFF]]
    assert detokenize(pieces, ids) == "é�"


def test_special_tokens_are_skipped_unless_asked_for() -> None:
    tokenizer, pieces = tokenizer_of("byte-level")
    ids = tokenizer.encode("<|user|>hi<|end|>").ids
    assert detokenize(pieces, ids) == "hi"
    assert detokenize(pieces, ids, skip_special=False) == "<|user|>hi<|end|>"


def test_a_special_token_at_the_start_does_not_bring_back_the_leading_space() -> None:
    tokenizer, pieces = tokenizer_of("llama2")
    assert detokenize(pieces, tokenizer.encode("hello").ids) == "hello"


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_beyond_the_vocabulary_add_nothing(family: str) -> None:
    """Models pad their vocabulary beyond the tokenizer's."""
    _, pieces = tokenizer_of(family)
    assert detokenize(pieces, [10_000]) == ""


def test_a_token_that_was_never_byte_encoded_is_shown_as_it_is() -> None:
    tokenizer = FAMILIES["byte-level"]()
    tokenizer.add_tokens(["naïve token 世"])
    assert detokenize(TokenBytes(tokenizer), [tokenizer.token_to_id("naïve token 世")]) == "naïve token 世"


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.CTC(), decoders.Strip("_", 1, 1)])
def test_a_decoder_without_incremental_form_is_refused(decoder: decoders.Decoder) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoder
    with pytest.raises(UnsupportedDecoder, match=r"tokenizer\.json: decoder"):
        TokenBytes(tokenizer)


# Stop strings


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    return [*(matcher.push(piece) for piece in pieces), matcher.flush()], matcher.matched


def expected(stops: list[str], text: str) -> tuple[str, str | None]:
    """By definition: the shortest prefix of the text that ends with a stop string, without the longest such one."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def test_nothing_of_a_stop_string_or_after_it_is_returned() -> None:
    assert run(["STOP"], ["one ST", "OP two"]) == (["one ", "", ""], "STOP")


def test_what_may_still_become_a_stop_string_is_held_back_and_no_more() -> None:
    assert run(["\n\n"], ["a\n", "b\n", "\n"]) == (["a", "\nb", "", ""], "\n\n")


def test_what_was_held_back_is_returned_at_the_end() -> None:
    assert run(["STOP"], ["say ST"]) == (["say ", "ST"], None)


def test_without_stop_strings_all_text_passes_at_once() -> None:
    assert run([], ["a", "b"]) == (["a", "b", ""], None)


def test_the_stop_string_that_is_complete_first_counts() -> None:
    assert run(["bcd", "ab"], ["abcd"]) == (["", ""], "ab")


def test_of_two_complete_at_once_the_longer_counts() -> None:
    assert run(["b", "ab"], ["xab"]) == (["x", ""], "ab")


def test_text_after_a_match_is_ignored() -> None:
    assert run(["!"], ["a!", "b"]) == (["a", "", ""], "!")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty stop string"):
        StopMatcher([""])


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.text("ab", max_size=4), max_size=8),
)
def test_the_result_does_not_depend_on_how_the_text_was_cut(stops: list[str], pieces: list[str]) -> None:
    shown, matched = run(stops, pieces)
    assert ("".join(shown), matched) == expected(stops, "".join(pieces))


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_that_are_shown_are_text(family: str) -> None:
    """Those and no others; everything else is as without them."""
    tokenizer, pieces = tokenizer_of(family)
    one, other = sorted(pieces.special)[:2]
    ids = [one, other, *tokenizer.encode("a", add_special_tokens=False).ids, one]
    detokenizer = IncrementalDetokenizer(pieces, shown=[one])
    text = "".join([*(detokenizer.push(id) for id in ids), detokenizer.flush()])
    assert text.count(tokenizer.id_to_token(one)) == 2
    assert tokenizer.id_to_token(other) not in text
