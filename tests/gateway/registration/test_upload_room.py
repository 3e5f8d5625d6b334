"""Uploads of a tenant are bounded in number and bytes, and what was abandoned is removed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gateway.errors import RateLimited, Unavailable
from gateway.registration.upload_room import ABANDONED_SECONDS, MOST_RECEIVED, MOST_RECEIVED_OF_TENANT, UploadRoom

pytestmark = pytest.mark.anyio


async def test_a_tenant_sends_so_many_at_the_same_time(tmp_path: Path) -> None:
    """Which does not keep others from sending theirs."""
    room = UploadRoom(tmp_path, max_tenant_bytes=100)
    sent = [room.begin("acme") for _ in range(MOST_RECEIVED_OF_TENANT)]
    with pytest.raises(RateLimited):
        room.begin("acme")
    room.begin("other")
    sent[0].received()
    room.begin("acme")


async def test_a_gateway_receives_so_many_at_the_same_time(tmp_path: Path) -> None:
    room = UploadRoom(tmp_path, max_tenant_bytes=100)
    for number in range(MOST_RECEIVED):
        room.begin(f"tenant-{number}")
    with pytest.raises(Unavailable):
        room.begin("one-more")


async def test_bytes_count_until_an_upload_is_removed(tmp_path: Path) -> None:
    room = UploadRoom(tmp_path, max_tenant_bytes=100)
    first, second = room.begin("acme"), room.begin("acme")
    first.add(60)
    first.received()
    second.add(40)
    with pytest.raises(RateLimited, match="100 bytes"):
        second.add(1)
    room.begin("other").add(100)
    room.begin(None).add(10_000)
    await first.remove()
    await first.remove()
    second.add(60)
    with pytest.raises(RateLimited):
        second.add(1)


async def test_what_was_abandoned_is_removed(tmp_path: Path) -> None:
    """Not what this process has, nor what another one still writes."""
    room = UploadRoom(tmp_path / "uploads", max_tenant_bytes=100)
    await room.prune()
    own = room.begin("acme").folder
    others = [tmp_path / "uploads" / name for name in ("old", "written")]
    for folder in (own, *others):
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"x")
    (tmp_path / "uploads" / "dangling").symlink_to(tmp_path / "nowhere")
    long_ago = time.time() - ABANDONED_SECONDS - 1
    for path in (own / "weights", own, others[0] / "weights", *others):
        os.utime(path, (long_ago, long_ago))
    await room.prune()
    assert {path.name for path in (tmp_path / "uploads").iterdir()} == {own.name, "written", "dangling"}
