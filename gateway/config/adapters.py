"""The `[adapters]` section."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.records.section import Positive, Seconds, Section


class AdapterSettings(Section, frozen=True):
    """LoRA adapters, which clients name as `model`; see [adapters.md](adapters.md)."""

    registry: Annotated[
        str | None,
        Meta(
            description="Folder or address (s3://bucket/path, ...) of the registry; empty: `adapters` in `redis.data`. "
            "Engines that `serve` does not start need the same with `--adapters`."
        ),
    ] = None
    poll: Annotated[Seconds, Meta(description="Seconds between two reads of the registry's names.")] = 0.5
    sources: Annotated[
        list[str],
        Meta(
            description="Stores from which the admin API may register adapters: addresses that theirs must begin with, "
            'such as `["s3://bucket/adapters", "file:///srv/adapters"]`.'
        ),
    ] = []
    max_upload_bytes: Annotated[
        Positive, Meta(description="Largest weights that the admin API takes, uploaded or fetched.")
    ] = 2_147_483_648
    max_upload_bytes_per_tenant: Annotated[
        Positive,
        Meta(description="Bytes of one tenant's uploads that one gateway holds until they are registered."),
    ] = 4_294_967_296
