"""Text becomes the tokens of the tokenizer that the file was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.gguf.metadata import GgufMetadata
from engine.checkpoint.gguf.reader import GgufFile
from engine.checkpoint.gguf.vocabulary import Vocabulary
from engine.text.processor import TextProcessor
from tests.engine.checkpoint.gguf.miniature import add_vocabulary, change_keys, write_gguf
from tests.engine.conftest import Checkpoint
from tests.engine.tokenizer_zoo import TEMPLATE, byte_level, llama2, write_tokenizer

TEXTS = st.text(max_size=80) | st.lists(
    st.sampled_from(["<|user|>", "<think>", " ", "  ", "\n", "hello", "world", "12", "Grüße", "你好", "'s", "<0x41>"])
).map("".join)
FAMILIES = {"byte-level": byte_level, "sentencepiece": llama2}


def vocabulary_of(path: Path, tokenizer: Tokenizer, keys: dict[str, Any] | None = None, **options: Any) -> Vocabulary:
    writer = gguf.GGUFWriter(path, "llama")
    add_vocabulary(writer, tokenizer, tokenizer.get_vocab_size(), **options)
    change_keys(writer, keys or {})
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Vocabulary(GgufMetadata(GgufFile(path).metadata))


@pytest.fixture(scope="module", params=FAMILIES)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer]:
    """Our tokenizer of a file, and the one that the file was made from."""
    theirs = FAMILIES[request.param]()
    return vocabulary_of(tmp_path_factory.mktemp("vocabulary") / "a.gguf", theirs).tokenizer(), theirs


@given(text=TEXTS)
def test_the_tokens_are_the_original_s(both: tuple[Tokenizer, Tokenizer], text: str) -> None:
    ours, theirs = (each.encode(text, add_special_tokens=False).ids for each in both)
    assert ours == theirs
    assert both[0].decode(ours) == both[1].decode(theirs)


def test_special_tokens_are_the_original_s(both: tuple[Tokenizer, Tokenizer]) -> None:
    ours, theirs = ({id: (str(t), t.special) for id, t in each.get_added_tokens_decoder().items()} for each in both)
    assert ours == theirs


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [1]),
        ({"tokenizer.ggml.add_bos_token": False}, []),
        ({"tokenizer.ggml.add_eos_token": True}, [1, 2]),
        ({"tokenizer.ggml.bos_token_id": None}, []),
    ],
)
def test_what_stands_around_a_text_is_as_the_file_says(
    tmp_path: Path, keys: dict[str, Any], expected: list[int]
) -> None:
    """Sentencepiece's vocabularies begin a text with BOS unless told otherwise."""
    assert vocabulary_of(tmp_path / "a.gguf", llama2(), keys).tokenizer().encode("").ids == expected


@pytest.mark.parametrize(("pre", "expected"), [("gpt-2", []), ("llama-bpe", [1]), ("tekken", [1])])
def test_some_byte_level_vocabularies_begin_with_bos(tmp_path: Path, pre: str, expected: list[int]) -> None:
    assert vocabulary_of(tmp_path / "a.gguf", byte_level(), pre=pre).tokenizer().encode("").ids == expected


def test_qwen_s_text_is_composed_first(tmp_path: Path) -> None:
    qwen = vocabulary_of(tmp_path / "a.gguf", byte_level(), pre="qwen2").tokenizer()
    assert qwen.encode("e\u0301").ids == qwen.encode("\u00e9").ids


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "a1234 b", ["a", "1234", " b"]),
        ("smollm", "a12\n\n1. b", ["a", "1", "2", "\n\n", "1", ".", " b"]),
        ("llama-bpe", "I'LL 1234\n\n  x", ["I", "'LL", " ", "123", "4", "\n\n", " ", " x"]),
        ("qwen2", "I'LL 12\n\n  x", ["I", "'LL", " ", "1", "2", "\n\n", " ", " x"]),
        ("tekken", "fooBar/\n12", ["foo", "Bar", "/\n", "1", "2"]),
        ("gpt-4o", "fooBar's 1234", ["foo", "Bar's", " ", "123", "4"]),
        ("deepseek-v3", "1234 你好 x.y", ["123", "4", " ", "你好", " x", ".y"]),
        ("deepseek-llm", "Ab 12\n你好", ["Ab", " ", "12", "\n", "你好"]),
        ("deepseek-coder", "Ab 12\n你好", ["Ab", " ", "1", "2", "\n", "你好"]),
        ("qwen35", "नमस्ते 12", ["नमस्ते", " ", "1", "2"]),
        ("default", "f(x) = 12345;  y", ["f", "(", "x", ")", " ", "=", " ", "123", "45", ";", " ", " y"]),
    ],
)
def test_text_is_split_as_the_models_own_tokenizers_do(tmp_path: Path, pre: str, text: str, pieces: list[str]) -> None:
    tokenizer = vocabulary_of(tmp_path / "a.gguf", byte_level(), pre=pre).tokenizer()
    split = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in split] == pieces


def test_a_file_that_does_not_say_how_is_split_by_default_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unnamed = vocabulary_of(tmp_path / "a.gguf", byte_level(), {"tokenizer.ggml.pre": None}).tokenizer()
    assert "tokenizer.ggml.pre is missing: text may be split in a wrong way; fetch a newer conversion" in caplog.text
    named = vocabulary_of(tmp_path / "b.gguf", byte_level(), pre="default").tokenizer()
    assert unnamed.to_str() == named.to_str()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tokenizer.ggml.pre": "bloom"}, "tokenizer.ggml.pre 'bloom' is not supported; these are: default, gpt-2"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model 'bert' is not supported"),
        ({"tokenizer.ggml.merges": ["a b c"]}, "'a b c' is not two tokens"),
        ({"tokenizer.ggml.merges": ["ab"]}, "'ab' is not two tokens"),
        ({"tokenizer.ggml.merges": ["zzz qqq"]}, "tokenizer.ggml.merges: "),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "tokenizer.ggml.tokens has a token twice"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.bos_token_id": -1}, "bos_token_id is -1"),
    ],
)
def test_a_byte_level_vocabulary_that_cannot_be_used_is_named(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        vocabulary_of(tmp_path / "a.gguf", byte_level(), {"tokenizer.ggml.add_bos_token": True} | keys).tokenizer()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tokenizer.ggml.scores": [0.0]}, "scores has 1 entries"),
        ({"tokenizer.ggml.scores": [float("nan")] * 500}, "scores has"),
        ({"tokenizer.ggml.unknown_token_id": 100_000}, "unknown_token_id is 100000"),
        ({"tokenizer.ggml.token_type": [6] * 500}, "token_type|is marked as a byte and is none"),
    ],
)
def test_a_sentencepiece_vocabulary_that_cannot_be_used_is_named(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        vocabulary_of(tmp_path / "a.gguf", llama2(), keys).tokenizer()


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        ([], {2}),
        (["<|im_end|>", "<|endoftext|>"], {2, 3, 4}),
        (["<|end|>"], {2, 3}),
        (["<|end|>", "<|return|>", "<|call|>"], {2, 4, 5}),
    ],
)
def test_the_ends_of_a_text_are_a_set(tmp_path: Path, control: list[str], expected: set[int]) -> None:
    """Where `<|return|>` and `<|call|>` end a text, `<|end|>` only ends a message."""
    keys = {
        "tokenizer.ggml.tokens": ["a", "b", "c", *control],
        "tokenizer.ggml.token_type": [1, 1, 3, *(3 for _ in control)],
    }
    assert {*vocabulary_of(tmp_path / "a.gguf", byte_level(), keys).ends()} == expected


def test_a_conversation_has_the_folder_s_tokens(checkpoint: Checkpoint, tmp_path: Path) -> None:
    tokenizer = byte_level()
    directory = checkpoint("llama", vocab_size=tokenizer.get_vocab_size())
    path = write_gguf(tmp_path / "a.gguf", directory, tokenizer=tokenizer)
    ours, theirs = TextProcessor.from_path(path), TextProcessor.from_path(write_tokenizer(tmp_path / "b", tokenizer))
    messages = [{"role": "user", "content": "hello <|end|> 12"}]
    assert ours.template_source() == theirs.template_source() == TEMPLATE
    assert ours.encode_chat(messages) == theirs.encode_chat(messages)
    assert (ours.context, ours.eos_token_ids) == (256, (2, 6))
