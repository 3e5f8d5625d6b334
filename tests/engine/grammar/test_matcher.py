"""One request's place in its grammar: masks, drafts and ends, compared with matchers that start afresh."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.grammar.masks import MaskFiller
from engine.grammar.matcher import Matcher
from engine.grammar.source import GrammarLimits, to_llguidance
from engine.grammar.tokens import Bits, GrammarTokens
from engine.plan import Row
from engine.request import Request
from engine.text.detokenizer import TokenBytes, detokenize
from engine.wire import Grammar, SamplingParams
from tests.amounts import examples
from tests.engine.grammar.engines import VOCABULARY
from tests.engine.tokenizer_zoo import FAMILIES, write_tokenizer

EOS = 2
OTHER_EOS = 6
GRAMMARS = [
    Grammar("json_schema", '{"properties": {"ab": {"type": "integer"}, "x": {"enum": ["hello", null, [1, 2]]}}}'),
    Grammar("regex", "(hello|[a-h]{1,4} )*"),
    Grammar("choice", '["hello world", "hello", "the quick brown fox"]'),
    Grammar("lark", 'start: sum\nsum: item ("+" item)*\nitem: /[0-9]+/ | "(" sum ")"'),
]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> GrammarTokens:
    directory = write_tokenizer(tmp_path_factory.mktemp("tokenizer"), FAMILIES["byte-level"]())
    return GrammarTokens(directory, VOCABULARY, (EOS, OTHER_EOS))


def follow(tokens: GrammarTokens, grammar: Grammar, history: list[int], **sampling: object) -> Matcher:
    """A matcher that has been given `history`."""
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    matcher = Matcher(tokens.compile(to_llguidance(grammar, GrammarLimits())), tokens, params)
    for token in history:
        matcher.consume(token)
    return matcher


def masks(matcher: Matcher, tokens: GrammarTokens, draft: list[int] | None = None) -> Bits:
    bits = np.zeros((1 + len(draft or []), tokens.words), np.int32)
    matcher.fill(bits, draft or [])
    return bits


def legal(row: Bits) -> set[int]:
    return {int(token) for token in np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0]}


def wander(matcher: Matcher, tokens: GrammarTokens, generator: random.Random, length: int) -> list[int]:
    """Go on by random legal tokens, ends included; which ones."""
    path: list[int] = []
    while len(path) < length and not matcher.finished:
        path.append(generator.choice(sorted(legal(masks(matcher, tokens)[0]))))
        matcher.consume(path[-1])
    return path


PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "min_tokens": st.integers(1, 8),
        "ignore_eos": st.just(True),
        "stop_token_ids": st.sampled_from([(300,), (301, OTHER_EOS), tuple(range(80, 120))]),
    },
)


@settings(max_examples=examples(25), deadline=None)
@given(st.sampled_from(GRAMMARS), PARAMS, st.integers(0, 2**32), st.data())
def test_drafts_are_seen_as_fresh_matchers_see_them(
    tokens: GrammarTokens, grammar: Grammar, params: dict[str, object], seed: int, data: st.DataObject
) -> None:
    """Masks along a draft, its legal prefix, and that neither leaves a trace: all as if each token had been sampled."""
    generator = random.Random(seed)
    matcher = follow(tokens, grammar, [], **params)
    history = wander(matcher, tokens, generator, data.draw(st.integers(0, 6)))
    if matcher.finished:
        return
    probe = follow(tokens, grammar, history, **params)
    draft = wander(probe, tokens, generator, 4) + data.draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=2))
    truncated = matcher.truncate_draft(draft)
    assert truncated == draft[: len(truncated)]
    before = masks(matcher, tokens)
    rows = masks(matcher, tokens, truncated)
    assert len(rows) == 1 + len(truncated)
    for index, row in enumerate(rows):
        fresh = follow(tokens, grammar, history + truncated[:index], **params)
        assert (row == masks(fresh, tokens)[0]).all()
        if index < len(truncated):
            assert truncated[index] in legal(row)
            assert not follow(tokens, grammar, history + truncated[: index + 1], **params)._ended
        elif index < len(draft):
            # What was cut off is illegal, or may end the answer.
            ended = fresh.finished
            assert ended or draft[index] not in legal(row) or draft[index] in matcher._endings
    assert (masks(matcher, tokens) == before).all()
    assert (matcher.finished, matcher.error) == (False, None)


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(GRAMMARS), PARAMS, st.integers(0, 2**32)), min_size=1, max_size=5), st.data())
def test_masks_computed_together_are_those_computed_alone(
    tokens: GrammarTokens, whose: list[tuple[Grammar, dict[str, object], int]], data: st.DataObject
) -> None:
    rows, expected = [], {}
    for index, (grammar, params, seed) in enumerate(whose):
        generator = random.Random(seed)
        matcher = follow(tokens, grammar, [], **params)
        history = wander(matcher, tokens, generator, data.draw(st.integers(0, 3)))
        if matcher.finished:
            continue
        probe = follow(tokens, grammar, history, **params)
        draft = matcher.truncate_draft(wander(probe, tokens, generator, data.draw(st.integers(0, 3))))
        request = Request(str(index), [1], SamplingParams(), 0.0, matcher=matcher)
        rows += [Row(Request("free", [1], SamplingParams(), 0.0), 0, 1, True), Row(request, 0, 1, True, tuple(draft))]
        expected[request.id] = masks(follow(tokens, grammar, history, **params), tokens, draft)
    filler = MaskFiller(VOCABULARY, threads=2)
    found = filler.start(rows)
    if found is None:
        assert not expected
    else:
        bits = found.wait()
        assert found.offsets.keys() == expected.keys()
        for id, offset in found.offsets.items():
            assert (bits[offset : offset + len(expected[id])] == expected[id]).all()
    filler.close()


def test_tokens_beyond_the_tokenizer_s_vocabulary_are_never_legal(tokens: GrammarTokens) -> None:
    assert max(legal(masks(follow(tokens, Grammar("regex", "(?s).*"), []), tokens)[0])) < 430


def test_special_tokens_are_no_text(tokens: GrammarTokens, tmp_path: Path) -> None:
    options = legal(masks(follow(tokens, Grammar("regex", "(?s).*"), []), tokens)[0])
    assert options & set(range(7)) == {EOS, OTHER_EOS}


def test_a_lark_grammar_may_name_special_tokens(tokens: GrammarTokens) -> None:
    matcher = follow(tokens, Grammar("lark", 'start: <|user|> "a" | <s>'), [])
    assert legal(masks(matcher, tokens)[0]) == {1, 4}


def test_every_end_of_sequence_token_ends_an_answer(tokens: GrammarTokens) -> None:
    for eos in (EOS, OTHER_EOS):
        matcher = follow(tokens, Grammar("regex", "a*"), [eos])
        assert (matcher.finished, matcher.complete) == (True, False)


def test_an_illegal_token_is_an_error_and_no_end(tokens: GrammarTokens) -> None:
    matcher = follow(tokens, Grammar("regex", "a+"), [EOS])
    assert matcher.error is not None
    assert not matcher.finished


def test_slow_masks_are_charged_to_whom_they_belong_to(tokens: GrammarTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    ambiguous = Grammar("lark", 'start: s\ns: s s | s s s | "a" | "aa"')
    (a,) = [token for token in range(VOCABULARY) if tokens.llguidance.decode_bytes([token]) == b"a"]
    slow = follow(tokens, ambiguous, [a] * 150)
    quick = follow(tokens, Grammar("regex", "[a-z]*"), [a] * 150)
    rows = [
        Row(Request(str(i), [1], SamplingParams(), 0.0, matcher=m), 0, 1, True) for i, m in enumerate((slow, quick))
    ]
    filler = MaskFiller(VOCABULARY)
    monkeypatch.setattr("engine.grammar.masks._SLOW_SECONDS", 0.0)
    monkeypatch.setattr("engine.grammar.matcher._TOKEN_SECONDS", 0.0)
    left = []
    for _ in range(3):
        # Masks are remembered: go back and on again.
        for matcher in (slow, quick):
            matcher.llguidance.rollback(1)
            matcher.llguidance.consume_token(a)
        left.append((slow._credit, quick._credit))
        found = filler.start(rows)
        assert found is not None
        found.wait()
    filler.close()
    assert left[1] == left[0], "the first masks are computed together, which nobody is charged for"
    assert left[1][0] - slow._credit > left[1][1] - quick._credit > 0


@pytest.fixture(scope="module", params=["llama2", "unigram"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentencepiece tokenizer: decoding drops a space from the start of a text."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), FAMILIES[request.param]())


@pytest.fixture(scope="module")
def spaced(directory: Path) -> GrammarTokens:
    return GrammarTokens(directory, VOCABULARY, (EOS,))


def spelled(tokens: GrammarTokens, token: int) -> bytes:
    text: bytes = tokens.llguidance.decode_bytes([token])
    return text


def test_a_token_that_would_lose_its_space_is_not_the_first(spaced: GrammarTokens, directory: Path) -> None:
    pieces = TokenBytes(Tokenizer.from_file(str(directory / "tokenizer.json")))
    options = legal(masks(follow(spaced, Grammar("regex", " ?hello"), []), spaced)[0])
    assert len(options) > 1
    assert all(detokenize(pieces, [token]).encode() == spelled(spaced, token) for token in options)
    lost = [token for token in range(7, 300) if spelled(spaced, token) == b" " and token not in options]
    assert lost
    assert follow(spaced, Grammar("regex", " ?hello"), []).truncate_draft(lost[:1]) == []


def test_it_is_legal_later(spaced: GrammarTokens) -> None:
    a, space = (next(t for t in range(7, VOCABULARY) if spelled(spaced, t) == text) for text in (b"a", b" "))
    matcher = follow(spaced, Grammar("regex", "a ?hello"), [a])
    assert {spelled(spaced, token)[:1] for token in legal(masks(matcher, spaced)[0])} == {b"h", b" "}
    assert matcher.truncate_draft([space]) == [space]
