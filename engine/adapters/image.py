"""Builds an adapter's image on the host: reads its file, folds scalings and norms in, and lays it out.

Scalings go into B. Changes of outputs (DoRA's magnitudes over norms, differences of biases) become one vector to
multiply with and one to add. All of it is computed in fp32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engine.adapters.config import AdapterError
from engine.adapters.layout import HEAD, Place, place
from engine.adapters.manifest import BaseBias, LoraTarget, Manifest, Module
from engine.adapters.tensors import WEIGHTS
from engine.checkpoint.config import ModelConfig
from kernels import LoraLayout, LoraSite
from kernels.lora.layout import EMBEDDING

BaseWeight = Callable[[Module, int | None], tuple[torch.Tensor, torch.Tensor | None]]
"""Returns weight and bias of one module of the base model: `Decoder.base`."""

_NORM_ELEMENTS = 1 << 22
"""Elements of one piece of a weight for which row norms are computed at a time."""


def build_image(
    image: torch.Tensor, folder: Path, manifest: Manifest, layout: LoraLayout, config: ModelConfig, base: BaseWeight
) -> None:
    """Fill `image` [at least layout.elements], which is zeros.

    Raises:
        AdapterError: the file does not hold what its manifest says, or a number does not fit the image's type.
    """
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            builder = _Builder(image, layout, config, base, lambda key: file.get_tensor(key).float())
            for target in manifest.targets:
                builder.add_target(target)
            for bias in manifest.base_biases:
                builder.add_base_bias(bias)
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"{WEIGHTS} cannot be read: {error}; register the adapter again") from error
    if not builder.finite():
        dtype = str(image.dtype).removeprefix("torch.")
        raise AdapterError(
            f"{WEIGHTS}: numbers exceed {dtype} once they are scaled; check lora_alpha and, with DoRA, that no row of "
            "the weight is zero"
        )


class _Builder:
    """Fills an image."""

    def __init__(
        self,
        image: torch.Tensor,
        layout: LoraLayout,
        config: ModelConfig,
        base: BaseWeight,
        read: Callable[[str], torch.Tensor],
    ) -> None:
        self._config, self._base, self._read = config, base, read
        self._sites = dict(layout.sites)
        self._rows = layout.factors + layout.vectors * torch.float32.itemsize // image.element_size()
        if layout.embedding is not None:
            self._sites[EMBEDDING] = layout.embedding.site
        self._elements = image[: layout.elements]
        self._factors = layout.factors
        self._vectors = self._elements[layout.factors : self._rows].view(torch.float32)
        for site in self._sites.values():
            if site.scale is not None:
                self._vectors[site.scale : site.scale + site.columns] = 1

    def finite(self) -> bool:
        """Whether every number is finite."""
        pieces = (self._elements[: self._factors], self._vectors, self._elements[self._rows :])
        return all(bool(piece.isfinite().all()) for piece in pieces)

    def add_target(self, target: LoraTarget) -> None:
        where = place(self._config, target.module, target.layer)
        site = self._sites[where.site]
        a, b = self._pair(target, where)
        (part,) = (part for part in site.parts if part.begin == where.begin)
        columns = where.end - where.begin
        factor = self._config.embedding_scale if where.site == EMBEDDING else 1.0
        self._matrix(part.up, where.experts, part.rank, columns)[:, : target.rank] = factor * b
        if where.site == EMBEDDING:
            self._matrix(self._rows, 1, where.width, part.rank)[:, :, : target.rank] = a.mT
        else:
            self._matrix(part.down, where.experts, part.rank, where.width)[:, : target.rank] = a
        if target.b_bias is not None:
            # The head's inputs are scaled, a bias is not.
            factor = self._config.logits_scale if where.site == HEAD else 1.0
            self._add_offset(site, where, factor * target.scaling * self._tensor(target.b_bias, columns))
        if target.magnitude is not None:
            weight, bias = self._base(target.module, target.layer)
            norms = column_norms if where.site == EMBEDDING else row_norms
            scale = self._tensor(target.magnitude, columns) / norms(weight, a[0], b[0])
            assert site.scale is not None
            self._vectors[site.scale + where.begin : site.scale + where.end] = scale
            if bias is not None:
                # The output is multiplied including its bias.
                self._add_offset(site, where, (1 - scale) * bias.float().cpu())

    def add_base_bias(self, replaced: BaseBias) -> None:
        where = place(self._config, replaced.module, replaced.layer)
        _, bias = self._base(replaced.module, replaced.layer)
        assert bias is not None
        difference = self._tensor(replaced.key, where.end - where.begin) - bias.float().cpu()
        self._add_offset(self._sites[where.site], where, difference)

    def _pair(self, target: LoraTarget, where: Place) -> tuple[torch.Tensor, torch.Tensor]:
        """Return A [experts, rank, width] and B [experts, rank, columns], with the scaling in B."""
        rank, experts, columns = target.rank, where.experts, where.end - where.begin
        if len(target.a) > 1:
            a = torch.stack([self._tensor(key, rank, where.width) for key in target.a])
            b = torch.stack([self._tensor(key, columns, rank).T for key in target.b])
        else:
            a = self._tensor(target.a[0], experts * rank, where.width).view(experts, rank, where.width)
            b = self._tensor(target.b[0], columns, rank * experts).view(columns, rank, experts).permute(2, 1, 0)
        return a, target.scaling * b

    def _tensor(self, key: str, *shape: int) -> torch.Tensor:
        tensor = self._read(key)
        if tensor.shape != shape:
            raise AdapterError(
                f"{WEIGHTS}: tensor {key!r} has shape {list(tensor.shape)}, not {list(shape)}; register it again"
            )
        return tensor

    def _matrix(self, begin: int, *shape: int) -> torch.Tensor:
        return self._elements[begin : begin + torch.Size(shape).numel()].view(shape)

    def _add_offset(self, site: LoraSite, where: Place, values: torch.Tensor) -> None:
        assert site.offset is not None
        self._vectors[site.offset + where.begin : site.offset + where.end] += values


def row_norms(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return norms [out] in fp32 of the rows of weight [out, in] + b^T a, for a [rank, in] and b [rank, out]."""
    size = max(1, _NORM_ELEMENTS // weight.shape[1])
    pieces = zip(torch.split(weight, size), torch.split(b.T, size), strict=True)
    return torch.cat([torch.linalg.norm(some.float().cpu() + up @ a, dim=1) for some, up in pieces])


def column_norms(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return norms [width] in fp32 of the columns of weight [n, width] + a^T b, for a [rank, n] and b [rank, width]."""
    size = max(1, _NORM_ELEMENTS // weight.shape[1])
    squares = torch.zeros(weight.shape[1], dtype=torch.float64)
    for some, down in zip(torch.split(weight, size), torch.split(a.T, size), strict=True):
        squares += (some.float().cpu() + down @ b).double().square().sum(dim=0)
    return squares.sqrt().float()
