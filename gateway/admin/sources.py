"""Which addresses an adapter may be fetched from: those below a configured one, after normalising. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gateway.errors import Forbidden, InvalidRequest

MAX_LENGTH = 1024
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_SEGMENT = re.compile(r"[A-Za-z0-9_.@=+,-]+")
"""Nothing that some store might read as more than a name: no escapes, no queries, no wildcards, no chains."""


def normalise(address: str) -> str:
    """An address in the one form in which it is compared and fetched: no slash at its end.

    Raises:
        ValueError: it is not a plain address.
    """
    if len(address) > MAX_LENGTH:
        raise ValueError(f"longer than {MAX_LENGTH} characters")
    scheme, separator, rest = address.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        raise ValueError("expected an address such as s3://bucket/folder")
    host, *segments = rest.rstrip("/").split("/")
    if scheme == "file":
        if host:
            raise ValueError("file:/// takes no host")
    elif not re.fullmatch(r"[A-Za-z0-9_.-]+(:[0-9]{1,5})?", host):
        raise ValueError("its host or bucket is no plain name")
    for segment in segments:
        if segment in (".", "..") or not _SEGMENT.fullmatch(segment):
            raise ValueError(f"{segment!r} is no plain name: use A-Z a-z 0-9 _ . @ = + , -")
    return f"{scheme}://{'/'.join([host if scheme == 'file' else host.lower(), *segments])}"


def allowed(address: str, sources: Sequence[str]) -> str:
    """The normalised address.

    Args:
        sources: addresses that it must be or be below.

    Raises:
        InvalidRequest: it is not a plain address.
        Forbidden: it is not below one of them.
    """
    try:
        normal = normalise(address)
    except ValueError as error:
        raise InvalidRequest(f"source: {error}", param="source", code="invalid_value") from None
    for source in sources:
        if normal == (root := normalise(source)) or normal.startswith(root.rstrip("/") + "/"):
            return normal
    raise Forbidden(
        "source: not below an address in adapters.sources; list its store there, or upload the files",
        param="source",
        code="source_not_allowed",
    )
