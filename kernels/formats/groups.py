"""What the layouts of weights with a scale per group of inputs have in common: `Levels`, of four bits, and `Bytes`.

Both are blocks of 16 outputs, each a row of records along the inputs. A record is a header, with what its groups'
numbers are multiplied with, and behind it the numbers; both begin at multiples of 64 bytes. They lie in lines of 128
inputs, of which a digit is a quarter. Half a line is enough for the last inputs if they are 64 or fewer.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F

from kernels import library
from kernels.formats import tiles
from kernels.formats.quantized import SPAN, QuantizedWeight
from kernels.formats.stored import StoredRows, Unpack, gguf
from kernels.formats.tiles import BLOCK
from kernels.formats.weight import PackedWeight, multiply
from kernels.registry import register

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

    bits: int
    """Bits of a number: 4, 5, 6 or 8."""
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
    def pack(cls, parts: Sequence[Self], rules: Sequence[Unpack]) -> Self:
        """Pack what rules give for the outputs of `parts`, each of which `can_join` the one before it."""
        outputs = sum(part.outputs for part in parts)
        data = tiles.empty(-(-outputs // BLOCK) * parts[0]._block_bytes, rules[0](slice(0, 1)).numbers.device)
        begin = 0
        for part, rule in zip(parts, rules, strict=True):
            dataclasses.replace(part, data=data[begin:])._fill_with(rule)
            begin += -(-part.outputs // BLOCK) * part._block_bytes
        return dataclasses.replace(parts[0], outputs=outputs, data=data)

    def _fill_with(self, unpack: Unpack) -> None:
        """Pack what a rule gives for all outputs."""
        body = library.of(self.data, "pack_blocks")
        if body is not None and isinstance(unpack, StoredRows) and unpack.type in gguf.NUMBERS:
            data = self.data[: -(-self.outputs // BLOCK) * self._block_bytes]
            body.pack_blocks(data, unpack.rows, self.inputs, gguf.NUMBERS[unpack.type])
            return
        for begin in range(0, self.outputs, _ROWS):
            self._fill(begin, unpack(slice(begin, min(begin + _ROWS, self.outputs))))

    @classmethod
    def unpacked(cls, outputs: int, stored: QuantizedWeight, dtype: torch.dtype) -> Self:
        """A weight without `data`, of `stored`'s layout, for activations of type `dtype`.

        Raises:
            ValueError: groups of inputs are of a length that no layout has.
        """
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
        return cls(
            *(outputs, inputs, dtype, nothing, stored.bits, group, number, fields, zero, stored.table, stored.order)
        )

    def _fill(self, begin: int, stored: QuantizedWeight) -> None:
        """Pack the outputs from `begin` on, which is where a block begins."""
        outputs = len(stored.numbers)
        blocks = -(-outputs // BLOCK)
        data = self.data[begin // BLOCK * self._block_bytes :][: blocks * self._block_bytes].view(blocks, -1)
        records = -(-self.inputs // self._span)
        fields = {}
        for name, field in self.fields.items():
            values: torch.Tensor = getattr(stored, name).flatten(1)
            if name != "steps" and stored.group > self.group:
                values = values.repeat_interleave(stored.group // self.group, 1)[:, : records * field.places]
            missing = records * field.places - values.shape[1]
            padded = F.pad(values, (0, missing, 0, blocks * BLOCK - outputs)).view(blocks, BLOCK, records, field.places)
            fields[name] = padded.permute(0, 2, 3, 1).contiguous().view(torch.uint8).flatten(2)
        missing = records * self._span - self.inputs
        numbers = F.pad(stored.numbers.view(torch.uint8), (0, missing, 0, blocks * BLOCK - outputs))
        for first, count, span, to in self._parts(data):
            at = 0
            for values in fields.values():
                to[..., at : at + values.shape[2]] = values[:, first : first + count]
                at += values.shape[2]
            to[..., at : self._header_bytes] = 0
            of_part = numbers[:, first * self._span :][:, : count * span]
            lines = of_part.reshape(blocks, BLOCK, count, -1, min(span, LINE)).permute(0, 2, 3, 1, 4)
            to[..., self._header_bytes :] = self._lines(lines).flatten(2)

    def stored(self) -> QuantizedWeight:
        """What was packed, with groups of `LINE` at most."""
        headers, numbers = [], []
        for _, count, span, records in self._parts(self.data.view(-1, self._block_bytes)):
            headers.append(records[..., : self._header_bytes])
            lines = torch.unflatten(records[..., self._header_bytes :], 2, (-(-span // LINE), -1))
            of_part = self._numbers(lines).permute(0, 3, 1, 2, 4)
            numbers.append(of_part.reshape(-1, count * span))
        header = torch.cat(headers, 1)
        parts: dict[str, torch.Tensor] = {}
        at = 0
        for name, field in self.fields.items():
            values = header[..., at : at + field.nbytes].contiguous().view(field.dtype)
            whole = values.view(*header.shape[:2], field.places, BLOCK).permute(0, 3, 1, 2)
            parts[name] = whole.flatten(0, 1)[: self.outputs]
            at += field.nbytes
        groups = -(-self.inputs // self.group)
        steps = parts.pop("steps", None)
        parts = {name: values.flatten(1)[:, :groups] for name, values in parts.items()}
        return QuantizedWeight(
            torch.cat(numbers, 1)[: self.outputs, : self.inputs].contiguous().view(self.number),
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
        return self.write(x, bias, x.new_empty(x.shape[0], self.outputs, dtype=out_dtype))

    def write(self, x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> torch.Tensor:
        """Multiply as `__call__` does into out [T, outputs], contiguous but for its rows."""
        body = library.of(x, "linear_groups")
        if body is None or x.dtype not in library.TYPES or not self._built:
            return out.copy_(multiply(x, self.dense(), bias, out.dtype))
        if self.order is not None:
            x = x[:, self.order]
        return tiles.run_into(out, body.linear_groups, x, self.data, self.table, bias, layout=self._layout)

    @property
    def _layout(self) -> tuple[int, ...]:
        """What the compiled body is told of records: `GroupLayout` in kernels/csrc/cpu/linear.h."""
        steps = self.fields.get("steps")
        return (
            self.bits,
            self.number == torch.float8_e4m3fn,
            self.group,
            0 if steps is None else steps.places,
            _SCALES.index(self.fields["scales"].dtype),
            "offsets" in self.fields,
            "zeros" in self.fields,
            self.zero,
        )

    @property
    def _built(self) -> bool:
        """Whether the compiled body reads this layout."""
        offsets = self.fields.get("offsets")
        return (
            not (self.number == torch.float8_e4m3fn and (self.zero or "zeros" in self.fields))
            and self.group in (16, 32, 64, 128)
            and (offsets is None or offsets.dtype == self.fields["scales"].dtype)
            and ("steps" not in self.fields or self.inputs % SPAN == 0)
        )

    def can_join(self, other: PackedWeight) -> bool:
        """Whether both can be one weight: one layout throughout, and all blocks of outputs of this one are full."""
        return (
            type(other) is type(self)
            and self.outputs % BLOCK == 0
            and _equal(self.order, other.order)
            and _equal(self.table, other.table)
            and all(
                getattr(self, name) == getattr(other, name)
                for name in ("inputs", "dtype", "bits", "group", "number", "fields", "zero")
            )
        )

    @abstractmethod
    def _lines(self, numbers: torch.Tensor) -> torch.Tensor:
        """Numbers uint8 [blocks, records, lines, 16 outputs, inputs] -> their bytes [blocks, records, ...]."""

    @abstractmethod
    def _numbers(self, lines: torch.Tensor) -> torch.Tensor:
        """Undo `_lines` for bytes [blocks, records, lines, bytes of a line's 16 outputs]."""

    @property
    def _span(self) -> int:
        return SPAN if "steps" in self.fields else LINE

    @property
    def _ends_with_half(self) -> bool:
        """Whether the last record has half a line."""
        return self._span == LINE and 0 < self.inputs % LINE <= LINE // 2

    def _parts(self, blocks: torch.Tensor) -> list[tuple[int, int, int, torch.Tensor]]:
        """Records of one size in bytes [blocks, bytes of one]: the first, their count, inputs of each, their bytes."""
        whole = -(-self.inputs // self._span) - self._ends_with_half
        end = whole * self._record_bytes(self._span)
        parts = [(0, whole, self._span, blocks[:, :end].view(len(blocks), whole, -1))] if whole else []
        return [*parts, (whole, 1, LINE // 2, blocks[:, None, end:])] if self._ends_with_half else parts

    @property
    def _block_bytes(self) -> int:
        whole = -(-self.inputs // self._span) - self._ends_with_half
        return whole * self._record_bytes(self._span) + self._ends_with_half * self._record_bytes(LINE // 2)

    @property
    def _header_bytes(self) -> int:
        return -(-sum(field.nbytes for field in self.fields.values()) // _ALIGNMENT) * _ALIGNMENT

    def _record_bytes(self, inputs: int) -> int:
        return self._header_bytes + inputs * BLOCK * self.bits // 8


register(
    "linear_groups(Tensor x, Tensor records, Tensor? table, Tensor? bias, int outputs, int[] layout, "
    "ScalarType? out_dtype=None) -> Tensor",
    lambda x, data, table, bias, outputs, layout, out_dtype=None: tiles.run_into(
        x.new_empty(len(x), outputs, dtype=out_dtype),
        library.required(x).linear_groups,
        *(x, data, table, bias),
        layout=tuple(layout),
    ),
    fake=lambda x, data, table, bias, outputs, layout, out_dtype=None: x.new_empty(len(x), outputs, dtype=out_dtype),
    cost=PackedWeight.cost,
    built=("cpu",),
)


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))
