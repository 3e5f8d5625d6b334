"""`/v1/files`, driven by the real `openai` client."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest
from openai.types import FileDeleted, FileObject
from redis.asyncio import Redis

from gateway.config.batches import BatchSettings
from gateway.config.settings import ServerSettings
from tests.gateway.batches.use import jsonl, line, uploaded
from tests.gateway.conftest import KEY, Serve, Served
from tests.gateway.engines.test_adapters import OTHER_KEY, TENANTS
from tests.gateway.http.test_refusals import refused

pytestmark = pytest.mark.anyio

CONTENT = jsonl(line(f"question {number}") for number in range(3))


async def send(served: Served, *, key: str | None = KEY, **form: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(headers=headers, verify=False) as client:
        return await client.post(f"{served.base_url}/files", **form)


async def test_a_file_is_uploaded_described_read_and_deleted(serve: Serve) -> None:
    """Each answer is valid in OpenAI's types, strictly."""
    async with serve() as served:
        files = served.client.files
        raw = await files.with_raw_response.create(file=("Übung.jsonl", CONTENT), purpose="batch")
        file = FileObject.model_validate_json(raw.content, strict=True)
        assert (file.filename, file.bytes, file.purpose) == ("Übung.jsonl", len(CONTENT), "batch")
        assert file.expires_at == file.created_at + served.gateway.settings.batches.ttl
        assert file.model_extra == {}
        assert await files.retrieve(file.id) == file
        answer = await files.content(file.id)
        assert answer.content == CONTENT
        assert answer.response.headers["content-length"] == str(len(CONTENT))
        raw = await files.with_raw_response.delete(file.id)
        assert FileDeleted.model_validate_json(raw.content, strict=True).deleted
        for gone in (files.retrieve, files.content, files.delete):
            with pytest.raises(openai.NotFoundError) as caught:
                await gone(file.id)
            assert caught.value.code == "file_not_found"


async def test_a_file_larger_than_a_request_may_be_is_taken_in_pieces(serve: Serve) -> None:
    """The limit of other bodies does not hold for it."""
    content = CONTENT * 20_000
    async with serve(server={"max_message_bytes": 100_000}, batches=BatchSettings(max_lines=100_000)) as served:
        file = await uploaded(served.client, content)
        assert (await served.client.files.content(file.id)).content == content
    assert len(content) > 8_000_000 > ServerSettings().max_message_bytes


async def test_a_file_is_kept_as_long_as_the_client_says(serve: Serve) -> None:
    async with serve() as served:
        file = await served.client.files.create(
            file=("a", CONTENT), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert file.expires_at == file.created_at + 3600
        [key] = [each async for each in served.gateway.redis.scan_iter("rh1:file:*")]
        assert 3500 < await served.gateway.redis.ttl(key) <= 3600


async def test_pages_follow_one_another(serve: Serve) -> None:
    """The client's own iteration sees every file once, in both orders; by purpose too."""
    async with serve() as served:
        files = served.client.files
        ids = [(await uploaded(served.client, CONTENT, f"{number}.jsonl")).id for number in range(5)]
        assert [file.id async for file in files.list(limit=2, order="asc")] == ids
        assert [file.id async for file in files.list(limit=3)] == ids[::-1]
        assert [file.id async for file in files.list(purpose="batch")] == ids[::-1]
        assert [file.id async for file in files.list(purpose="batch_output")] == []
        for wrong in ({"limit": 0}, {"limit": 10_001}, {"order": "up"}, {"after": "file-x"}):
            with pytest.raises(openai.BadRequestError) as caught:
                await files.list(**wrong)  # type: ignore[arg-type]
            assert caught.value.param == next(iter(wrong))


async def test_another_tenant_finds_none_of_it(serve: Serve) -> None:
    async with serve(tenants=TENANTS) as served:
        file = await uploaded(served.client, CONTENT)
        stranger = served.client.with_options(api_key=OTHER_KEY)
        assert [each async for each in stranger.files.list()] == []
        for attempt in (stranger.files.retrieve, stranger.files.content, stranger.files.delete):
            with pytest.raises(openai.NotFoundError):
                await attempt(file.id)
        with pytest.raises(openai.NotFoundError) as caught:
            await stranger.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")
        assert (caught.value.param, caught.value.code) == ("input_file_id", "file_not_found")
        assert (await served.client.files.content(file.id)).content == CONTENT


FILE = {"file": ("a.jsonl", CONTENT)}


@pytest.mark.parametrize(
    ("form", "status", "code", "param"),
    [
        ({"json": {"purpose": "batch"}}, 415, "unsupported_media_type", "content-type"),
        ({"files": FILE}, 400, "missing_required_parameter", "purpose"),
        ({"files": {"purpose": (None, "batch")}}, 400, "missing_required_parameter", "file"),
        ({"files": FILE, "data": {"purpose": "fine-tune"}}, 400, "unsupported_parameter", "purpose"),
        ({"files": FILE, "data": {"purpose": "vision"}}, 400, "unsupported_parameter", "purpose"),
        ({"files": FILE, "data": {"purpose": "fun"}}, 400, "invalid_value", "purpose"),
        ({"files": FILE, "data": {"purpose": "batch", "color": "red"}}, 400, "unknown_parameter", "color"),
        ({"files": FILE, "data": {"purpose": "x" * 65}}, 413, "request_too_large", "purpose"),
        (
            {"files": FILE, "data": {"purpose": "batch", "expires_after[anchor]": "created_at"}},
            400,
            "missing_required_parameter",
            "seconds",
        ),
        (
            {
                "files": FILE,
                "data": {
                    "purpose": "batch",
                    "expires_after[anchor]": "created_at",
                    "expires_after[seconds]": "60",
                },
            },
            400,
            "invalid_value",
            "seconds",
        ),
        ({"files": {"file": ("a", b"x" * 2001)}, "data": {"purpose": "batch"}}, 413, "request_too_large", "file"),
        ({"files": {"file": ("a", b"\n" * 11)}, "data": {"purpose": "batch"}}, 413, "request_too_large", "file"),
        (
            {"content": b"x" * 100, "headers": {"content-type": "multipart/form-data; boundary=b"}},
            400,
            "invalid_multipart",
            None,
        ),
    ],
)
async def test_what_is_refused_is_named_and_leaves_nothing(
    serve: Serve, redis_url: str, form: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    async with serve(batches=BatchSettings(max_file_bytes=2000, max_lines=10)) as served:
        refused(await send(served, **form), status, code, param)
        refused(await send(served, key=None, **form), 401, "missing_api_key")
        async with Redis.from_url(redis_url) as redis:
            assert await redis.keys("rh1:file*") == []


async def test_a_tenant_with_too_many_files_deletes_some(serve: Serve) -> None:
    async with serve(batches=BatchSettings(max_files_per_tenant=1)) as served:
        first = await uploaded(served.client, CONTENT)
        with pytest.raises(openai.ConflictError) as caught:
            await uploaded(served.client, CONTENT)
        assert caught.value.code == "too_many_files"
        await served.client.files.delete(first.id)
        await uploaded(served.client, CONTENT)
