"""Decides from which addresses an adapter may be fetched: those below a configured one, after normalising. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gateway.errors import Forbidden, invalid_value

MAX_LENGTH = 1024
_NAME = "[A-Za-z0-9_@=+,-][A-Za-z0-9_.@=+,-]*"
PATTERN = rf"^(file://|(?!file:)[a-z][a-z0-9+.-]*://[A-Za-z0-9_-][A-Za-z0-9_.-]*(:[0-9]{{1,5}})?)(/{_NAME})*/?$"
"""Plain address: names between slashes, none of which begins with a dot. Excludes whatever a store might read as more
than a name: escapes, queries, wildcards, chains and passwords."""


def normalise(address: str) -> str:
    """Return the one form in which an address is compared and fetched: host in lower case, no slash at the end.

    Raises:
        ValueError: it is not a plain address.
    """
    if len(address) > MAX_LENGTH or address.endswith("\n") or not re.match(PATTERN, address):
        raise ValueError(
            "expected an address such as s3://bucket/folder or file:///folder: plain names, none that begins with a dot"
        )
    scheme, _, rest = address.partition("://")
    host, *names = rest.rstrip("/").split("/")
    return f"{scheme}://{'/'.join([host.lower(), *names])}"


def allowed(address: str, sources: Sequence[str]) -> str:
    """Return the normalised address if an adapter may be fetched from it.

    Args:
        sources: addresses that it must be or be below.

    Raises:
        InvalidRequest: it is not a plain address.
        Forbidden: it is not below one of them.
    """
    try:
        normal = normalise(address)
    except ValueError as error:
        raise invalid_value("source", f"{error}") from None
    for source in sources:
        if normal == (root := normalise(source)) or normal.startswith(root.rstrip("/") + "/"):
            return normal
    raise Forbidden(
        "source: not below an address in adapters.sources; list its store there, or upload the files",
        param="source",
        code="source_not_allowed",
    )
