"""Base models: what is served, and what its tokens cost."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gateway.admin.call import Access, Call
from gateway.admin.endpoints.shapes import PublicNamePath
from gateway.admin.kit.endpoints import Answer, Endpoints
from gateway.engines.pool import Pool
from gateway.errors import NotFound

endpoints = Endpoints("models", "Base models, as the configuration names them.")


class ModelPrice(Struct, frozen=True):
    """Price of a model's tokens, in micro-dollars per million."""

    input: int
    output: int
    cached_input: int | None


class ModelState(Struct, frozen=True):
    """One model, as its engines have reported it."""

    name: str
    tier: str
    context_length: Annotated[int, Meta(description="Tokens of prompt and output together.")]
    revisions: Annotated[list[str], Meta(description="Digests of its files; normally one.")]
    replicas: int
    connected: Annotated[int, Meta(description="Replicas that answer.")]
    price: ModelPrice | None


class ModelList(Struct, frozen=True):
    data: list[ModelState]


@endpoints.get("/models", access=Access.FILTERED)
async def list_models(call: Call) -> Answer[ModelList]:
    """List the models that the caller's tenant may use; all of them for operators."""
    return Answer(ModelList([_model(call, pool) for pool in _visible(call)]))


@endpoints.get("/models/{public_name:path}", access=Access.FILTERED)
async def show_model(call: Call, path: PublicNamePath) -> Answer[ModelState]:
    """Show a model."""
    for pool in _visible(call):
        if pool.name == path.public_name:
            return Answer(_model(call, pool))
    raise NotFound(f"no model is named {path.public_name!r}")


def _visible(call: Call) -> list[Pool]:
    tenant = call.gateway.view.tenant(call.principal.tenant)
    allowed = None if call.principal.operator or tenant is None else tenant.models
    return [pool for pool in call.gateway.engines.pools if allowed is None or pool.name in allowed]


def _model(call: Call, pool: Pool) -> ModelState:
    price = call.gateway.view.price(pool.name)
    return ModelState(
        name=pool.name,
        tier=pool.tier,
        context_length=pool.context,
        revisions=pool.revisions,
        replicas=len(pool.engines),
        connected=sum(engine.client.connected for engine in pool.engines),
        price=None if price is None else ModelPrice(price.input, price.output, price.cached_input),
    )
