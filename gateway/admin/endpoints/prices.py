"""What tokens cost, by model and adapter, in micro-dollars per million."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from gateway.admin.call import Access, Call
from gateway.admin.endpoints import records, shapes
from gateway.admin.endpoints.shapes import Page, PublicNamePath
from gateway.admin.kit.endpoints import Answer, Endpoints
from gateway.errors import Conflict
from gateway.records.directory import Price

endpoints = Endpoints("prices", "What tokens cost, by model and adapter, in micro-dollars per million.")

NewPrice = shapes.creation("NewPrice", Price, instead={"name": shapes.PublicName})
PriceReplacement = shapes.creation("PriceReplacement", Price, without=["name"])
PriceState = shapes.state("PriceState", Price)


class PriceList(Struct, frozen=True):
    data: list[PriceState]  # type: ignore[valid-type]
    next: str | None


@endpoints.get("/prices", access=Access.OPERATOR)
async def list_prices(call: Call, query: Page) -> Answer[PriceList]:
    """List all prices, those of the configuration file included."""
    return Answer(PriceList(*await records.page_of(call, Price, query, PriceState)))


@endpoints.create(
    "/prices",
    access=Access.OPERATOR,
    raises=[Conflict],
    body_type=NewPrice,
    example={"name": "llama-8b", "input": 200_000, "output": 600_000},
)
async def create_price(call: Call, body: Any) -> Answer[PriceState]:  # type: ignore[valid-type]
    """Set the price of a model or an adapter that has none yet."""
    price = Price(**msgspec.structs.asdict(body))
    return await records.create(call, price, PriceState, f"/prices/{price.name}")


@endpoints.get("/prices/{public_name:path}", access=Access.OPERATOR, versioned=True)
async def show_price(call: Call, path: PublicNamePath) -> Answer[PriceState]:  # type: ignore[valid-type]
    """Show a price."""
    return records.answer(await records.find(call, Price, path.public_name), PriceState)


@endpoints.put(
    "/prices/{public_name:path}",
    access=Access.OPERATOR,
    versioned=True,
    raises=[Conflict],
    body_type=PriceReplacement,
    example={"input": 200_000, "output": 600_000},
)
async def replace_price(call: Call, path: PublicNamePath, body: Any) -> Answer[PriceState]:  # type: ignore[valid-type]
    """Replace a price; fields that are left out take their defaults."""
    price = await records.find(call, Price, path.public_name)
    return await records.change(call, price, msgspec.structs.asdict(body), PriceState)


@endpoints.delete("/prices/{public_name:path}", access=Access.OPERATOR, versioned=True, raises=[Conflict])
async def delete_price(call: Call, path: PublicNamePath) -> Answer[None]:
    """Delete a price."""
    return await records.delete(call, await records.find(call, Price, path.public_name))
