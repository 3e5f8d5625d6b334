"""Random Llama checkpoints and adapters to measure with, written once into a cache folder outside the repository."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from transformers import LlamaConfig


class LlamaSizes(msgspec.Struct, frozen=True):
    """Sizes of a Llama; names as in its config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int

    @property
    def read_parameters(self) -> int:
        """Weights that every decode step reads: all but the embedding, of which it reads a row per request."""
        head_dim = self.hidden_size // self.num_attention_heads
        attention = self.hidden_size * head_dim * 2 * (self.num_attention_heads + self.num_key_value_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        return self.num_hidden_layers * (attention + mlp) + self.hidden_size * self.vocab_size

    @property
    def kv_elements(self) -> int:
        """Elements of the KV cache per token."""
        head_dim = self.hidden_size // self.num_attention_heads
        return 2 * self.num_hidden_layers * self.num_key_value_heads * head_dim


SHAPES = {
    "S": LlamaSizes(288, 1536, 6, 6, 6, 8192),
    "L": LlamaSizes(2048, 5632, 22, 32, 4, 32000),
    "6M": LlamaSizes(256, 832, 6, 8, 2, 4096),
    "18M": LlamaSizes(512, 1280, 6, 16, 4, 4096),
    "mini": LlamaSizes(128, 256, 2, 4, 2, 320),
}
"""S has 15 million parameters, L is TinyLlama-1.1B; mini is for tests of the benchmark itself. The others read so many
weights per step."""

LLAMA_2 = {
    "7B": LlamaSizes(4096, 11008, 32, 32, 32, 32000),
    "13B": LlamaSizes(5120, 13824, 40, 40, 40, 32000),
    "70B": LlamaSizes(8192, 28672, 80, 64, 8, 32000),
}
"""Llama 2's sizes, for devices that make up the weights themselves."""

_SEED = 20
_SPECIAL = ("<unk>", "<s>", "</s>")
_CONTEXT = 2048


def cache_folder() -> Path:
    """Return the folder of checkpoints: `$ROUNDHOUSE_BENCH_CACHE`, or a folder in the user's cache."""
    given = os.environ.get("ROUNDHOUSE_BENCH_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "roundhouse" / "bench"


def checkpoint(name: str, folder: Path) -> Path:
    """Return the directory of the random checkpoint of `SHAPES[name]`, made in bf16 if it is not there yet."""
    shape = SHAPES[name]
    directory = folder / ("-".join([name, *(str(size) for size in msgspec.structs.astuple(shape)), str(_SEED)]))
    if directory.exists():
        if not (directory / "tokenizer.json").exists():
            _write_tokenizer(shape, directory)
        return directory
    partial = directory.with_name(f"{directory.name}.{os.getpid()}.partial")
    _write(shape, partial)
    try:
        partial.rename(directory)
    except OSError:  # another run has made it meanwhile
        shutil.rmtree(partial)
    return directory


def directory_of(model: str) -> Path:
    """Return the directory of a random checkpoint, if `model` names one of `SHAPES`, else the one that it is."""
    return checkpoint(model, cache_folder()) if model in SHAPES else Path(model)


def config_alone(name: str, shape: LlamaSizes, folder: Path) -> Path:
    """Return a directory with nothing but the config.json of a shape."""
    directory = folder / "-".join(["config", name, *(str(size) for size in msgspec.structs.astuple(shape))])
    directory.mkdir(parents=True, exist_ok=True)
    _config(shape).save_pretrained(directory)
    return directory


def adapters(base: Path, count: int, *, rank: int) -> list[Path]:
    """Return folders of random LoRA adapters for a checkpoint, on attention's four products; made if not there yet."""
    from bench.random_adapters import ATTENTION, write_adapter

    folders = [base.with_name(f"{base.name}-adapters") / f"rank-{rank}-{seed}" for seed in range(count)]
    for seed, folder in enumerate(folders):
        if not folder.exists():
            partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
            write_adapter(partial, base, rank=rank, seed=seed, modules=ATTENTION)
            partial.rename(folder)
    return folders


def _write(shape: LlamaSizes, directory: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(_SEED)
    # Random numbers are the same in fp32 and need not be held twice.
    model = AutoModelForCausalLM.from_config(_config(shape), dtype=torch.bfloat16)
    model.save_pretrained(directory)
    _write_tokenizer(shape, directory)


def _config(shape: LlamaSizes) -> LlamaConfig:
    import torch
    from transformers import LlamaConfig

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        **msgspec.structs.asdict(shape),
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=_SPECIAL.index("<s>"),
        eos_token_id=_SPECIAL.index("</s>"),
        # Larger than a trained model's, so that logits differ enough for greedy tokens to be told apart.
        initializer_range=0.05,
        dtype=torch.bfloat16,
    )


def _write_tokenizer(shape: LlamaSizes, directory: Path) -> None:
    """Write a tokenizer with the model's vocabulary and no merges, which peers' converters need."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pieces += [f"t{number}" for number in range(len(pieces), shape.vocab_size)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    unknown, begin, end = _SPECIAL
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=unknown, bos_token=begin, eos_token=end)
    fast.save_pretrained(directory)
