"""The folder that holds adapters until they are in the registry: its quotas, and the removal of abandoned files."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections import Counter
from pathlib import Path

from gateway.errors import RateLimited, Unavailable

MOST_RECEIVED = 16
"""Most uploads that one gateway receives at the same time."""
MOST_RECEIVED_OF_TENANT = 2
ABANDONED_SECONDS = 3600.0
"""Age in seconds at which a folder that belongs to no upload of this process counts as abandoned by one that died."""


class Upload:
    """Files of one adapter, from their first byte until they are in the registry or given up."""

    def __init__(self, room: UploadRoom, folder: Path, tenant: str | None) -> None:
        self._room = room
        self.folder = folder
        self.tenant = tenant
        """Tenant whose bytes these are; None: an operator's, which are not counted."""
        self.bytes = 0
        self.receiving = True

    def add(self, count: int) -> None:
        """Count bytes before they are written.

        Raises:
            RateLimited: the tenant's uploads together would be above its quota.
        """
        self._room.take(self, count)

    def received(self) -> None:
        """Record that nothing more comes from the client."""
        self.receiving = False

    async def remove(self) -> None:
        """Delete the files, and give back their room."""
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
        self._room.left(self)


class UploadRoom:
    """Uploads of one gateway process.

    Args:
        folder: where they lie.
        max_tenant_bytes: most bytes of one tenant's uploads together, those that wait or are being registered included.
    """

    def __init__(self, folder: Path, *, max_tenant_bytes: int) -> None:
        self._folder = folder
        self._max_tenant_bytes = max_tenant_bytes
        self._here: set[Upload] = set()
        self._bytes: Counter[str | None] = Counter()

    def begin(self, tenant: str | None) -> Upload:
        """Start an upload, whose folder is not made yet. Args: tenant: whose; None: an operator's.

        Raises:
            RateLimited: the tenant sends as many as it may at the same time, or has used up its bytes.
            Unavailable: this gateway receives as many as it can.
        """
        receiving = [upload for upload in self._here if upload.receiving]
        if len(receiving) >= MOST_RECEIVED:
            raise Unavailable("too many uploads at once", code="overloaded", headers={"retry-after": "10"})
        if tenant is not None and sum(upload.tenant == tenant for upload in receiving) >= MOST_RECEIVED_OF_TENANT:
            raise RateLimited(
                f"{MOST_RECEIVED_OF_TENANT} uploads of this tenant are being received; send one after the other",
                retry_after=10,
                code="too_many_uploads",
            )
        upload = Upload(self, self._folder / secrets.token_hex(16), tenant)
        self._here.add(upload)
        return upload

    def take(self, upload: Upload, count: int) -> None:
        """See `Upload.add`."""
        if upload.tenant is not None and self._bytes[upload.tenant] + count > self._max_tenant_bytes:
            raise RateLimited(
                f"this tenant's uploads may have {self._max_tenant_bytes} bytes together until they are registered "
                "(adapters.max_upload_bytes_per_tenant); wait until its jobs have ended",
                retry_after=30,
                code="too_many_uploads",
            )
        upload.bytes += count
        self._bytes[upload.tenant] += count

    def left(self, upload: Upload) -> None:
        """See `Upload.remove`."""
        if upload in self._here:
            self._here.remove(upload)
            self._bytes[upload.tenant] -= upload.bytes
            self._bytes += Counter()  # drops tenants that have none

    async def prune(self) -> None:
        """Delete what processes that have died left behind."""
        await asyncio.to_thread(self._prune, {upload.folder for upload in self._here})

    def _prune(self, own: set[Path]) -> None:
        if not self._folder.is_dir():
            return
        for folder in self._folder.iterdir():
            if folder in own:
                continue
            times = [path.lstat().st_mtime for path in (folder, *folder.glob("*"))]
            if time.time() - max(times) > ABANDONED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
