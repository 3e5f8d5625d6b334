"""Unpack rules of quantised weights in safetensors files, one function each, as the libraries that write them lay
several tensors out: numbers, scales and what else belongs to them.

Activations stay in 16 bits or more, also where a format asks for fewer: scales of activations are not read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.formats.groups import LINE
from kernels.formats.quantized import QuantizedWeight

_TYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8_e4m3": torch.float8_e4m3fn,
    "i64": torch.int64,
    "i32": torch.int32,
    "i8": torch.int8,
    "u8": torch.uint8,
}
"""Types of tensors in safetensors files that rules can read, by their names in small letters."""
_SCALES = (torch.float32, torch.float16, torch.bfloat16)
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Four bits of a word, counted from the lowest, that hold each of eight outputs."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A quantised weight of which the numbers are unpacked as they are asked for; a call gives some outputs."""

    shape: tuple[int, int]
    """Outputs and inputs."""
    bits: int
    """Bits of a number, 4 or 8."""
    numbers: Callable[[slice], torch.Tensor]
    """Reads the numbers [outputs, inputs] of a range of outputs, in the order in which they are stored."""
    scales: torch.Tensor
    """[outputs, groups], maybe expanded."""
    group: int
    """Consecutive inputs that share a scale, once they are in `order`."""
    zeros: torch.Tensor | int = 0
    """Number that stands for 0: the same for all groups, or [outputs, groups] int8."""
    order: torch.Tensor | None = None
    """[inputs] int64, inputs in the order in which groups are consecutive; None: their own."""
    table: torch.Tensor | None = None
    """[16] fp32, what each number stands for; None: itself."""

    def __call__(self, index: slice | torch.Tensor) -> QuantizedWeight:
        assert isinstance(index, slice)
        numbers = self.numbers(index).to(self.scales.device)
        return QuantizedWeight(
            numbers if self.order is None else numbers[:, self.order],
            self.bits,
            self.group,
            self.scales[index].contiguous(),
            zeros=self.zeros if isinstance(self.zeros, int) else self.zeros[index],
            table=self.table,
            order=self.order,
        )


class Parts(NamedTuple):
    """Tensors that store a weight together."""

    tensors: Mapping[str, torch.Tensor]
    """By the names that the format gives them; maybe mapped from the file."""
    block: tuple[int, int] | None
    """Outputs and inputs that share a scale, where the tensors do not say so."""
    device: torch.device
    """Where the weight is needed."""

    def get(self, name: str, *dtypes: torch.dtype, dim: int | None = None) -> torch.Tensor:
        """Return a tensor.

        Raises:
            ValueError: it is missing, or of another type or number of dimensions.
        """
        found = self.tensors.get(name)
        if found is None:
            raise ValueError(f"{name} is missing")
        if found.dtype not in dtypes:
            names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise ValueError(f"{name} is stored as {str(found.dtype).removeprefix('torch.')}; {names} is served")
        if dim is not None and found.dim() != dim:
            raise ValueError(f"{name} has {found.dim()} dimensions instead of {dim}")
        return found

    def scales(self, outputs: int, inputs: int, name: str) -> tuple[torch.Tensor, int]:
        """Read a scale for the whole weight, for each output, for groups of an output's inputs, or for blocks.

        Returns:
            Scales [outputs, groups] and the inputs of a group.
        """
        scales = self.get(name, *_SCALES).to(self.device)
        if scales.numel() == 1:
            return scales.reshape(1, 1).expand(outputs, 1), _all(inputs)
        if scales.dim() == 2 and self.block is not None and len(scales) != outputs:
            high, group = self.block
            _check_shape(name, scales, (-(-outputs // high), -(-inputs // group)))
            return scales.repeat_interleave(high, 0)[:outputs], group
        if len(scales) != outputs or scales.dim() > 2:
            raise ValueError(f"{name} has shape {list(scales.shape)}, which does not fit {outputs} outputs")
        scales = scales.reshape(outputs, -1)
        return scales, _group(inputs, scales.shape[1])


def typed(stored_type: str, data: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """View the bytes of one of the tensors that store a weight as what they are.

    Raises:
        ValueError: no format that is served has tensors of this type.
    """
    dtype = _TYPES.get(stored_type)
    if dtype is None:
        raise ValueError(f"it is stored as {stored_type}; no format that is served stores this")
    return data.reshape(-1).view(dtype).view(shape)


def read_parts(
    rule: str,
    tensors: Mapping[str, torch.Tensor],
    device: torch.device,
    block: tuple[int, int] | None = None,
) -> StoredWeight:
    """Read a weight that several tensors store, by one of `RULES`.

    Raises:
        ValueError: a tensor is missing, or does not fit the others, or stores what is not served.
    """
    weight = RULES[rule](Parts(tensors, block, device))
    if LINE % weight.group and weight.group % LINE:
        raise ValueError(f"groups of {weight.group} inputs are neither a multiple nor a divisor of {LINE}")
    return weight


def _gptq(parts: Parts, *, lowered: bool) -> StoredWeight:
    """GPTQ: words along the inputs; `lowered`: zeros are stored less 1, in each field of a word."""
    words, zeros = (parts.get(name, torch.int32, dim=2) for name in ("qweight", "qzeros"))
    scales = parts.get("scales", *_SCALES, dim=2).to(parts.device).T.contiguous()
    outputs, groups = scales.shape
    bits = 32 * zeros.shape[1] // outputs
    if bits not in (4, 8) or zeros.shape[1] != -(-outputs * bits // 32):
        raise ValueError(f"qzeros has shape {list(zeros.shape)}, which is neither 4 nor 8 bits for {outputs} outputs")
    inputs = len(words) * 32 // bits
    _check_shape("qweight", words, (len(words), outputs))
    _check_shape("qzeros", zeros, (groups, zeros.shape[1]))
    # Words are added, as they were subtracted: a field that was 0 has borrowed from the next one.
    if lowered:
        zeros = zeros + (0x11111111 if bits == 4 else 0x01010101)
    each = _fields(zeros.to(parts.device).contiguous(), bits)[:, :outputs].T.contiguous().view(torch.int8)
    group, order = _grouping(parts, "g_idx", inputs, groups)
    return StoredWeight(
        (outputs, inputs),
        bits,
        lambda rows: _fields(words[:, rows].T.contiguous(), bits),
        scales,
        group,
        zeros=_one_or_all(each),
        order=order,
    )


def _awq(parts: Parts) -> StoredWeight:
    """AWQ's "gemm" layout: words along the outputs, eight of them in an order of their own."""
    words, zeros = (parts.get(name, torch.int32, dim=2) for name in ("qweight", "qzeros"))
    scales = parts.get("scales", *_SCALES, dim=2).to(parts.device).T.contiguous()
    inputs, (outputs, groups) = len(words), scales.shape
    _check_shape("qweight", words, (inputs, outputs // 8))
    _check_shape("qzeros", zeros, (groups, outputs // 8))

    def numbers(rows: slice) -> torch.Tensor:
        begin, end, _ = rows.indices(outputs)
        first = begin // 8
        return _awq_fields(words[:, first : -(-end // 8)])[:, begin - 8 * first :][:, : end - begin].T.contiguous()

    each = _awq_fields(zeros.to(parts.device)).T.contiguous().view(torch.int8)
    return StoredWeight((outputs, inputs), 4, numbers, scales, _group(inputs, groups), zeros=_one_or_all(each))


def _packed(parts: Parts) -> StoredWeight:
    """compressed-tensors' "pack-quantized": words along the inputs, zeros packed along the outputs."""
    words = parts.get("weight_packed", torch.int32, dim=2)
    outputs, inputs = parts.get("weight_shape", torch.int64, torch.int32).tolist()
    bits = next((bits for bits in (4, 8) if words.shape == (outputs, -(-inputs * bits // 32))), None)
    if bits is None:
        raise ValueError(
            f"weight_packed has shape {list(words.shape)}, which is neither 4 nor 8 bits of "
            f"weight_shape {[outputs, inputs]}"
        )
    scales, group = parts.scales(outputs, inputs, "weight_scale")
    zeros: torch.Tensor | int = 8 if bits == 4 else 0
    if "weight_zero_point" in parts.tensors:
        packed = parts.get("weight_zero_point", torch.int32, dim=2).to(parts.device)
        _check_shape("weight_zero_point", packed, (-(-outputs * bits // 32), scales.shape[1]))
        zeros = _one_or_all(_fields(packed.T.contiguous(), bits)[:, :outputs].T.contiguous().view(torch.int8))
    order = None
    if "weight_g_idx" in parts.tensors:
        group, order = _grouping(parts, "weight_g_idx", inputs, scales.shape[1])
    return StoredWeight(
        (outputs, inputs),
        bits,
        lambda rows: _fields(words[rows], bits)[:, :inputs].contiguous(),
        scales,
        group,
        zeros=zeros,
        order=order,
    )


def _eight_bits(parts: Parts, number: torch.dtype) -> StoredWeight:
    """A weight in e4m3 or int8 with its scales, as compressed-tensors and the fp8 formats of transformers have it."""
    weight = parts.get("weight", number, dim=2)
    outputs, inputs = weight.shape
    name = next((name for name in ("weight_scale_inv", "weight_scale") if name in parts.tensors), "weight_scale")
    scales, group = parts.scales(outputs, inputs, name)
    zeros: torch.Tensor | int = 0
    if "weight_zero_point" in parts.tensors and number == torch.int8:
        each = parts.get("weight_zero_point", torch.int8).to(parts.device)
        zeros = _one_or_all(each.reshape(-1, scales.shape[1]).expand(scales.shape))
    return StoredWeight((outputs, inputs), 8, lambda rows: weight[rows], scales, group, zeros=zeros)


def _llm_int8(parts: Parts) -> StoredWeight:
    """bitsandbytes in 8 bits: the largest number of an output is 127."""
    weight = parts.get("weight", torch.int8, dim=2)
    outputs, inputs = weight.shape
    if "weight_format" in parts.tensors and parts.get("weight_format", torch.uint8).item() != 0:
        raise ValueError("weight_format is not 0, which is by rows; save the model with a newer bitsandbytes")
    scales = parts.get("SCB", torch.float32).to(parts.device)
    _check_shape("SCB", scales, (outputs,))
    return StoredWeight((outputs, inputs), 8, lambda rows: weight[rows], scales[:, None] / 127, _all(inputs))


def _four_bits(parts: Parts) -> StoredWeight:
    """bitsandbytes' nf4 and fp4: the higher four bits of a byte come first; scales may be quantised themselves."""
    outputs, inputs, group, nested_group, offset = _quant_state(parts)
    packed = parts.get("weight", torch.uint8)
    if packed.numel() * 2 != outputs * inputs:
        raise ValueError(f"weight has {packed.numel()} bytes for {outputs} outputs of {inputs} inputs")
    packed = packed.view(outputs, inputs // 2)
    absmax = parts.get("weight.absmax", torch.float32, torch.uint8).to(parts.device)
    if absmax.dtype == torch.uint8:
        steps, code = (
            parts.get(f"weight.{name}", torch.float32).to(parts.device)
            for name in ("nested_absmax", "nested_quant_map")
        )
        _check_shape("weight.nested_absmax", steps, (-(-len(absmax) // nested_group),))
        absmax = code[absmax.int()] * steps.repeat_interleave(nested_group)[: len(absmax)] + offset
    _check_shape("weight.absmax", absmax, (outputs * inputs // group,))
    return StoredWeight(
        (outputs, inputs),
        4,
        lambda rows: torch.stack((packed[rows] >> 4, packed[rows] & 15), -1).flatten(1),
        absmax.view(outputs, -1),
        group,
        table=parts.get("weight.quant_map", torch.float32).to(parts.device),
    )


def _quant_state(parts: Parts) -> tuple[int, int, int, int, float]:
    """Outputs, inputs, numbers that share a scale, scales that share one, and what is added to these."""
    names = [name for name in parts.tensors if name.startswith("weight.quant_state.")]
    if len(names) != 1:
        raise ValueError("weight.quant_state is missing")
    try:
        state = json.loads(bytes(parts.get(names[0], torch.uint8).tolist()))
        (outputs, inputs), group = state["shape"], int(state["blocksize"])
        nested_group, offset = int(state.get("nested_blocksize", 1)), float(state.get("nested_offset", 0))
        fits = outputs > 0 and inputs > 0 and group > 0 and nested_group > 0
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{names[0]} cannot be read: {error}") from error
    if not fits or inputs % group:
        raise ValueError(f"blocks of {group} numbers do not end where outputs of {inputs} inputs do")
    return outputs, inputs, group, nested_group, offset


def _fields(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Fields of words int32 [rows, words], the lowest first -> [rows, fields]: uint8, or int8 less 128."""
    octets = words.view(torch.uint8)
    if bits == 8:
        return (octets ^ 128).view(torch.int8)
    return torch.stack((octets & 15, octets >> 4), -1).flatten(1)


def _awq_fields(words: torch.Tensor) -> torch.Tensor:
    """Fields of words int32 [rows, words] in the order of outputs -> [rows, outputs] uint8."""
    fields = torch.unflatten(_fields(words.contiguous(), 4), 1, (-1, 8))
    return fields[..., list(_AWQ_ORDER)].flatten(1)


def _grouping(parts: Parts, name: str, inputs: int, groups: int) -> tuple[int, torch.Tensor | None]:
    """Inputs of a group, and the order in which groups are consecutive, from the group of each input."""
    if name not in parts.tensors:
        return _group(inputs, groups), None
    of_inputs = parts.get(name, torch.int32, torch.int64).to(parts.device).long()
    group = int((of_inputs == 0).sum())
    ordered, order = of_inputs.sort(stable=True)
    even = group and torch.equal(ordered, torch.arange(inputs, device=parts.device) // group)
    if not even or -(-inputs // group) != groups:
        raise ValueError(f"{name} does not put {inputs} inputs into {groups} groups of one size")
    if groups == 1:
        group = _all(inputs)
    return group, None if torch.equal(of_inputs, ordered) else order


def _group(inputs: int, groups: int) -> int:
    """Inputs of each of some groups."""
    if groups == 1:
        return _all(inputs)
    if groups == 0 or inputs % groups:
        raise ValueError(f"{inputs} inputs are no {groups} groups of one size")
    return inputs // groups


def _all(inputs: int) -> int:
    """Length of a group that has all inputs."""
    return -(-inputs // LINE) * LINE


def _one_or_all(zeros: torch.Tensor) -> torch.Tensor | int:
    first = int(zeros.flatten()[0])
    return first if bool((zeros == first).all()) else zeros


def _check_shape(name: str, found: torch.Tensor, expected: tuple[int, ...]) -> None:
    if found.shape != expected:
        raise ValueError(f"{name} has shape {list(found.shape)} where the other tensors imply {list(expected)}")


RULES: dict[str, Callable[[Parts], StoredWeight]] = {
    "gptq": lambda parts: _gptq(parts, lowered=True),
    "gptq_v2": lambda parts: _gptq(parts, lowered=False),
    "awq": _awq,
    "fp8": lambda parts: _eight_bits(parts, torch.float8_e4m3fn),
    "int8": lambda parts: _eight_bits(parts, torch.int8),
    "packed": _packed,
    "llm_int8": _llm_int8,
    "nf4": _four_bits,
}
"""Rules by name."""
