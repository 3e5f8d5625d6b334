"""Where an adapter's weights are: in its image, and with the image in the arena.

An adapter's *image* is one array of elements of the arena's type. It is cut into sectors, and each sector lies
somewhere in the arena [sectors, elements]: `LoraAdapter.sectors` is the page table. A `LoraLayout` says where in the
image each layer's weights begin. Ranks come in chunks of CHUNK rows: chunk c of a part has its A at `down + c * CHUNK *
width` and its B at `up + c * CHUNK * columns`, so that no adapter is padded to another one's rank. All offsets are
multiples of CHUNK elements, as sectors are: a vector load never crosses into another sector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

CHUNK = 8
EMBEDDING = "embedding"
"""What the token embedding is called; it is no site of a layout like the others."""


@dataclass(frozen=True, slots=True)
class LoraPart:
    """LoRA of columns [begin, end) of a linear layer's output."""

    begin: int
    end: int
    rank: int
    """A multiple of CHUNK; what the adapter has less of is zeros."""
    down: int
    """Where A [experts, rank, width] begins. Those of a layer's parts lie one behind the other."""
    up: int
    """Where B [experts, rank, end - begin] begins; the adapter's scaling is in it."""


@dataclass(frozen=True, slots=True)
class LoraSite:
    """What there is for one linear layer, with inputs of `width` elements and outputs of `columns`."""

    width: int
    columns: int
    parts: tuple[LoraPart, ...]
    """By column."""
    scale: int | None = None
    """Where a vector [columns] begins among the vectors: what the output with its LoRA is multiplied by (DoRA)."""
    offset: int | None = None
    """The same for what is then added: a difference of biases."""
    experts: int = 1


@dataclass(frozen=True, slots=True)
class LoraEmbedding:
    """The token embedding: row t is A^T, gathered; `site` has its B, scale and offset, and no A."""

    site: LoraSite
    rows: int
    """Where A^T [vocabulary, rank] begins."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class LoraLayout:
    """Of the images of all adapters that have the same ranks on the same layers. Compared by identity.

    An image is `factors` elements, then `vectors` numbers in fp32, then the rows of the embedding.
    """

    sites: Mapping[str, LoraSite]
    factors: int
    vectors: int
    embedding: LoraEmbedding | None
    elements: int
    """Of the whole image."""


@dataclass(frozen=True, eq=False, slots=True)
class LoraAdapter:
    """An adapter that is in the arena. Compared by identity."""

    layout: LoraLayout
    sectors: torch.Tensor
    """[n] int64 on the arena's device."""


def read_image(arena: torch.Tensor, adapter: LoraAdapter, begin: int, count: int) -> torch.Tensor:
    """Elements [begin, begin + count) of an adapter's image, from the arena [sectors, elements]."""
    size = arena.shape[1]
    first = begin // size
    pages = adapter.sectors[first : -(-(begin + count) // size)]
    return arena.index_select(0, pages).flatten()[begin - first * size :][:count]


def read_vector(arena: torch.Tensor, adapter: LoraAdapter, begin: int, count: int) -> torch.Tensor:
    """Numbers [begin, begin + count) of the vectors of an adapter's image."""
    width = torch.float32.itemsize // arena.element_size()
    return read_image(arena, adapter, adapter.layout.factors + width * begin, width * count).view(torch.float32)
