"""Base models through the admin API."""

from __future__ import annotations

import msgspec
import pytest

from gateway.config.settings import PriceSettings
from gateway.records.directory import Tenant
from tests.gateway.admin.conftest import Administer, problem

pytestmark = pytest.mark.anyio


async def test_models_are_shown_with_what_they_cost(administer: Administer) -> None:
    """As their engines report them."""
    prices = [PriceSettings(name="tiny-small", input=1, output=2)]
    async with administer(prices=prices) as api:
        (model,) = (await api.acme.get("/models")).json()["data"]
        assert model == (await api.acme.get("/models/tiny-small")).json()
        info = api.served.gateway.engines["small-0"].client.info
        assert info is not None
        assert (model["name"], model["tier"], model["context_length"]) == ("tiny-small", "small", info.context)
        assert (model["revisions"], model["replicas"], model["connected"]) == ([info.revision], 1, 1)
        assert model["price"] == {"input": 1, "output": 2, "cached_input": None}
        problem(await api.acme.get("/models/other/model"), 404, "not_found")


async def test_a_tenant_sees_what_it_may_use(administer: Administer, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its list of models; an operator sees all."""
    async with administer() as api:
        view = api.served.gateway.view
        narrow = msgspec.structs.replace(view.tenant("acme") or Tenant(name="acme"), models=["another"])
        monkeypatch.setattr(view, "tenant", lambda name: narrow)
        assert (await api.acme.get("/models")).json()["data"] == []
        problem(await api.acme.get("/models/tiny-small"), 404, "not_found")
        assert len((await api.operator.get("/models")).json()["data"]) == 1
