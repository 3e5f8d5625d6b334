"""The attention plan of a step: its rows and their block tables, made once and read by every layer of one window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.attention.groups import Groups, group_rows

Int32s = npt.NDArray[np.int32]


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
    _host: tuple[Int32s, Int32s, Int32s] | None
    """The three tensors on the host; None if they change on the device, within the limits."""
    _limits: tuple[int, int] | None = None
    _groups: Groups | None = None

    @property
    def max_query_len(self) -> int:
        """An upper bound of the counts."""
        return self._limits[0] if self._limits else int(self._known()[1].max())

    @property
    def max_seq_len(self) -> int:
        """An upper bound of the lengths of the rows' sequences."""
        if self._limits:
            return self._limits[1]
        starts, counts, _ = self._known()
        return int((starts + counts).max())

    def groups(self, key_cache: torch.Tensor, dtype: torch.dtype) -> Groups:
        """Groups of rows that share a call of the fast path in plain torch, worked out when it first asks."""
        if self._groups is None:
            starts, counts, tables = (array.astype(np.int64) for array in self._known())
            self._groups = group_rows(starts, counts, tables, self.window, key_cache, dtype)
        return self._groups

    def _known(self) -> tuple[Int32s, Int32s, Int32s]:
        """
        Raises:
            RuntimeError: it is a fixed plan, which only a built body can follow.
        """
        if self._host is None:
            raise RuntimeError("plain torch cannot follow an attention plan that changes on the device")
        return self._host


def plan_attention(
    starts: Int32s, counts: Int32s, tables: Int32s, *, window: int | None, device: torch.device
) -> AttentionPlan:
    """The plan of a batch from int32 arrays on the host, which must stay as they are: on the CPU they are not copied.

    Neighbours of equal counts and similar starts are faster where the plain torch body serves.
    """
    host = (starts, counts, tables)
    on_device = [torch.from_numpy(array).to(device) for array in host]
    return AttentionPlan(on_device[0], on_device[1], on_device[2], window, host)


def fixed_plan(
    starts: torch.Tensor,
    counts: torch.Tensor,
    tables: torch.Tensor,
    *,
    window: int | None,
    max_query_len: int,
    max_seq_len: int,
) -> AttentionPlan:
    """A plan whose tensors are overwritten from step to step, for steps that are recorded and replayed.

    No count may exceed `max_query_len`, and no sequence `max_seq_len` tokens. See `attention_is_built`.
    """
    return AttentionPlan(starts, counts, tables, window, None, (max_query_len, max_seq_len))
