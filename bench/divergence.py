"""How far one model's next-token distributions are from another's: pure functions of logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import torch


class Distances(msgspec.Struct, frozen=True):
    """Distances of a candidate from a reference at some positions, one value each."""

    divergences: list[float]
    """Kullback-Leibler divergence of the candidate from the reference, in nats."""
    same: list[bool]
    """Whether the reference's likeliest token is the candidate's too."""
    tied: list[bool]
    """Whether several tokens share the candidate's highest logit exactly."""


class Divergence(msgspec.Struct, frozen=True):
    """Summary over positions. Divergences in nats."""

    positions: int
    mean: float
    error: float
    """Standard error of the mean."""
    median: float
    p99: float
    most: float
    same_top: float
    """Share of positions with the same likeliest token."""
    ties: float
    """Share of positions at which several tokens are the candidate's likeliest."""


def distances(reference: torch.Tensor, candidate: torch.Tensor) -> Distances:
    """Compare logits [positions, vocabulary], in fp64: divergences of 1e-7 are sums of larger terms of both signs."""
    expected = reference.double().log_softmax(-1)
    found = candidate.double().log_softmax(-1)
    divergences = (expected.exp() * (expected - found)).sum(-1)
    highest = candidate.amax(-1, keepdim=True)
    return Distances(
        divergences.tolist(),
        (reference.argmax(-1) == candidate.argmax(-1)).tolist(),
        ((candidate == highest).sum(-1) > 1).tolist(),
    )


def joined(parts: Sequence[Distances]) -> Distances:
    return Distances(
        [value for part in parts for value in part.divergences],
        [value for part in parts for value in part.same],
        [value for part in parts for value in part.tied],
    )


def summary(found: Distances) -> Divergence:
    values = torch.tensor(found.divergences, dtype=torch.float64)
    count = len(values)
    return Divergence(
        positions=count,
        mean=float(values.mean()),
        error=float(values.std()) / math.sqrt(count),
        median=float(values.median()),
        p99=float(values.quantile(0.99)),
        most=float(values.max()),
        same_top=sum(found.same) / count,
        ties=sum(found.tied) / count,
    )
