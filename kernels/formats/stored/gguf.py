"""Unpack rules of GGUF's block types, one function each, as ggml-common.h of llama.cpp lays the blocks out.

Bytes come as [outputs, blocks, bytes of a block]. "Halves": byte i holds weight i in its low four bits and weight
i + 16 in its high ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.formats.quantized import SPAN, QuantizedWeight

_TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the numbers of IQ4_NL and IQ4_XS stand for."""
_TWICE_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice what the numbers of MXFP4 stand for."""
PLAIN = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
"""Types that are stored as they are computed with."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """How the weights of one type are stored."""

    inputs: int
    """Weights in a block."""
    bytes: int
    """Bytes of a block."""
    unpack: Callable[[torch.Tensor], QuantizedWeight]
    """Rule that reads blocks [outputs, blocks, bytes]."""


def unpack(stored_type: str, rows: torch.Tensor) -> QuantizedWeight:
    """Read rows [outputs, bytes of a row] uint8 of a type of `TYPES`."""
    block = TYPES[stored_type]
    return block.unpack(torch.unflatten(rows, 1, (-1, block.bytes)))


def dense(stored_type: str, rows: torch.Tensor) -> torch.Tensor:
    """Read rows [outputs, bytes of a row] uint8 of any type -> [outputs, inputs], in fp32 if that type is quantised."""
    if stored_type in PLAIN:
        return rows.contiguous().view(PLAIN[stored_type])
    return unpack(stored_type, rows).dense()


def _fp16(blocks: torch.Tensor, begin: int, count: int = 1) -> torch.Tensor:
    """Numbers in fp16 from a place of each block on -> [outputs, blocks, count]."""
    return blocks[..., begin : begin + 2 * count].contiguous().view(torch.float16)


def _digits(packed: torch.Tensor, run: int) -> torch.Tensor:
    """The low four bits of each `run` bytes, then their high ones."""
    runs = torch.unflatten(packed, -1, (-1, run))
    return torch.stack((runs & 15, runs >> 4), -2).flatten(-3)


def _fields(packed: torch.Tensor, run: int, bits: int) -> torch.Tensor:
    """The lowest `bits` bits of each `run` bytes, then the next ones, up to the highest."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)[:, None]
    return (torch.unflatten(packed, -1, (-1, 1, run)) >> shifts & (1 << bits) - 1).flatten(-3)


def _fifth_bits(blocks: torch.Tensor, begin: int) -> torch.Tensor:
    """16 where a weight has the fifth bit, of 32 in a row -> [outputs, blocks, 32]."""
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)
    return ((blocks[..., begin : begin + 4, None] >> shifts & 1) << 4).flatten(-2)


def _four_bits(blocks: torch.Tensor, *, offset: bool) -> QuantizedWeight:
    """Q4_0 and Q4_1."""
    numbers = _digits(blocks[..., 4 if offset else 2 :], 16).flatten(1)
    return _flat(numbers, 4, blocks, offset=offset)


def _five_bits(blocks: torch.Tensor, *, offset: bool) -> QuantizedWeight:
    """Q5_0 and Q5_1."""
    begin = 4 if offset else 2
    numbers = _digits(blocks[..., begin + 4 :], 16) | _fifth_bits(blocks, begin)
    return _flat(numbers.flatten(1), 5, blocks, offset=offset)


def _flat(numbers: torch.Tensor, bits: int, blocks: torch.Tensor, *, offset: bool) -> QuantizedWeight:
    """Numbers of groups of 32, whose scale is at the begin of the block; behind it the offset, if there is one."""
    zero = 8 if bits == 4 else 16
    scales = _fp16(blocks, 0)[..., 0]
    if offset:
        return QuantizedWeight(numbers, bits, 32, scales, _fp16(blocks, 2)[..., 0])
    return QuantizedWeight(numbers, bits, 32, scales, zeros=zero)


def _q8_0(blocks: torch.Tensor) -> QuantizedWeight:
    return QuantizedWeight(blocks[..., 2:].contiguous().view(torch.int8).flatten(1), 8, 32, _fp16(blocks, 0)[..., 0])


def _q2_k(blocks: torch.Tensor) -> QuantizedWeight:
    factors = blocks[..., :16].flatten(1)
    numbers = _fields(blocks[..., 16:80], 32, 2).flatten(1)
    return _super(numbers, 4, 16, factors & 15, factors >> 4, _fp16(blocks, 80, 2))


def _q3_k(blocks: torch.Tensor) -> QuantizedWeight:
    high = _fields(blocks[..., :32], 32, 1) << 2
    numbers = _fields(blocks[..., 32:96], 32, 2) | high
    low, rest = _digits(blocks[..., 96:104], 8), _fields(blocks[..., 104:108], 4, 2)
    factors = ((low | rest << 4).to(torch.int8) - 32).flatten(1)
    return QuantizedWeight(numbers.flatten(1), 4, 16, factors, zeros=4, steps=_fp16(blocks, 108))


def _q4_k(blocks: torch.Tensor) -> QuantizedWeight:
    return _super(_digits(blocks[..., 16:], 32).flatten(1), 4, 32, *_six_bit_factors(blocks), _fp16(blocks, 0, 2))


def _q5_k(blocks: torch.Tensor) -> QuantizedWeight:
    numbers = _digits(blocks[..., 48:], 32) | _fields(blocks[..., 16:48], 32, 1) << 4
    return _super(numbers.flatten(1), 5, 32, *_six_bit_factors(blocks), _fp16(blocks, 0, 2))


def _six_bit_factors(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The eight scales and the eight minima of Q4_K and Q5_K -> [outputs, groups] each."""
    scale, least, high = torch.unflatten(blocks[..., 4:16], -1, (3, 4)).unbind(-2)
    scales = torch.cat((scale & 63, high & 15 | scale >> 2 & 48), -1)
    return scales.flatten(1), torch.cat((least & 63, high >> 4 | least >> 2 & 48), -1).flatten(1)


def _super(
    numbers: torch.Tensor, bits: int, group: int, scales: torch.Tensor, minima: torch.Tensor, steps: torch.Tensor
) -> QuantizedWeight:
    """Numbers with scales and minima, the products of which with the second step are subtracted."""
    signs = torch.tensor((1, -1), dtype=steps.dtype, device=steps.device)
    return QuantizedWeight(numbers, bits, group, scales, minima, steps=steps * signs)


def _q6_k(blocks: torch.Tensor) -> QuantizedWeight:
    low = _digits(blocks[..., :128], 64)
    numbers = low | _fields(blocks[..., 128:192], 32, 2) << 4
    scales = blocks[..., 192:208].contiguous().view(torch.int8).flatten(1)
    return QuantizedWeight(numbers.flatten(1), 6, 16, scales, zeros=32, steps=_fp16(blocks, 208))


def _iq4_nl(blocks: torch.Tensor) -> QuantizedWeight:
    numbers = _digits(blocks[..., 2:], 16).flatten(1)
    return QuantizedWeight(numbers, 4, 32, _fp16(blocks, 0)[..., 0], table=_table(_TABLE, blocks))


def _mxfp4(blocks: torch.Tensor) -> QuantizedWeight:
    numbers = _digits(blocks[..., 1:], 16).flatten(1)
    # The stored scale is 2^(e - 127); its half goes with the table. bf16 has all of them.
    scales = (blocks[..., 0].double() - 128).exp2().bfloat16()
    return QuantizedWeight(numbers, 4, 32, scales, table=_table(_TWICE_FP4, blocks))


def _iq4_xs(blocks: torch.Tensor) -> QuantizedWeight:
    high, low = _fields(blocks[..., 2:4], 1, 2), _digits(blocks[..., 4:8], 1)
    factors = (low | high << 4).to(torch.int8) - 32
    numbers = _digits(blocks[..., 8:], 16).flatten(1)
    return QuantizedWeight(numbers, 4, 32, factors.flatten(1), steps=_fp16(blocks, 0), table=_table(_TABLE, blocks))


def _table(values: tuple[int, ...], blocks: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=blocks.device)


TYPES = {
    "q4_0": BlockType(32, 18, lambda blocks: _four_bits(blocks, offset=False)),
    "q4_1": BlockType(32, 20, lambda blocks: _four_bits(blocks, offset=True)),
    "q5_0": BlockType(32, 22, lambda blocks: _five_bits(blocks, offset=False)),
    "q5_1": BlockType(32, 24, lambda blocks: _five_bits(blocks, offset=True)),
    "q8_0": BlockType(32, 34, _q8_0),
    "q2_k": BlockType(SPAN, 84, _q2_k),
    "q3_k": BlockType(SPAN, 110, _q3_k),
    "q4_k": BlockType(SPAN, 144, _q4_k),
    "q5_k": BlockType(SPAN, 176, _q5_k),
    "q6_k": BlockType(SPAN, 210, _q6_k),
    "iq4_nl": BlockType(32, 18, _iq4_nl),
    "iq4_xs": BlockType(SPAN, 136, _iq4_xs),
    "mxfp4": BlockType(32, 17, _mxfp4),
}
"""Quantised types by their names in small letters."""
NUMBERS = {name: number for number, name in enumerate(TYPES) if name != "mxfp4"}
"""Types that compiled bodies read, as kernels/csrc/cpu/stored_blocks.h numbers them."""
