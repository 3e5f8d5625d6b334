"""Rotary position embedding: the cosines and sines of a batch's tokens under every scaling of `RopeParameters`.

All but one scaling have fixed frequencies, so that cosines are read from a table. Under "dynamic" and "longrope" the
frequencies depend on the length of the sequence, and transformers uses for each forward pass the length it then has:
the prompt's for the prompt, `position + 1` for each later token. A token's length is therefore
`max(prompt tokens, position + 1)`, whatever chunks it was computed in and however often.
"""

from __future__ import annotations

import math

import torch

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.rope import RopeParameters


class RotaryEmbedding:
    """Tables of cosines and sines in the form that `kernels.rope_and_store` reads, one for each kind of layer.

    Layers without rotation have a table too, of angles that are zero.
    """

    def __init__(self, config: ModelConfig, context: int, device: torch.device) -> None:
        self._config = config
        self._device = device
        rope = config.rope
        positions = torch.arange(context)
        angles = [self._angles(positions, inverse_frequencies(config, rope))]
        self.depends_on_length = rope.rope_type in ("dynamic", "longrope")
        """Whether a token's angles depend on the length of its sequence too."""
        self._long_offset = 0
        if rope.rope_type == "longrope":
            self._long_offset = context
            angles.append(self._angles(positions, inverse_frequencies(config, rope, long=True)))
        self.table = self._cos_sin(positions, torch.cat(angles))
        """[tables, rows, rotated dimensions]; a token's row is its position, unless its angles depend on the length."""

    def rotations(
        self, positions: torch.Tensor, lengths: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tables [tables, rows, rotated dimensions] of cosines and sines, and the row of each token [T].

        The tokens are at `positions` [T] of sequences of `lengths` [T], both int64 on the host; the result is on the
        device. Lengths may be left out unless the angles depend on them.
        """
        rows = positions
        if self.depends_on_length:
            assert lengths is not None
            if self._long_offset:
                pretrained = self._config.rope.original_max_position_embeddings or 0
                rows = positions + self._long_offset * (lengths > pretrained)
            elif int(lengths.max()) > self._config.max_position_embeddings:
                angles = self._angles(positions, dynamic_frequencies(self._config, lengths))
                table = self._cos_sin(positions, angles)
                return table, torch.arange(len(positions), device=self._device)
        return self.table, rows.to(self._device, non_blocking=True)

    def _angles(self, positions: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
        return positions.float()[:, None] * frequencies

    def _cos_sin(self, positions: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Tables for rows of these `positions`, whose `angles` are those of the model's own embedding."""
        config = self._config
        # A score is the product of a query and a key, both of which are turned.
        scale, tables = math.sqrt(config.score_scale), []
        for rope in config.rope_tables:
            if rope is None:
                turned, factor = torch.zeros_like(angles), scale
            else:
                own = rope == config.rope
                turned = angles if own else self._angles(positions, inverse_frequencies(config, rope))
                factor = scale * attention_scale(config, rope)
            tables.append(torch.cat((turned.cos(), turned.sin()), dim=-1) * factor)
        return torch.stack(tables).to(self._device)


def inverse_frequencies(config: ModelConfig, rope: RopeParameters, *, long: bool = False) -> torch.Tensor:
    """Angular frequencies [rotated dimensions / 2] in fp32 for sequences within the pretrained length.

    `long` gives those of "longrope" beyond it. Sources: linear, kaiokendev's scaled positions; "llama3", Llama 3.1's
    reference code; "yarn", Peng et al., 2023; "longrope", Ding et al., 2024.
    """
    dim = rope.rotated(config.head_dim)
    match rope.rope_type:
        case "default" | "dynamic":
            return _frequencies(rope.rope_theta, dim)
        case "divided":
            return _frequencies(rope.rope_theta, dim) / torch.tensor(rope.divisors)
        case "linear":
            return _frequencies(rope.rope_theta, dim) / (rope.factor or 1.0)
        case "llama3":
            return _llama3(rope, dim)
        case "yarn":
            return _yarn(rope, dim, _factor(config, rope))
        case "longrope":
            factors = rope.long_factor if long else rope.short_factor
            exponents = torch.arange(0, dim, 2).float() / dim
            return 1.0 / (torch.tensor(factors) * rope.rope_theta**exponents)


def dynamic_frequencies(config: ModelConfig, lengths: torch.Tensor) -> torch.Tensor:
    """Frequencies [T, rotated dimensions / 2] of NTK scaling (bloc97 and emozilla) for sequences of `lengths` [T]."""
    rope, pretrained = config.rope, config.max_position_embeddings
    dim = rope.rotated(config.head_dim)
    factor = rope.factor or 1.0
    length = lengths.clamp(min=pretrained)
    theta = rope.rope_theta * ((factor * length / pretrained) - (factor - 1)) ** (dim / (dim - 2))
    return 1.0 / (theta[:, None] ** (torch.arange(0, dim, 2).float() / dim))


def attention_scale(config: ModelConfig, rope: RopeParameters) -> float:
    """What cosines and sines are multiplied with: the temperature of "yarn" and "longrope", else 1."""
    if rope.rope_type not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    factor = _factor(config, rope)
    if rope.rope_type == "longrope":
        if factor <= 1.0:
            return 1.0
        return math.sqrt(1 + math.log(factor) / math.log(rope.original_max_position_embeddings or 0))
    if rope.mscale and rope.mscale_all_dim:
        return _yarn_scale(factor, rope.mscale) / _yarn_scale(factor, rope.mscale_all_dim)
    return _yarn_scale(factor, 1.0)


def _factor(config: ModelConfig, rope: RopeParameters) -> float:
    """How far the context was stretched; derived from the two lengths where the config does not say."""
    pretrained = rope.original_max_position_embeddings or config.max_position_embeddings
    return rope.factor or config.max_position_embeddings / pretrained


def _frequencies(theta: float, dim: int) -> torch.Tensor:
    frequencies: torch.Tensor = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))
    return frequencies


def _llama3(rope: RopeParameters, dim: int) -> torch.Tensor:
    assert rope.factor and rope.low_freq_factor and rope.high_freq_factor and rope.original_max_position_embeddings
    frequencies, pretrained = _frequencies(rope.rope_theta, dim), rope.original_max_position_embeddings
    wavelength = 2 * math.pi / frequencies
    blend = (pretrained / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - blend) * frequencies / rope.factor + blend * frequencies
    scaled = torch.where(wavelength > pretrained / rope.low_freq_factor, frequencies / rope.factor, blended)
    return torch.where(wavelength < pretrained / rope.high_freq_factor, frequencies, scaled)


def _yarn(rope: RopeParameters, dim: int, factor: float) -> torch.Tensor:
    assert rope.original_max_position_embeddings
    pretrained = rope.original_max_position_embeddings

    def dimension(rotations: float) -> float:
        """The dimension that turns this often within the pretrained length."""
        return dim * math.log(pretrained / (rotations * 2 * math.pi)) / (2 * math.log(rope.rope_theta))

    low, high = dimension(rope.beta_fast or 32), dimension(rope.beta_slow or 1)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2).float() - low) / (high - low)).clamp(0, 1)
    wavelengths = rope.rope_theta ** (torch.arange(0, dim, 2).float() / dim)
    keep = 1 - ramp
    return (1.0 / (factor * wavelengths)) * (1 - keep) + (1.0 / wavelengths) * keep


def _yarn_scale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
