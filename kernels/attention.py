"""What attention needs to know of a step's rows, made once and read by every layer of one window."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from kernels.reference.attention_groups import Groups, group_rows

Ints = npt.NDArray[np.int32]


@dataclass(slots=True)
class AttentionPlan:
    """A batch whose row i runs tokens `[starts[i], starts[i] + counts[i])` of its sequence.

    The rows' tokens lie in the batch one row behind the other.
    """

    starts: torch.Tensor
    counts: torch.Tensor
    """[rows] int32, on the device as are the tables."""
    tables: torch.Tensor
    """[rows, width] int32, the numbers of each row's blocks in a layer's caches; those past its length mean nothing."""
    window: int | None
    """How many positions a query sees, itself included; None is all."""
    _host: tuple[Ints, Ints, Ints]
    _groups: Groups | None = field(default=None)

    @property
    def most(self) -> int:
        """The largest of the counts."""
        return int(self._host[1].max())

    @property
    def longest(self) -> int:
        """The length of the longest row's sequence."""
        return int((self._host[0] + self._host[1]).max())

    def groups(self, key_cache: torch.Tensor, dtype: torch.dtype) -> Groups:
        """The same for the plain torch body, worked out when it first asks."""
        if self._groups is None:
            starts, counts, tables = (array.astype(np.int64) for array in self._host)
            block_size, heads, dim = key_cache.shape[1:]
            self._groups = group_rows(
                starts,
                counts,
                tables,
                block_size=block_size,
                block_bytes=2 * block_size * heads * dim * key_cache.itemsize,
                window=self.window,
                device=key_cache.device,
                dtype=dtype,
            )
        return self._groups


def plan_attention(
    starts: Ints, counts: Ints, tables: Ints, *, window: int | None, device: torch.device
) -> AttentionPlan:
    """The plan of a batch from int32 arrays on the host, which must stay as they are: on the CPU they are not copied.

    Neighbours of equal counts and similar starts are faster where the plain torch body serves.
    """
    host = (starts, counts, tables)
    on_device = [torch.from_numpy(array).to(device) for array in host]
    return AttentionPlan(on_device[0], on_device[1], on_device[2], window, host)
