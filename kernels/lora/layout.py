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
"""Name of the token embedding's site, which a layout keeps apart from its `sites`."""


@dataclass(frozen=True, slots=True)
class LoraPart:
    """LoRA of columns [begin, end) of a linear layer's output."""

    begin: int
    end: int
    rank: int
    """Rank, padded with zeros to a multiple of CHUNK."""
    down: int
    """Where A [experts, rank, width] begins in the image, right behind the A of the layer's part before."""
    up: int
    """Where B [experts, rank, end - begin] begins in the image, already multiplied by the adapter's scaling."""


@dataclass(frozen=True, slots=True)
class LoraSite:
    """An adapter's weights for one linear layer, with inputs of `width` elements and outputs of `columns`."""

    width: int
    columns: int
    parts: tuple[LoraPart, ...]
    """Parts in the order of their columns, which do not overlap."""
    scale: int | None = None
    """Where the vector [columns] begins among the vectors that multiplies the output (DoRA), if there is one."""
    offset: int | None = None
    """Where the vector [columns] begins that is added last, a difference of biases, if there is one."""
    experts: int = 1


@dataclass(frozen=True, slots=True)
class LoraEmbedding:
    """The token embedding: row t is A^T, gathered; `site` has its B, scale and offset, and no A."""

    site: LoraSite
    rows: int
    """Where A^T [vocabulary, rank] begins in the image."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class LoraLayout:
    """Where everything lies in the images of adapters with the same ranks on the same layers. Compared by identity.

    An image is `factors` elements, then `vectors` numbers in fp32, then the rows of the embedding.
    """

    sites: Mapping[str, LoraSite]
    factors: int
    vectors: int
    embedding: LoraEmbedding | None
    elements: int
    """Size of the whole image, in elements of the arena."""


@dataclass(frozen=True, eq=False, slots=True)
class LoraAdapter:
    """An adapter that is in the arena. Compared by identity."""

    layout: LoraLayout
    sectors: torch.Tensor
    """[n] int64 on the arena's device: the sectors that hold the image, in its order."""


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
