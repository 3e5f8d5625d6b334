"""Builds the tokenizer of a GGUF file, and finds the tokens that end a text."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.gguf.metadata import GgufMetadata
from engine.checkpoint.gguf.splits import DEFAULT, SPLITS, TextSplit

logger = logging.getLogger(__name__)

_PREFIX = "tokenizer.ggml."
_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_SPACE = "\u2581"
"""Character that stands for a space in sentencepiece's vocabularies."""
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""Tokens that chat templates use as variables, by the beginnings of their keys."""
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_END_TEXTS = {
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|endoftext|>", "</s>", "<EOT>",
    "<|end_of_text|>", "<|return|>", "<|call|>", "<|END_OF_TURN_TOKEN|>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
}  # fmt: skip
"""Control tokens that end a text in some model, whatever its file says."""
_HARMONY = frozenset({"<|return|>", "<|call|>"})
"""Ends of text in gpt-oss, in which `<|end|>` is only the end of a message."""


class Vocabulary:
    """Tokens, their types and how text becomes them."""

    def __init__(self, metadata: GgufMetadata) -> None:
        """Read and check the tokens.

        Raises:
            CheckpointError: they contradict each other; the message names the key.
        """
        self._metadata = metadata
        named = metadata.strings(_PREFIX + "tokens")
        self._tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(named)]
        self._ids = {token: index for index, token in enumerate(self._tokens)}
        if len(self._ids) != len(self._tokens):
            raise CheckpointError(f"{_PREFIX}tokens has a token twice")

    def tokenizer(self) -> Tokenizer:
        """Return a tokenizer of the caller's own.

        Raises:
            CheckpointError: its kind is not supported; the message names it.
        """
        model = self._metadata.text(_PREFIX + "model")
        if model == "gpt2":
            tokenizer = self._byte_level()
        elif model == "llama":
            tokenizer = self._sentencepiece()
        else:
            raise CheckpointError(f"{_PREFIX}model {model!r} is not supported; 'gpt2' and 'llama' are")
        tokenizer.add_special_tokens([AddedToken(each, normalized=False) for each in self._of_type(_CONTROL)])
        tokenizer.add_tokens([AddedToken(each, normalized=False) for each in self._of_type(_USER_DEFINED)])
        self._surround(tokenizer)
        return tokenizer

    def ends(self) -> tuple[int, ...]:
        """Return the tokens that end a text: those that the file names, and control tokens known to do so."""
        named = [self._id(key) for key in _END_KEYS]
        control = {*self._of_type(_CONTROL)}
        texts = control & _END_TEXTS
        if control >= _HARMONY:
            texts -= {"<|end|>"}
        first = [token for token in named if token is not None]
        others = sorted(self._ids[text] for text in texts)
        return tuple(dict.fromkeys(first + others))

    def named(self) -> dict[str, str]:
        """Return the texts of tokens that chat templates use as variables."""
        found = {name: self._id(f"{key}_token_id") for name, key in _NAMED.items()}
        return {name: self._tokens[token] for name, token in found.items() if token is not None}

    def _byte_level(self) -> Tokenizer:
        split = self._split
        tokenizer = Tokenizer(self._model(self._merges(), ignore_merges=split.ignore_merges))
        if split.nfc:
            tokenizer.normalizer = normalizers.NFC()
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _sentencepiece(self) -> Tokenizer:
        for token in self._of_type(_BYTE):
            if not _BYTE_TOKEN.fullmatch(token):
                raise CheckpointError(f"{_PREFIX}tokens: {token!r} is marked as a byte and is none")
        unknown = self._id("unknown_token_id", 0)
        assert unknown is not None
        tokenizer = Tokenizer(
            self._model(self._scored_merges(), byte_fallback=True, fuse_unk=True, unk_token=self._tokens[unknown])
        )
        prefix = self._metadata.flag(_PREFIX + "add_space_prefix", True)
        spaces = normalizers.Replace(" ", _SPACE)
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefix else spaces
        parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if prefix else parts)
        return tokenizer

    def _model(self, merges: Sequence[tuple[str, str]], **options: object) -> models.BPE:
        try:
            return models.BPE(self._ids, merges, **options)
        except Exception as error:  # the library raises nothing more exact
            raise CheckpointError(f"{_PREFIX}merges: {error}") from error

    def _merges(self) -> list[tuple[str, str]]:
        merges = []
        for merge in self._metadata.strings(_PREFIX + "merges"):
            first, _, second = merge.partition(" ")
            if not first or not second or " " in second:
                raise CheckpointError(f"{_PREFIX}merges: {merge!r} is not two tokens with a space between them")
            merges.append((first, second))
        return merges

    def _scored_merges(self) -> list[tuple[str, str]]:
        """Return the merges that the tokens' scores imply: the token with the highest score is merged first."""
        scores = self._metadata.numbers(_PREFIX + "scores", len(self._tokens))
        ids, merges = self._ids, []
        for index in np.argsort(-scores.astype(np.float64), kind="stable").tolist():
            token = self._tokens[index]
            merges += [
                (first, second)
                for cut in range(1, len(token))
                if (first := token[:cut]) in ids and (second := token[cut:]) in ids
            ]
        return merges

    def _surround(self, tokenizer: Tokenizer) -> None:
        """Have a text begin with BOS and end with EOS where the file or its kind of vocabulary says so."""
        sentencepiece = self._metadata.text(_PREFIX + "model") == "llama"
        bos = self._metadata.flag(_PREFIX + "add_bos_token", sentencepiece or self._split.bos)
        eos = self._metadata.flag(_PREFIX + "add_eos_token", False)
        ends = {}
        for name, wanted in (("bos", bos), ("eos", eos)):
            token = self._id(f"{name}_token_id")
            if wanted and token is not None:
                ends[name] = (self._tokens[token], token)
        if ends:
            single = [ends["bos"][0]] if "bos" in ends else []
            single += ["$A", *([ends["eos"][0]] if "eos" in ends else [])]
            tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=[*ends.values()])

    @cached_property
    def _split(self) -> TextSplit:
        key = _PREFIX + "pre"
        if key not in self._metadata:
            logger.warning(
                "%s is missing: text may be split in a wrong way; fetch a newer conversion of this model", key
            )
        name = self._metadata.text(key, DEFAULT)
        if name not in SPLITS:
            raise CheckpointError(f"{key} {name!r} is not supported; these are: {', '.join(SPLITS)}")
        return SPLITS[name]

    def _of_type(self, kind: int) -> list[str]:
        return [self._tokens[index] for index in np.flatnonzero(self._types == kind).tolist()]

    @cached_property
    def _types(self) -> np.ndarray:
        return self._metadata.numbers(_PREFIX + "token_type", len(self._tokens))

    def _id(self, key: str, default: int | None = None) -> int | None:
        full = _PREFIX + key
        if full not in self._metadata:
            return default
        token = self._metadata.integer(full)
        if not 0 <= token < len(self._tokens):
            raise CheckpointError(f"{full} is {token}; the vocabulary has {len(self._tokens)} tokens")
        return token
