"""Describes a checkpoint's tokenizer to llguidance: the bytes of every token, as they appear in the client's text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.opening import open_checkpoint
from engine.request import GrammarError
from engine.text.detokenizer import TokenBytes, UnsupportedDecoder

Bits = npt.NDArray[np.int32]
"""Bit mask over a vocabulary, the lowest token first: [words], or [positions, words]."""
_PARSER_LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


class GrammarTokens:
    """A vocabulary as llguidance reads it.

    The bytes of a token come from the table by which clients turn tokens into text, so that a grammar holds for the
    text that is shown, whatever the tokenizer's family is.

    Takes 1 s for a vocabulary of 128,000, the last third of it without letting other threads run.
    """

    def __init__(self, path: Path, vocabulary: int, eos_token_ids: Sequence[int]) -> None:
        """Read the tokenizer of the checkpoint at `path`.

        Args:
            vocabulary: rows of the model's output; tokens beyond the tokenizer's own are never legal.

        Raises:
            RequestError: there is none, or grammars cannot be used with it.
        """
        try:
            tokenizer = open_checkpoint(path).tokenizer()
        except CheckpointError as error:
            raise GrammarError(f"grammars need the tokenizer of the model's checkpoint: {error}") from error
        try:
            pieces = TokenBytes(tokenizer)
        except UnsupportedDecoder as error:
            raise GrammarError(f"not supported with the model's tokenizer: {error}") from error
        first = [pieces(token, first=True) for token in range(vocabulary)]
        inside = [pieces(token) for token in range(vocabulary)]
        self.words = -(-vocabulary // 32)
        """Words of a mask over the vocabulary, one bit per token."""
        strips = pieces.leading_spaces > 0
        changed = [a != b or (strips and b.startswith(b" ")) for a, b in zip(first, inside, strict=True)]
        self.not_first = self.bits([token for token, differs in enumerate(changed) if differs])
        """Tokens that differ at the start of a text, where decoding strips a space; None if none does."""
        if all(differs for differs, piece in zip(changed, inside, strict=True) if piece):
            raise GrammarError("not supported with the model's tokenizer, which joins words with spaces")
        self.eos = frozenset(token for token in eos_token_ids if 0 <= token < vocabulary)
        if not self.eos:
            raise GrammarError("the model's checkpoint names no end-of-sequence token, which grammars need")
        self.llguidance = LLTokenizer(
            _Vocabulary(tokenizer, inside, pieces.special, min(self.eos)), eos_token=[*self.eos]
        )

    def compile(self, source: str) -> LLMatcher:
        """Compile llguidance's notation into a matcher in its first state, which knows whether it is in error.

        Its first mask is computed here: some faults show only then, and copies of the matcher profit from it.
        """
        matcher = LLMatcher(self.llguidance, source, log_level=0, limits=_PARSER_LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()
        return matcher

    def bits(self, tokens: Collection[int]) -> Bits | None:
        """Return the mask [words] of `tokens`; None if there are none."""
        if not tokens:
            return None
        bits = np.zeros(self.words * 32, np.uint8)
        bits[[*tokens]] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)


class _Vocabulary(TokenizerWrapper):
    """The interface through which llguidance reads a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, pieces: Sequence[bytes], special: frozenset[int], eos: int) -> None:
        control = {token for token in special if token < len(pieces)}
        # Under its name in a Lark grammar; text never matches it.
        self.tokens = [
            (tokenizer.id_to_token(token) or "").encode() if token in control else piece
            for token, piece in enumerate(pieces)
        ]
        self.special_token_ids = sorted(control)
        self.eos_token_id = eos

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("tokens are never forced, so that no text is ever tokenized")
