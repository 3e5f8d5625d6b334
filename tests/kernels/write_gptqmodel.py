"""Writes gptqmodel.safetensors: small weights that GPTQModel has packed, and what it dequantises them to.

It asks for a newer torch than this repository has, so it is no dependency. Made with GPTQModel 7.7.0:

    pip install --no-deps gptqmodel==7.7.0 device-smi tokenicer logbar pypcre threadpoolctl defuser dill
    python -m tests.kernels.write_gptqmodel
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear
from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
from safetensors.torch import save_file

INPUTS, OUTPUTS, GROUP = 128, 32, 32


def gptq(bits: int, symmetric: bool, desc_act: bool, v2: bool) -> dict[str, torch.Tensor]:
    linear = torch.nn.Linear(INPUTS, OUTPUTS, bias=False)
    of_inputs = torch.arange(INPUTS, dtype=torch.int32) // GROUP
    if desc_act:
        of_inputs = of_inputs[torch.randperm(INPUTS)]
    groups, most = INPUTS // GROUP, 2**bits - 1
    scales = torch.full((OUTPUTS, groups), 2 / most) * (0.5 + torch.rand(OUTPUTS, groups))
    zeros = torch.full((OUTPUTS, groups), 2.0 ** (bits - 1))
    if not symmetric:
        zeros = torch.randint(0, most + 1, (OUTPUTS, groups)).float()
    packed = TorchLinear(bits, GROUP, symmetric, desc_act, INPUTS, OUTPUTS)
    packed.pack_original(linear, scales.half().float(), zeros, of_inputs)
    dense = packed.dequantize_weight().T.contiguous()
    if not v2:
        convert_gptq_v2_to_v1_format_module(packed, SimpleNamespace(bits=bits, pack_dtype=torch.int32))
    return {name: getattr(packed, name).clone() for name in ("qweight", "qzeros", "scales", "g_idx")} | {"dense": dense}


def awq() -> dict[str, torch.Tensor]:
    linear = torch.nn.Linear(INPUTS, OUTPUTS, bias=False)
    groups = INPUTS // GROUP
    scales = torch.full((OUTPUTS, groups), 2 / 15) * (0.5 + torch.rand(OUTPUTS, groups))
    zeros = torch.randint(0, 16, (OUTPUTS, groups)).float()
    packed = AwqTorchLinear(4, GROUP, False, False, INPUTS, OUTPUTS, register_buffers=True)
    packed.pack(linear, scales.half().float(), zeros)
    dense = packed(torch.eye(INPUTS, dtype=torch.float16)).T.contiguous()
    return {name: getattr(packed, name).clone() for name in ("qweight", "qzeros", "scales")} | {"dense": dense}


def main() -> None:
    torch.manual_seed(0)
    found = {"awq": awq()}
    for bits in (4, 8):
        for symmetric, desc_act, v2 in ((True, False, False), (False, True, False), (False, False, True)):
            kind = "gptq_v2" if v2 else "gptq"
            found[f"{kind}-{bits}{'-desc_act' if desc_act else ''}"] = gptq(bits, symmetric, desc_act, v2)
    tensors = {f"{case}/{name}": x.contiguous() for case, parts in found.items() for name, x in parts.items()}
    save_file(tensors, Path(__file__).with_name("gptqmodel.safetensors"))


if __name__ == "__main__":
    main()
