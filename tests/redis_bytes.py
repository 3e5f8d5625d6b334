"""What a Redis would write to disk, to look for what must not be there."""

from __future__ import annotations

from pathlib import Path

import redis


def dumped(url: str) -> bytes:
    """Return all that a Redis on this machine holds, as it lies in its file, uncompressed."""
    with redis.Redis.from_url(url) as client:
        client.config_set("rdbcompression", "no")
        client.save()
        options = client.config_get("d*")
    return Path(options["dir"], options["dbfilename"]).read_bytes()
