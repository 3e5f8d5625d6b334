"""The `[batches]` section."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.records.section import Positive, Section

Kept = Annotated[int, Meta(ge=3600, le=2_592_000)]


class BatchSettings(Section, frozen=True):
    """Uploaded files and batches of requests, see [batches.md](batches.md)."""

    ttl: Annotated[
        Kept, Meta(description="Seconds that Redis keeps files and batches, unless a request names fewer.")
    ] = 2_592_000
    max_file_bytes: Annotated[Positive, Meta(description="Largest file that can be uploaded.")] = 33_554_432
    max_lines: Annotated[Positive, Meta(description="Most lines of an uploaded file.")] = 50_000
    max_files_per_tenant: Annotated[Positive, Meta(description="Most files of one tenant.")] = 1_000
    max_bytes_per_tenant: Annotated[
        Positive,
        Meta(description="Bytes of one tenant's files above which it can upload no more; results count too."),
    ] = 134_217_728
    max_unfinished_per_tenant: Annotated[
        Positive, Meta(description="Most batches of one tenant that have not ended.")
    ] = 20
    lines_at_once: Annotated[Positive, Meta(description="Most requests of batches that one gateway runs at once.")] = 16
    lines_at_once_per_tenant: Annotated[
        Positive, Meta(description="Most requests of one tenant's batches that run at once.")
    ] = 8
    share_of_limits: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="Part of a tenant's rates and running turns that batches use; the rest is left to its other "
            "requests.",
        ),
    ] = 0.5
