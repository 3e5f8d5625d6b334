"""`GET /v1/models`: the names that a request's `model` may have."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from engine.adapters.registry import Pointer
from gateway.access.identity import Principal
from gateway.engines.pool import Pool
from gateway.errors import ModelNotFound
from gateway.http.exchange import JsonResponse
from gateway.pipeline.routing.canaries import exists
from gateway.records.directory import Price, Tenant
from gateway.services import Gateway, gateway_of
from router.route import AUTO

_STARTED = int(time.time())
"""Value of `created`: when this process started, as a router's names have no better date."""


async def index(request: Request) -> Response:
    """`GET /v1/models`: `auto`, tiers, and the models, adapters, routes and embedding model that the tenant may use."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "models")
    return JsonResponse({"object": "list", "data": model_list(gateway, principal)})


async def read(request: Request) -> Response:
    """`GET /v1/models/{model}`: one of these names."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "models")
    name = request.path_params["model"]
    models = model_list(gateway, principal)
    for model in models:
        if model["id"] == name:
            return JsonResponse(model)
    names = ", ".join(model["id"] for model in models)
    raise ModelNotFound(f"the model '{name[:256]}' does not exist; available: {names}", param="model")


routes: list[BaseRoute] = [
    Route("/v1/models", index, methods=["GET"]),
    Route("/v1/models/", index, methods=["GET"]),
    # A name may contain slashes, as those of Hugging Face do.
    Route("/v1/models/{model:path}", read, methods=["GET"]),
]


def model_list(gateway: Gateway, principal: Principal) -> list[dict[str, Any]]:
    """Return all names that a tenant may ask for, in the form of `/v1/models`."""
    tenant = gateway.view.tenant(principal.tenant)
    pools = [pool for pool in gateway.engines.pools if tenant is None or tenant.may_use(pool.name)]
    auto = [_model(AUTO, None, max(pool.context for pool in pools))] if pools else []
    priced = [(pool, gateway.view.price(pool.name)) for pool in pools]
    tiers = [
        _tier(tier, [each for each in priced if each[0].tier == tier]) for tier in {pool.tier: None for pool in pools}
    ]
    models = [_model(pool.name, pool.tier, pool.context, price) for pool, price in priced]
    adapters = [
        _adapter(name, pointer, gateway.engines.pool(pointer.model), gateway.view.price(pointer.model, name))
        for name, pointer in gateway.adapters.visible(principal.tenant).items()
        if "adapters" in principal.scopes and (tenant is None or tenant.may_use(name))
    ]
    named = [*auto, *(tier for tier in tiers if tier["id"] not in {pool.name for pool in pools}), *models, *adapters]
    return [*_routes(gateway, tenant, named), *_embedders(gateway, tenant)]


def _routes(gateway: Gateway, tenant: Tenant | None, named: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the routes to the named models; a route that has the name of a model takes its place."""
    contexts = {model["id"]: model["context_length"] for model in named}
    routes = {
        route.name: _model(route.name, None, min(contexts[target.model] for target in route.targets))
        for route in sorted(gateway.view.routes(), key=lambda route: route.name)
        if exists(route, tenant) and all(target.model in contexts for target in route.targets)
    }
    return [*(model for model in named if model["id"] not in routes), *routes.values()]


def _embedders(gateway: Gateway, tenant: Tenant | None) -> list[dict[str, Any]]:
    hello = gateway.embedder.hello if gateway.embedder else None
    if hello is None or not (tenant is None or tenant.may_use(hello.model)):
        return []
    shown = _model(hello.model, None, hello.max_tokens, gateway.view.price(hello.model))
    return [shown | {"type": "embedding", "dimensions": hello.dimensions}]


def _tier(tier: str, priced: Sequence[tuple[Pool, Price | None]]) -> dict[str, Any]:
    """Describe a tier by its pools; its price is not told where it depends on who answers."""
    context, (first, *others) = max(pool.context for pool, _ in priced), [price for _, price in priced]
    return _model(tier, tier, context, first if all(other == first for other in others) else None)


def _model(name: str, tier: str | None, context: int, price: Price | None = None) -> dict[str, Any]:
    """Describe a name: OpenAI's four fields, then ours.

    Args:
        price: None also where the price depends on who answers.
    """
    return {
        "id": name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "roundhouse",
        "type": "chat",
        "tier": tier,
        "context_length": context,
        "price": price
        and {
            "input": price.input,
            "cached_input": price.input if price.cached_input is None else price.cached_input,
            "output": price.output,
        },
    }


def _adapter(name: str, pointer: Pointer, pool: Pool, price: Price | None) -> dict[str, Any]:
    """A model that is another one with an adapter: `parent` and `root` name the base, as other servers have it."""
    return _model(name, pool.tier, pool.context, price) | {
        "created": int(pointer.updated),
        "parent": pool.name,
        "root": pool.name,
        "description": pointer.description,
    }
