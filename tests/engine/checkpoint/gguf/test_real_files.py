"""Token ids of real files equal llama.cpp's on 200,000 tokens of documents, sources and awkward text."""

from __future__ import annotations

import os
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.checkpoint.opening import open_checkpoint

ROOT = Path(__file__).parents[4]
FOLDER = os.environ.get("ROUNDHOUSE_TEST_MODELS")
TOKENS = 200_000
pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(FOLDER is None, reason="ROUNDHOUSE_TEST_MODELS names no folder with GGUF files"),
]
FILES = sorted(Path(FOLDER).glob("*.gguf")) if FOLDER else [Path("none")]
_AWKWARD = [
    " ", "  ", "\t", "\n", "\n\n1.", "\r\n", "12", "3.14", "'s", "'LL", "\u00e9", "\u00df", "\u0928\u092e\u0938\u094d",
    "\u4f60\u597d", "\ud55c\uae00", "\U0001f600", "\u00a0", "\u3000", "\u200d", "\u2167", "\u00bd", "a_b", "</x>", "--",
    "\u0130", "\ufb01", "\uff8a\uff9f", "\u0301", "\u0663", "  x", "if (a)\n\t{",
]  # fmt: skip


def texts() -> Iterator[str]:
    """Documents and sources of this repository, then random pieces of awkward text."""
    for pattern in ("docs/*.md", "engine/**/*.py", "kernels/csrc/**/*.cpp", "gateway/http/static/**/*.js"):
        for path in sorted(ROOT.glob(pattern)):
            yield path.read_text()
    draw = random.Random(0)
    while True:
        letters = [chr(draw.randrange(32, 0x2FFF)) for _ in range(20)]
        yield "".join(draw.choices([*_AWKWARD, *letters, "word", " word", "Word"], k=400))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_token_ids_equal_llama_cpp_s(path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    ours = open_checkpoint(path).tokenizer()
    compared = 0
    for text in texts():
        # llama.cpp never composes, and takes "</s>" for a control token even where the file says that it is none.
        composed = unicodedata.normalize("NFC", text).replace("</s>", "")
        expected = theirs.tokenize(composed.encode(), add_bos=False, special=True)
        assert ours.encode(composed, add_special_tokens=False).ids == expected
        compared += len(expected)
        if compared >= TOKENS:
            break


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_tensor_has_a_place_in_the_model(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    layers = {name.split(".")[2] for tensor in checkpoint.tensors() if (name := tensor.name).startswith("model.layers")}
    assert layers == {str(layer) for layer in range(checkpoint.config.layers)}
