"""Reads a checkpoint's safetensors files into tensors that the model has already laid out.

The model says for every tensor of the checkpoint where it goes (a view into a packed weight, for example); this module
copies, and refuses whatever does not fit by name. Files are mapped into memory, so that a tensor is read once and the
page cache is all that is used twice. No other file format is read: pickled checkpoints can run code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.files import weight_files

_STORED = (torch.float32, torch.bfloat16, torch.float16)
_DERIVED = re.compile(r"\.rotary_emb\.inv_freq$")
"""Names of tensors that old Llama checkpoints store although they follow from the config."""


def load_weights(
    directory: Path,
    groups: Sequence[dict[str, torch.Tensor]],
    *,
    ignored: Set[str] = frozenset(),
    begin: Callable[[int], dict[str, torch.Tensor] | None] = lambda group: None,
    complete: Callable[[int], None] = lambda group: None,
) -> None:
    """Copy every tensor of the checkpoint into its target, converting to the target's dtype and device.

    Args:
        groups: targets of what belongs together, checkpoint name -> tensor of the same shape; each is forgotten as soon
            as it is filled.
        ignored: names that may appear although the model has no use for them.
        begin: called with the number of a group before its first tensor is copied; may give it targets with memory,
            where those of `groups` have none.
        complete: called with the number of a group that has become whole.

    Raises:
        CheckpointError: a file or tensor is missing, or a tensor is unexpected, misshaped or of a quantised type.
    """
    groups = list(groups)
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    untouched = set(range(len(groups)))
    for name, tensor in _tensors(directory):
        number = group_of.get(name)
        if number is None:
            if name in ignored or _DERIVED.search(name):
                continue
            raise CheckpointError(
                f"{directory}: unexpected tensor {name!r}; the weights do not belong to this config.json"
            )
        if number in untouched:
            untouched.remove(number)
            groups[number] = begin(number) or groups[number]
        target = groups[number].pop(name, None)
        if target is None:
            raise CheckpointError(f"{directory}: tensor {name!r} is in two files; is there an old shard among them?")
        if tensor.shape != target.shape:
            raise CheckpointError(
                f"{directory}: tensor {name!r} has shape {list(tensor.shape)} where config.json implies "
                f"{list(target.shape)}"
            )
        if tensor.dtype not in _STORED:
            raise CheckpointError(
                f"{directory}: tensor {name!r} is stored as {tensor.dtype}; store float32, bfloat16 or float16"
            )
        target.copy_(tensor)
        del target
        if not groups[number]:
            complete(number)
    missing = sorted(name for group in groups for name in group)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{directory}: missing tensor {missing[0]!r}{more}; is a shard missing from the index?")


def _tensors(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for path in weight_files(directory):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    yield name, file.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{path} is not a valid safetensors file: {error}; fetch it again") from error
