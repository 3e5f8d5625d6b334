"""Reads a checkpoint's tensors into what the model has already laid out.

The model says for every tensor of the checkpoint where it goes (a view into a packed weight, for example); this module
copies, and refuses whatever does not fit by name. Weights that are quantised are not read but kept as they are stored,
for who packs them. Files are mapped into memory, so that a tensor is read once and the page cache is all that is used
twice. No pickled checkpoints are read: they can run code.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path

import torch

import kernels
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.source import StoredTensor
from kernels import StoredRows, StoredWeight, Unpack

_DERIVED = re.compile(r"\.rotary_emb\.inv_freq$")
"""Names of tensors that old Llama checkpoints store although they follow from the config."""


class WeightPart:
    """Where a tensor goes that may be quantised: its numbers into `dense`, or what reads them as they are stored."""

    __slots__ = ("dense", "unpack")

    def __init__(self, dense: torch.Tensor) -> None:
        self.dense = dense
        """Memory for the numbers [outputs, inputs], which the system gives once they are written."""
        self.unpack: Unpack | None = None
        """Rule that reads outputs of a quantised tensor; None: the tensor is in `dense`."""

    @property
    def shape(self) -> torch.Size:
        return self.dense.shape

    @property
    def stored(self) -> tuple[torch.Tensor, Unpack | None]:
        """What `kernels.pack_stacked` packs."""
        return self.dense, self.unpack


class Embedding:
    """The table of tokens' embeddings; rows that are quantised are unpacked as tokens come."""

    __slots__ = ("_scale", "_table", "part")

    def __init__(self, table: torch.Tensor) -> None:
        self.part = WeightPart(table)
        self._table = table
        self._scale = 1.0

    def pack(self, scale: float) -> None:
        """Fold in what embeddings are multiplied with, once the head has been packed, which may be the same table."""
        self._scale = scale
        stored = self.part.unpack
        if isinstance(stored, StoredRows):
            # A copy: a mapped file that somebody truncates would end the process.
            rows = stored.rows.to(stored.device, copy=True)
            self.part.unpack = StoredRows(stored.type, rows, stored.device)
            self._table = self.part.dense = self._table[:0].clone()  # on a GPU it took memory, although never written
        else:
            if stored is not None:  # several tensors, which are not read by rows
                self._table.copy_(stored(slice(None)).dense())
                self.part.unpack = None
            self._table = self.part.dense if scale == 1 else self.part.dense * scale

    def dense(self) -> torch.Tensor:
        """The whole table [vocabulary, hidden] as the checkpoint has it."""
        if self.part.unpack is None:
            return self._table / self._scale
        return self.part.unpack(slice(None)).dense().to(self._table.dtype)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.part.unpack is None:
            return kernels.embedding(tokens, self._table)
        if isinstance(self.part.unpack, StoredRows):
            return kernels.quantized_embedding(tokens, self.part.unpack, self._scale, self._table.dtype)
        return (self.part.unpack(tokens).dense() * self._scale).to(self._table.dtype)


Target = torch.Tensor | WeightPart
Targets = dict[str, Target]


def load_weights(
    path: Path,
    tensors: Iterable[StoredTensor],
    groups: Sequence[Targets],
    *,
    ignored: Set[str] = frozenset(),
    begin: Callable[[int], Targets | None] = lambda group: None,
    complete: Callable[[int], None] = lambda group: None,
) -> None:
    """Copy every tensor of the checkpoint at `path` into its target, converting to the target's dtype and device.

    Args:
        groups: targets of what belongs together, by the checkpoint's names; each is forgotten as soon as it is filled.
        ignored: names that may appear although the model has no use for them.
        begin: called with the number of a group before its first tensor is copied; may give it targets with memory,
            where those of `groups` have none.
        complete: called with the number of a group that has become whole.

    Raises:
        CheckpointError: a file or tensor is missing, or a tensor is unexpected, misshaped or of a type that cannot be
            served.
    """
    groups = list(groups)
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    untouched = set(range(len(groups)))
    for stored in tensors:
        name = stored.name
        number = group_of.get(name)
        if number is None:
            if name in ignored or _DERIVED.search(name):
                continue
            if name.endswith(".bias") and not stored.data.any():
                continue  # AutoGPTQ writes biases of zeros for layers that have none
            raise CheckpointError(f"{path}: unexpected tensor {name!r}; the weights do not belong to this config.json")
        if number in untouched:
            untouched.remove(number)
            groups[number] = begin(number) or groups[number]
        target = groups[number].pop(name, None)
        if target is None:
            raise CheckpointError(f"{path}: tensor {name!r} is in two files; is there an old shard among them?")
        _fill(path, target, stored)
        del target
        if not groups[number]:
            complete(number)
    missing = sorted(name for group in groups for name in group)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{path}: missing tensor {missing[0]!r}{more}; is a shard missing from the index?")


def _fill(path: Path, target: Target, stored: StoredTensor) -> None:
    """Copy a tensor, or have a `WeightPart` unpack it."""
    device = target.device if isinstance(target, torch.Tensor) else target.dense.device
    weight = _read_parts(path, stored, device) if stored.parts else None
    shape = stored.shape if weight is None else weight.shape
    if shape != target.shape:
        raise CheckpointError(
            f"{path}: tensor {stored.name!r} has shape {list(shape)} where config.json implies {list(target.shape)}"
        )
    if weight is None and stored.type not in kernels.STORED_TYPES:
        raise CheckpointError(
            f"{path}: tensor {stored.name!r} is stored as {stored.type}; store float32, bfloat16 or float16"
        )
    if stored.type in kernels.PLAIN:
        to = target if isinstance(target, torch.Tensor) else target.dense
        to.copy_(kernels.stored_numbers(stored.type, _bytes(stored)).view(to.shape))
        return
    if isinstance(target, WeightPart):
        target.unpack = StoredRows(stored.type, _bytes(stored), device) if weight is None else weight
    elif weight is None:
        target.copy_(kernels.stored_numbers(stored.type, _bytes(stored)).view(target.shape))
    else:
        target.copy_(weight(slice(None)).dense())


def _read_parts(path: Path, stored: StoredTensor, device: torch.device) -> StoredWeight:
    try:
        parts = {name: kernels.typed(part.type, _bytes(part), part.shape) for name, part in stored.parts.items()}
        return kernels.read_parts(stored.type, parts, device, stored.block)
    except ValueError as error:
        raise CheckpointError(f"{path}: tensor {stored.name!r} ({stored.type}): {error}") from error


def _bytes(stored: StoredTensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(stored.data)
