"""A folder in Hugging Face format as a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Any

from tokenizers import Tokenizer

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.files import revision_digest, stored_tensors, weight_files
from engine.checkpoint.parts import join_parts
from engine.checkpoint.quantization import StoredQuantization, read_quantization
from engine.checkpoint.source import ModelCheckpoint, StoredTensor
from engine.checkpoint.stored_config import read_eos_token_ids


class FolderCheckpoint(ModelCheckpoint):
    """What transformers' `save_pretrained` writes: JSON files, a tokenizer, and weights in safetensors files."""

    @cached_property
    def config(self) -> ModelConfig:
        return ModelConfig.from_directory(self.path)

    @property
    def context(self) -> int:
        context = self._json("config.json").get("max_position_embeddings")
        if not isinstance(context, int):
            raise CheckpointError(f"{self.path / 'config.json'}: max_position_embeddings is missing")
        return context

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return read_eos_token_ids(self.path)

    @cached_property
    def revision(self) -> str:
        return revision_digest(self.path)

    @property
    def weight_bytes(self) -> int:
        return sum(file.stat().st_size for file in weight_files(self.path))

    @property
    def quantised(self) -> bool:
        return self._quantization is not None

    def tensors(self) -> Iterator[StoredTensor]:
        tensors = chain.from_iterable(map(stored_tensors, weight_files(self.path)))
        return tensors if self._quantization is None else join_parts(tensors, self._quantization)

    def tokenizer(self) -> Tokenizer:
        file = self.path / "tokenizer.json"
        if not file.is_file():
            raise CheckpointError(f"{file}: not found; save the tokenizer in the fast (tokenizers) format")
        try:
            return Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing more exact
            raise CheckpointError(f"{file}: {error}") from error

    @cached_property
    def templates(self) -> Mapping[str, str]:
        """Those in `chat_template.jinja`, `chat_templates/*.jinja` and tokenizer_config.json."""
        inline = self._tokenizer_config.get("chat_template") or {}
        if isinstance(inline, str):
            inline = {"default": inline}
        elif isinstance(inline, list):
            inline = {entry["name"]: entry["template"] for entry in inline}
        files = {path.stem: path.read_text("utf-8") for path in (self.path / "chat_templates").glob("*.jinja")}
        if (path := self.path / "chat_template.jinja").is_file():
            files["default"] = path.read_text("utf-8")
        return {**inline, **files}

    @cached_property
    def special_tokens(self) -> Mapping[str, str]:
        tokens: dict[str, str] = {}
        for name, value in self._tokenizer_config.items():
            content = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(content, str):
                tokens[name] = content
        return tokens

    @cached_property
    def generation(self) -> Mapping[str, Any]:
        return self._json("generation_config.json", missing_ok=True)

    @cached_property
    def _quantization(self) -> StoredQuantization | None:
        raw = self._json("config.json", missing_ok=True).get("quantization_config")
        return None if raw is None else read_quantization(raw)

    @cached_property
    def _tokenizer_config(self) -> Mapping[str, Any]:
        return self._json("tokenizer_config.json", missing_ok=True)

    def _json(self, name: str, missing_ok: bool = False) -> dict[str, Any]:
        path = self.path / name
        if not path.is_file():
            if missing_ok:
                return {}
            raise CheckpointError(f"{path} does not exist; name a folder in Hugging Face format or a GGUF file")
        try:
            content = json.loads(path.read_text("utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path}: not valid JSON: {error}") from error
        if not isinstance(content, dict):
            raise CheckpointError(f"{path}: a JSON object is expected")
        return content
