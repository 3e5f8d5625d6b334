"""Small tokenizers of every family that the engine serves, written as checkpoints write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ["<unk>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = """\
{{ bos_token }}{% for message in messages %}
{%- if message.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('unknown role') }}{% endif %}
{{- '<|' + message.role + '|>' }}
{{ message.content | trim }}<|end|>
{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"""

_CORPUS = [
    "The quick brown fox jumps over the lazy dog. A roundhouse sends every arriving job to the right locomotive!",
    "What is the answer to 12 + 30? It is 42, isn't it. def main(): return [x for x in range(10)]",
    "Grüße aus Köln, größer als gedacht. Où est la bibliothèque? ¿Dónde está? Привет, как дела?",
    "你好世界。今天天气很好。こんにちは世界。안녕하세요 세계.",
    "<think>thinking</think> hello hello hello world world",
]


def byte_level() -> Tokenizer:
    """GPT-2, Llama 3, Qwen: BPE over bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_tokens(["<think>", "</think>"])
    return tokenizer


def llama2() -> Tokenizer:
    """Llama 2, Mistral, TinyLlama: sentencepiece BPE with a leading space and byte fallback."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL + bytes_, limit_alphabet=80, show_progress=False
    )
    trained.train_from_iterator(_CORPUS, trainer)
    # Byte tokens are part of the vocabulary, not special ones: build the tokenizer anew without them as such.
    model = json.loads(trained.to_str())["model"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=model["vocab"],
            merges=[tuple(pair) for pair in model["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = trained.normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def _unigram_vocabulary() -> list[tuple[str, float]]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False, max_piece_length=8
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]


def unigram() -> Tokenizer:
    """Gemma's and T5's kin: a unigram model with byte fallback and Metaspace."""
    pieces = _unigram_vocabulary() + [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def metaspace_never() -> Tokenizer:
    """Metaspace that adds no leading space and strips none."""
    tokenizer = Tokenizer(models.Unigram(_unigram_vocabulary(), unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def words() -> Tokenizer:
    """No decoder at all: words, joined by spaces."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "llama2": llama2,
    "unigram": unigram,
    "metaspace-never": metaspace_never,
    "words": words,
}


def write_tokenizer(directory: Path, tokenizer: Tokenizer, template: str = TEMPLATE, context: int = 2048) -> Path:
    """Write what `TextProcessor.from_path` and transformers' AutoTokenizer read."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (directory / "tokenizer_config.json").write_text(json.dumps(config | tokens))
    (directory / "chat_template.jinja").write_text(template)
    model = {"model_type": "llama", "max_position_embeddings": context, "eos_token_id": 2}
    (directory / "config.json").write_text(json.dumps(model))
    return directory
