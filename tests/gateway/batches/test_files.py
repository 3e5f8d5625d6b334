"""Files in a real Redis."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from gateway.batches.files import PIECE, FileGone, FileStore, FileUpload, StoredFile, file_key
from gateway.config.batches import BatchSettings
from gateway.errors import Conflict, TooLarge
from gateway.storage.seal import Seal
from tests.gateway.batches.use import jsonl, line

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def store(redis_url: str, **settings: int) -> AsyncIterator[tuple[FileStore, BatchSettings, Redis]]:
    configured = BatchSettings(**settings)
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        yield FileStore(redis, Seal(b"secret"), configured), configured, redis


async def put(files: FileStore, settings: BatchSettings, *pieces: bytes, tenant: str = "acme") -> StoredFile:
    upload = FileUpload(files, tenant, settings)
    for piece in pieces:
        await upload.write(piece)
    return await upload.finish("a.jsonl", "batch", None)


async def content(files: FileStore, file: StoredFile, tenant: str = "acme") -> bytes:
    return b"".join([piece async for piece in files.content(tenant, file)])


async def test_a_file_is_what_was_sent(redis_url: str) -> None:
    """Of many pieces, of one, of none; newest first in the list; gone once deleted."""
    async with store(redis_url) as (files, settings, redis):
        sent = [[bytes(range(256)) * 2048, b"b" * (20 * PIECE + 1)], [b"x"], []]
        kept = [await put(files, settings, *pieces) for pieces in sent]
        for file, pieces in zip(kept, sent, strict=True):
            assert await files.get("acme", file.id) == file
            assert await content(files, file) == b"".join(pieces)
            assert file.bytes == sum(map(len, pieces))
        assert {file.id for file in await files.every("acme")} == {file.id for file in kept}
        assert await files.get("other", kept[0].id) is None and await files.every("other") == []
        assert await files.delete("acme", kept[0].id)
        assert not await files.delete("acme", kept[0].id)
        assert await files.get("acme", kept[0].id) is None
        with pytest.raises(FileGone):
            await content(files, kept[0])
        for key in await redis.keys("*"):
            assert 0 < await redis.ttl(key) <= settings.ttl


async def test_nothing_of_it_lies_in_redis_in_clear(redis_url: str) -> None:
    """Neither text nor names; and a piece is no other file's."""
    async with store(redis_url) as (files, settings, redis):
        file = await put(files, settings, jsonl([line("zanzibar")]))
        everything = [
            part
            for key in await redis.keys("rh1:file:*")
            for pair in (await redis.hgetall(key)).items()
            for part in pair
        ]
        assert everything
        assert not any(b"zanzibar" in part or b"a.jsonl" in part for part in everything)
        other = await put(files, settings, b"other")
        await redis.hset(file_key("acme", file.id), "0", await redis.hget(file_key("acme", other.id), "0"))
        with pytest.raises(FileGone):
            await content(files, file)


async def test_an_upload_that_was_cut_off_is_no_file(redis_url: str) -> None:
    """It ends by itself soon, and its room is given back."""
    async with store(redis_url, max_files_per_tenant=1) as (files, settings, redis):
        cut = FileUpload(files, "acme", settings)
        await cut.write(b"begun")
        assert await files.every("acme") == []
        with pytest.raises(Conflict):
            await put(files, settings, b"x")
        [key] = await redis.keys("rh1:file:*")
        assert await redis.ttl(key) < settings.ttl
        await redis.delete(key)  # as its time to live would
        await put(files, settings, b"x")
        await cut.abandon()
        assert len(await files.every("acme")) == 1


@pytest.mark.parametrize(
    ("settings", "pieces", "error", "words"),
    [
        ({"max_file_bytes": 9}, [b"12345", b"12345"], TooLarge, "9 bytes"),
        ({"max_lines": 2}, [b"a\nb", b"\nc\nd"], TooLarge, "2 lines"),
        ({"max_bytes_per_tenant": 9}, [b"12345", b"12345"], Conflict, "9 bytes in all"),
    ],
)
async def test_what_is_too_large_is_refused(
    redis_url: str, settings: dict[str, int], pieces: list[bytes], error: type[Exception], words: str
) -> None:
    async with store(redis_url, **settings) as (files, configured, _):
        with pytest.raises(error, match=words):
            await put(files, configured, *pieces)


async def test_a_tenant_has_so_many_files_and_bytes_of_its_own(redis_url: str) -> None:
    async with store(redis_url, max_files_per_tenant=2, max_bytes_per_tenant=10) as (files, settings, _):
        first = await put(files, settings, b"123456")
        await put(files, settings, b"1234")
        for more in (put(files, settings, b""), files.check_room("acme")):
            with pytest.raises(Conflict, match="2 files"):
                await more
        await files.check_room("other")
        await files.delete("acme", first.id)
        with pytest.raises(Conflict, match="10 bytes") as caught:
            await put(files, settings, b"1234567")
        assert caught.value.code == "too_many_files"
        await put(files, settings, b"1234567890", tenant="other")
        with pytest.raises(Conflict, match="10 bytes"):
            await files.check_room("other")


async def test_numbers_of_pieces_may_be_left_out(redis_url: str) -> None:
    """As in a file of results, of which some went to the other one."""
    async with store(redis_url) as (files, settings, _):
        for number in (1, 40):
            await files.write("acme", "file-1", number, json.dumps(number).encode(), adds=2)
        file = StoredFile(
            id="file-1", filename="f", purpose="batch_output", bytes=3, created_at=0, expires_at=1, pieces=50
        )
        assert await content(files, file) == b"140"
        assert settings.ttl
