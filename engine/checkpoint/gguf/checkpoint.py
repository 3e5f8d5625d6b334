"""A GGUF file, or several that a model was split into, as a checkpoint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.gguf.config import architecture_of, stored_config
from engine.checkpoint.gguf.metadata import GgufMetadata
from engine.checkpoint.gguf.names import ROPE_TENSORS, checkpoint_names
from engine.checkpoint.gguf.parts import PART, parts_of
from engine.checkpoint.gguf.reader import GgufFile, TensorPlace
from engine.checkpoint.gguf.types import Bytes
from engine.checkpoint.gguf.vocabulary import Vocabulary
from engine.checkpoint.source import ModelCheckpoint, StoredTensor

_SAMPLE_BYTES = 4096
_ROTATED = re.compile(r"blk\.\d+\.attn_([qk])\.(?:weight|bias)")


class GgufCheckpoint(ModelCheckpoint):
    """A model in GGUF. All that is read of it is checked: a file is a stranger's."""

    def __init__(self, path: Path) -> None:
        """Read the headers.

        Raises:
            CheckpointError: a file cannot be read, contradicts itself, or holds something else than a model that the
                engine serves; the message names the field.
        """
        super().__init__(path)
        self._files = [GgufFile(path)]
        self._metadata = GgufMetadata(self._files[0].metadata)
        with named(path):
            self._architecture = architecture_of(self._metadata)
            self._files += [GgufFile(each) for each in _other_parts(path, self._metadata)]
            self._places = _places(self._files)

    @cached_property
    def config(self) -> ModelConfig:
        with named(self.path):
            places = {name: place for name, (_, place) in self._places.items()}
            vocabulary = len(self._metadata.strings("tokenizer.ggml.tokens"))
            stored = stored_config(self._metadata, places, vocabulary, self._rope_tensors())
            # What is added to the weights of norms is in them already.
            return replace(ModelConfig.from_stored(stored, self.eos_token_ids), norm_offset=0.0)

    @property
    def context(self) -> int:
        return self.config.max_position_embeddings

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        with named(self.path):
            return self._vocabulary.ends()

    @cached_property
    def revision(self) -> str:
        """Covers the headers byte for byte, and of each tensor the first 4 KiB."""
        hasher = hashlib.blake2b(digest_size=16, person=b"gguf")
        for file in self._files:
            hasher.update(file.header.data)
            for place in file.tensors.values():
                hasher.update(file.data(place).reshape(-1)[:_SAMPLE_BYTES].data)
        return hasher.hexdigest()

    @property
    def weight_bytes(self) -> int:
        return sum(file.size for file in self._files)

    @property
    def quantised(self) -> bool:
        return any(place.type.values > 1 for _, place in self._places.values())

    def tensors(self) -> Iterator[StoredTensor]:
        with named(self.path):
            for name, (file, place) in self._places.items():
                if name not in ROPE_TENSORS:
                    yield from self._stored(name, place, file.data(place))

    def tokenizer(self) -> Tokenizer:
        with named(self.path):
            return self._vocabulary.tokenizer()

    @cached_property
    def templates(self) -> Mapping[str, str]:
        key = "tokenizer.chat_template"
        with named(self.path):
            others = [name.removeprefix(".") for name in self._metadata.under(key) if name.startswith(".")]
            found = {name: self._metadata.text(f"{key}.{name}") for name in others}
            return found | ({"default": self._metadata.text(key)} if key in self._metadata else {})

    @property
    def special_tokens(self) -> Mapping[str, str]:
        with named(self.path):
            return self._vocabulary.named()

    @property
    def generation(self) -> Mapping[str, Any]:
        return {}

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self._metadata)

    def _stored(self, name: str, place: TensorPlace, data: Bytes) -> Iterator[StoredTensor]:
        experts = self.config.experts
        names = checkpoint_names(name, experts, self.config.expert_names, self._architecture.modules)
        if names is None:
            raise CheckpointError(f"unexpected tensor {name!r}; the model has none of this name")
        if not place.type.finite(data):
            raise CheckpointError(f"tensor {name!r} has scales that are infinite or not a number")
        if len(names) == 1:
            rows = in_halves(name, data, self.config) if self._architecture.rotary_pairs else data
            yield StoredTensor(names[0], place.type.name, place.shape, rows)
            return
        if place.shape[0] != experts:
            raise CheckpointError(f"tensor {name!r} stacks {place.shape[0]} experts where the model has {experts}")
        for expert, part in zip(names, data, strict=True):
            yield StoredTensor(expert, place.type.name, place.shape[1:], part)

    def _rope_tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        found = {}
        for name in ROPE_TENSORS:
            if name in self._places:
                file, place = self._places[name]
                if place.type.name != "f32" or len(place.shape) != 1:
                    raise CheckpointError(f"tensor {name!r} is not a list of F32")
                found[name] = file.data(place).view(np.float32)
        return found


def in_halves(name: str, data: Bytes, config: ModelConfig) -> Bytes:
    """Put rows of query and key projections in the order in which a rotation's two values are half a head apart.

    Within each head row 2i becomes row i, and row 2i + 1 row i + half a head. Other tensors stay as they are.

    Raises:
        CheckpointError: the tensor has another number of rows.
    """
    rotated = _ROTATED.fullmatch(name)
    if rotated is None:
        return data
    heads = config.heads if rotated[1] == "q" else config.kv_heads
    pairs = config.head_dim // 2
    rows = heads * pairs * 2
    if data.size % rows:
        raise CheckpointError(f"tensor {name!r} does not have the {rows} rows of {heads} heads")
    return data.reshape(heads, pairs, 2, -1).swapaxes(1, 2).reshape(data.shape)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Have errors begin with the file's name."""
    try:
        yield
    except CheckpointError as error:
        begin = f"{path.name}: "
        raise error if str(error).startswith(begin) else CheckpointError(begin + str(error)) from error


def _other_parts(path: Path, metadata: GgufMetadata) -> list[Path]:
    """Return the other files of a split model, of which the first has to be named."""
    count = metadata.integer("split.count", 1)
    if count <= 1:
        return []
    part = PART.fullmatch(path.name)
    if part is None or int(part[3]) != count:
        raise CheckpointError(
            f"it is one of {count} parts; all have to keep their names, ending in -00001-of-{count:05}"
        )
    if int(part[2]) != 1:
        raise CheckpointError(f"it is a part of a model; name the first one, {part[1]}-00001-of-{part[3]}.gguf")
    return parts_of(path)[1:]


def _places(files: list[GgufFile]) -> dict[str, tuple[GgufFile, TensorPlace]]:
    places: dict[str, tuple[GgufFile, TensorPlace]] = {}
    for number, file in enumerate(files):
        if len(files) > 1 and GgufMetadata(file.metadata).integer("split.no") != number:
            raise CheckpointError(f"split.no of {file.path.name} is not {number}; the parts are in a wrong order")
        for name, place in file.tensors.items():
            if name in places:
                raise CheckpointError(f"tensor {name!r} is in two parts")
            places[name] = file, place
    total = GgufMetadata(files[0].metadata).integer("split.tensors.count", len(places))
    if total != len(places):
        raise CheckpointError(f"its parts have {len(places)} tensors where {total} are promised; is one missing?")
    return places
