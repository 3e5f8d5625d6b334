"""From logits to tokens."""

from __future__ import annotations

import torch

from kernels import library, reference
from kernels.memory import Workspace
from kernels.registry import Cost, register

_NO_ROWS = torch.empty(0, dtype=torch.int64)
_workspace = Workspace()


def argmax(x: torch.Tensor) -> torch.Tensor:
    """`reference.argmax`: x [rows, n], contiguous -> [rows] int64."""
    body = library.of(x, "argmax")
    if body is None or x.dtype not in library.TYPES:
        return reference.argmax(x)
    out = torch.empty(x.shape[0], dtype=torch.int64, device=x.device)
    body.argmax(out, x)
    return out


def apply_token_bitmask(logits: torch.Tensor, bits: torch.Tensor, rows: torch.Tensor | None = None) -> None:
    """`reference.apply_token_bitmask`: logits [rows, vocabulary], contiguous, in place; bits int32, rows int64."""
    body = library.of(logits, "apply_token_bitmask")
    if body is None or logits.dtype not in library.TYPES:
        reference.apply_token_bitmask(logits, bits, rows)
    else:
        body.apply_token_bitmask(logits, bits, _NO_ROWS if rows is None else rows)


def apply_penalties(
    logits: torch.Tensor,
    counts: torch.Tensor,
    seen: torch.Tensor,
    repetition: float,
    presence: float,
    frequency: float,
) -> None:
    """`reference.apply_penalties`: one row of logits [vocabulary] in fp32, in place; counts in fp32, seen in bool."""
    body = library.of(logits, "apply_penalties")
    if body is None:
        reference.apply_penalties(logits, counts, seen, repetition, presence, frequency)
    else:
        body.apply_penalties(logits, counts, seen, repetition, presence, frequency)


def log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """`reference.log_sum_exp`: logits [rows, n], contiguous -> [rows] in fp64."""
    body = library.of(logits, "log_sum_exp")
    if body is None or logits.dtype not in library.TYPES:
        return reference.log_sum_exp(logits)
    out = torch.empty(logits.shape[0], dtype=torch.float64, device=logits.device)
    body.log_sum_exp(out, logits)
    return out


def sample(logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """`reference.sample`: logits [rows, vocabulary], contiguous; draws [rows, 5] fp64 on the host -> [rows] int64."""
    body = library.of(logits, "sample")
    if body is None or logits.dtype not in library.TYPES:
        return reference.sample(logits, draws)
    tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    if body.is_cuda:
        body.sample(tokens, logits, draws.to(logits.device, non_blocking=True))
        return tokens
    size = body.sample_scratch(logits.shape[1]) * torch.get_num_threads()
    body.sample(tokens, logits, draws, _workspace.of(4 * size).view(torch.float32))
    return tokens


def _tokens(x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty(x.shape[0], dtype=torch.int64, device=x.device)


def read_cost(rows: int, vocabulary: int, itemsize: int) -> Cost:
    """Cost of ops that read logits once: argmax, log_sum_exp and sample."""
    return Cost(rows * vocabulary * itemsize, 8 * rows * vocabulary)


def bitmask_cost(rows: int, vocabulary: int, itemsize: int) -> Cost:
    return Cost(rows * vocabulary * 2 * itemsize + rows * vocabulary // 8, rows * vocabulary)


def penalties_cost(vocabulary: int) -> Cost:
    return Cost(13 * vocabulary, 6 * vocabulary)


register("argmax(Tensor x) -> Tensor", argmax, fake=_tokens, cost=read_cost)
register("sample(Tensor logits, Tensor draws) -> Tensor", sample, fake=_tokens, cost=read_cost)
register(
    "log_sum_exp(Tensor logits) -> Tensor",
    log_sum_exp,
    fake=lambda logits: torch.empty(logits.shape[0], dtype=torch.float64, device=logits.device),
    cost=read_cost,
)
register(
    "apply_token_bitmask(Tensor(a!) logits, Tensor bits, Tensor? rows=None) -> ()",
    apply_token_bitmask,
    fake=lambda *_: None,
    cost=bitmask_cost,
)
register(
    "apply_penalties(Tensor(a!) logits, Tensor counts, Tensor seen, "
    "float repetition, float presence, float frequency) -> ()",
    apply_penalties,
    fake=lambda *_: None,
    cost=penalties_cost,
)
