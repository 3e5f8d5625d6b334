"""Files of the Hugging Face hub, or of what its environment variables name instead (HF_ENDPOINT, HF_TOKEN, HF_HOME,
HF_HUB_CACHE, HF_HUB_OFFLINE).

`huggingface_hub` resolves the revision, sends the token and knows its cache; the bytes are fetched by ranges here, as
its own downloads do not go on in another process.
"""

from __future__ import annotations

from pathlib import Path

import httpx2
import msgspec

from gateway.models.catalogue import HubFile
from gateway.models.sources.source import SourceError, SourceInterrupted
from gateway.models.sources.web import WebFile

_PATIENCE = 10.0
"""Seconds that the hub may take to describe a repository."""


class HubDescription(msgspec.Struct, frozen=True):
    """What the hub says about a file."""

    url: str
    sha256: str | None
    """Digest of a file in large-file storage; others have none."""
    licence: str
    headers: dict[str, str]


def cached(file: HubFile) -> Path | None:
    """Return where huggingface_hub's own cache has a file, if it has."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(file.repository, file.file, revision=file.revision)
    return Path(found).resolve() if isinstance(found, str) else None


def describe(file: HubFile) -> HubDescription:
    """Ask the hub about a file.

    Raises:
        SourceError: there is no such file, or this user may not have it.
        SourceInterrupted: the hub does not answer.
    """
    from huggingface_hub import HfApi, get_token, hf_hub_url
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = f"hf:{file.repository}"
    try:
        info = HfApi().model_info(file.repository, revision=file.revision, files_metadata=True, timeout=_PATIENCE)
    except OfflineModeIsEnabled as error:
        raise SourceError(f"{where}: HF_HUB_OFFLINE is set, and the cache of huggingface_hub lacks the file") from error
    except GatedRepoError as error:
        raise SourceError(f"{where}: accept its licence on the hub, then set HF_TOKEN to your token") from error
    except RevisionNotFoundError as error:
        raise SourceError(f"{where} has no revision {file.revision}") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise SourceError(f"{where}: no such repository, or a private one, which needs HF_TOKEN") from error
    except (httpx2.HTTPError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SourceInterrupted(f"{where}: the hub does not answer ({reason})") from error
    files = {each.rfilename: each for each in info.siblings or []}
    if file.file not in files:
        others = sorted(name for name in files if name.endswith(".gguf"))
        has = f"; it has {', '.join(others)}" if others else ""
        raise SourceError(f"{where} has no file {file.file}{has}")
    large = files[file.file].lfs
    licence = next((tag.partition(":")[2] for tag in info.tags or [] if tag.startswith("license:")), "")
    return HubDescription(
        url=hf_hub_url(file.repository, file.file, revision=info.sha),
        sha256=large.sha256 if large is not None else None,
        licence=licence,
        headers={"authorization": f"Bearer {token}"} if (token := get_token()) else {},
    )


def hub_file(found: HubDescription) -> WebFile:
    """Open a file of the hub.

    Raises:
        SourceError, SourceInterrupted: it cannot be opened.
    """
    return WebFile(found.url, headers=found.headers, sha256=found.sha256)
