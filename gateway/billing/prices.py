"""Which price applies to a model or an adapter. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.billing.cost import Price
from gateway.settings import Price as ConfiguredPrice


class Prices:
    """A price list. What is not in it has no price: it costs nothing, and no cost is told."""

    def __init__(self, prices: Iterable[ConfiguredPrice]) -> None:
        self._prices: dict[str, Price] = {price.name: price for price in prices}

    def price(self, model: str, adapter: str | None = None) -> Price | None:
        """The adapter's own price, else its base model's."""
        own = self._prices.get(adapter) if adapter is not None else None
        return own if own is not None else self._prices.get(model)
