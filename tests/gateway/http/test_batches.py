"""`/v1/batches`: what is asked for, listed and refused. tests/gateway/batches/ runs them."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types import Batch

from gateway.config.batches import BatchSettings
from tests.gateway.batches.use import begun, jsonl, line, uploaded
from tests.gateway.conftest import Serve
from tests.gateway.engines.test_adapters import OTHER_KEY, TENANTS
from tests.gateway.http.test_refusals import post, refused

pytestmark = pytest.mark.anyio


async def test_a_new_batch_is_valid_in_openais_types(serve: Serve) -> None:
    """Strictly, as it is answered and as it is read."""
    async with serve() as served:
        file = await uploaded(served.client, jsonl([line("a")]))
        raw = await served.client.batches.with_raw_response.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"run": "1"},
            output_expires_after={"anchor": "created_at", "seconds": 3600},
        )
        batch = Batch.model_validate_json(raw.content, strict=True)
        assert batch.model_extra == {}
        assert (batch.status, batch.input_file_id, batch.metadata) == ("validating", file.id, {"run": "1"})
        assert batch.expires_at == batch.created_at + 86_400
        read = await served.client.batches.retrieve(batch.id)
        assert (read.id, read.created_at) == (batch.id, batch.created_at)


async def test_pages_follow_one_another(serve: Serve) -> None:
    """The client's own iteration sees every batch once, the newest first."""
    async with serve() as served:
        ids = [(await begun(served.client, [line(f"q{number}")])).id for number in range(5)]
        assert [batch.id async for batch in served.client.batches.list(limit=2)] == ids[::-1]
        page = await served.client.batches.list(after=ids[2], limit=1)
        assert ([batch.id for batch in page.data], page.has_more) == ([ids[1]], True)
        for wrong in ({"limit": 0}, {"limit": 101}, {"after": "batch_x"}):
            with pytest.raises(openai.BadRequestError) as caught:
                await served.client.batches.list(**wrong)  # type: ignore[arg-type]
            assert caught.value.param == next(iter(wrong))


async def test_another_tenant_finds_none_of_it(serve: Serve) -> None:
    async with serve(tenants=TENANTS) as served:
        batch = await begun(served.client, [line("a")])
        stranger = served.client.with_options(api_key=OTHER_KEY)
        assert [each async for each in stranger.batches.list()] == []
        for attempt in (stranger.batches.retrieve, stranger.batches.cancel):
            with pytest.raises(openai.NotFoundError) as caught:
                await attempt(batch.id)
            assert caught.value.code == "batch_not_found"


@pytest.mark.parametrize(
    ("changes", "status", "code", "param"),
    [
        ({"input_file_id": "file-x"}, 404, "file_not_found", "input_file_id"),
        ({"input_file_id": None}, 400, "invalid_value", "input_file_id"),
        ({"endpoint": "/v1/moderations"}, 400, "invalid_value", "endpoint"),
        ({"completion_window": "1h"}, 400, "invalid_value", "completion_window"),
        ({"metadata": {"x": 1}}, 400, "invalid_value", "metadata.x"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
            400,
            "invalid_value",
            "output_expires_after.seconds",
        ),
        ({"priority": 1}, 400, "unknown_parameter", "priority"),
    ],
)
async def test_what_is_refused_is_named(
    serve: Serve, changes: dict[str, Any], status: int, code: str, param: str
) -> None:
    async with serve() as served:
        file = await uploaded(served.client, jsonl([line("a")]))
        body = {"input_file_id": file.id, "endpoint": "/v1/responses", "completion_window": "24h"}
        refused(await post(served, "batches", body | changes), status, code, param)
        missing = {name: value for name, value in body.items() if name != "endpoint"}
        refused(await post(served, "batches", missing), 400, "missing_required_parameter", "endpoint")
        assert [batch async for batch in served.client.batches.list()] == []


async def test_a_tenant_has_so_many_batches_that_have_not_ended(serve: Serve) -> None:
    """Those that an engine which is away keeps waiting."""
    settings = BatchSettings(max_unfinished_per_tenant=1, lines_at_once=1)
    async with serve(batches=settings, limits={"concurrent_turns": 1}) as served:
        await begun(served.client, [line(f"q{number}", max_tokens=300, ignore_eos=True) for number in range(20)])
        with pytest.raises(openai.RateLimitError) as caught:
            await begun(served.client, [line("b")])
        assert caught.value.code == "too_many_batches"
