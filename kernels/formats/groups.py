"""What the layouts of weights with a scale per group of inputs have in common: `Levels`, of four bits, and `Bytes`.

Both are blocks of 16 outputs, each a row of records along the inputs. A record is a header, with what its groups'
numbers are multiplied with, and behind it the numbers; both begin at multiples of 64 bytes.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F

from kernels import library
from kernels.formats import tiles
from kernels.formats.quantized import SPAN, QuantizedWeight
from kernels.formats.tiles import BLOCK
from kernels.formats.weight import PackedWeight, multiply

LINE = 128
"""Inputs of a record; `SPAN` where scales are multiplied with steps. Groups are not longer."""
_SCALES = (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8)
"""Types of scales, in the order of `ScaleType` in kernels/csrc/cpu/linear.h."""
_ALIGNMENT = 64
_ROWS = 4096
"""Outputs that are unpacked at a time, so that their numbers, a byte each, stay small."""


class Field(NamedTuple):
    """A part of a record's header: for each of its places 16 numbers, one of each output."""

    places: int
    """Places in a record: one per group, or one or two of steps."""
    dtype: torch.dtype
    """Type of the numbers."""

    @property
    def nbytes(self) -> int:
        return self.places * BLOCK * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class GroupedWeight(PackedWeight):
    """A `QuantizedWeight` in records."""

    group: int
    """Consecutive inputs of an output that share a scale."""
    number: torch.dtype
    """Type of the numbers."""
    fields: dict[str, Field]
    """Header of a record in its order: those of "steps", "scales", "offsets" and "zeros" that are there."""
    zero: int
    """Number that stands for 0 in all groups, where these have no zeros of their own."""
    table: torch.Tensor | None
    """[16] fp32, what each number stands for; None: itself."""
    order: torch.Tensor | None
    """[inputs] int64, the input that each column belongs to; None: its own."""

    @classmethod
    def pack(cls, outputs: int, unpack: Callable[[slice], QuantizedWeight], dtype: torch.dtype) -> Self:
        """Pack what `unpack` gives for ranges of outputs, for activations of type `dtype`."""
        first = unpack(slice(0, min(_ROWS, outputs)))
        packed = cls._empty(outputs, first, dtype)
        packed._fill(0, first)
        for begin in range(_ROWS, outputs, _ROWS):
            packed._fill(begin, unpack(slice(begin, min(begin + _ROWS, outputs))))
        return packed

    @classmethod
    def _empty(cls, outputs: int, stored: QuantizedWeight, dtype: torch.dtype) -> Self:
        inputs, group = stored.numbers.shape[1], min(stored.group, LINE)
        if LINE % group or stored.group % group:
            raise ValueError(f"groups of {stored.group} inputs are neither a multiple nor a divisor of {LINE}")
        places = (LINE if stored.steps is None else SPAN) // group
        fields = {} if stored.steps is None else {"steps": Field(stored.steps.shape[-1], stored.steps.dtype)}
        fields["scales"] = Field(places, stored.scales.dtype)
        if stored.offsets is not None:
            fields["offsets"] = Field(places, stored.offsets.dtype)
        zero = 0
        if isinstance(stored.zeros, torch.Tensor):
            fields["zeros"] = Field(places, stored.zeros.dtype)
        else:
            zero = stored.zeros
        nothing = torch.empty(0, dtype=torch.uint8)
        number = stored.numbers.dtype
        packed = cls(outputs, inputs, dtype, nothing, group, number, fields, zero, stored.table, stored.order)
        blocks = -(-outputs // BLOCK)
        data = tiles.empty(blocks * packed._records * packed._record_bytes, stored.numbers.device)
        return dataclasses.replace(packed, data=data)

    def _fill(self, begin: int, stored: QuantizedWeight) -> None:
        """Pack the outputs from `begin` on, which is where a block begins."""
        outputs = len(stored.numbers)
        blocks, records = -(-outputs // BLOCK), self._records
        to = self.data.view(-1, records, self._record_bytes)[begin // BLOCK :][:blocks]
        at = 0
        for name, field in self.fields.items():
            values: torch.Tensor = getattr(stored, name).flatten(1)
            if name != "steps" and stored.group > self.group:
                values = values.repeat_interleave(stored.group // self.group, 1)[:, : records * field.places]
            missing = records * field.places - values.shape[1]
            whole = F.pad(values, (0, missing, 0, blocks * BLOCK - outputs)).view(blocks, BLOCK, records, field.places)
            to[..., at : at + field.nbytes] = whole.permute(0, 2, 3, 1).contiguous().view(torch.uint8).flatten(2)
            at += field.nbytes
        to[..., at : self._header_bytes] = 0
        numbers = stored.numbers.view(torch.uint8)
        missing = records * self._span - self.inputs
        numbers = F.pad(numbers, (0, missing, 0, blocks * BLOCK - outputs)).view(blocks, BLOCK, records, -1, LINE)
        to[..., self._header_bytes :] = self._lines(numbers.permute(0, 2, 3, 1, 4)).flatten(2)

    def stored(self) -> QuantizedWeight:
        """What was packed, with groups of `LINE` at most."""
        records = self.data.view(-1, self._records, self._record_bytes)
        parts: dict[str, torch.Tensor] = {}
        at = 0
        for name, field in self.fields.items():
            values = records[..., at : at + field.nbytes].contiguous().view(field.dtype)
            whole = values.view(len(records), self._records, field.places, BLOCK).permute(0, 3, 1, 2)
            parts[name] = whole.flatten(0, 1)[: self.outputs]
            at += field.nbytes
        groups = -(-self.inputs // self.group)
        steps = parts.pop("steps", None)
        parts = {name: values.flatten(1)[:, :groups] for name, values in parts.items()}
        lines = torch.unflatten(records[..., self._header_bytes :], 2, (self._span // LINE, -1))
        numbers = self._numbers(lines).permute(0, 3, 1, 2, 4).flatten(2).flatten(0, 1)
        return QuantizedWeight(
            numbers[: self.outputs, : self.inputs].contiguous().view(self.number),
            self.bits,
            self.group,
            steps=steps,
            table=self.table,
            order=self.order,
            scales=parts["scales"],
            offsets=parts.get("offsets"),
            zeros=parts.get("zeros", self.zero),
        )

    def dense(self) -> torch.Tensor:
        return self.stored().dense().to(self.dtype)

    def __call__(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        body = library.of(x, "linear_groups")
        if body is None or x.dtype not in library.TYPES or not self._built:
            return multiply(x, self.dense(), bias, out_dtype)
        if self.order is not None:
            x = x[:, self.order]
        steps, scales = self.fields.get("steps"), self.fields["scales"]
        return tiles.run(
            body.linear_groups,
            x,
            self.outputs,
            out_dtype,
            self.data,
            self.table,
            bias,
            layout=(
                self.bits,
                self.group,
                0 if steps is None else steps.places,
                _SCALES.index(scales.dtype),
                "offsets" in self.fields,
                "zeros" in self.fields,
                self.zero,
            ),
        )

    @property
    def _built(self) -> bool:
        """Whether the compiled body reads this layout."""
        offsets = self.fields.get("offsets")
        return (
            self.number != torch.float8_e4m3fn
            and self.group in (16, 32, 64, 128)
            and (offsets is None or offsets.dtype == self.fields["scales"].dtype)
            and ("steps" not in self.fields or self.inputs % SPAN == 0)
        )

    def can_join(self, other: PackedWeight) -> bool:
        """Whether `join` takes both: one layout throughout, and no block of outputs that is not full."""
        return (
            type(other) is type(self)
            and self.outputs % BLOCK == 0
            and _equal(self.order, other.order)
            and _equal(self.table, other.table)
            and all(
                getattr(self, name) == getattr(other, name)
                for name in ("inputs", "dtype", "group", "number", "fields", "zero")
            )
        )

    @property
    @abstractmethod
    def bits(self) -> int:
        """Bits of a number."""

    @abstractmethod
    def _lines(self, numbers: torch.Tensor) -> torch.Tensor:
        """Numbers uint8 [blocks, records, lines, 16 outputs, 128 inputs] -> their bytes [blocks, records, ...]."""

    @abstractmethod
    def _numbers(self, lines: torch.Tensor) -> torch.Tensor:
        """Undo `_lines` for bytes [blocks, records, lines, bytes of a line's 16 outputs]."""

    @property
    def _span(self) -> int:
        return SPAN if "steps" in self.fields else LINE

    @property
    def _records(self) -> int:
        """Records of a block."""
        return -(-self.inputs // self._span)

    @property
    def _header_bytes(self) -> int:
        return -(-sum(field.nbytes for field in self.fields.values()) // _ALIGNMENT) * _ALIGNMENT

    @property
    def _record_bytes(self) -> int:
        return self._header_bytes + self._span * BLOCK * self.bits // 8


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))


def join(weights: Sequence[GroupedWeight]) -> GroupedWeight:
    """One weight with the outputs of all, in order; see `GroupedWeight.can_join`."""
    data = tiles.empty(sum(one.data.nbytes for one in weights), weights[0].data.device)
    torch.cat([one.data for one in weights], out=data)
    return dataclasses.replace(weights[0], outputs=sum(one.outputs for one in weights), data=data)
