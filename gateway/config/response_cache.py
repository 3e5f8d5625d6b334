"""The `[cache]` section."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from gateway.records.section import Positive, Seconds, Section

CacheScope = Literal["user", "tenant"]


class CacheSettings(Section, frozen=True):
    """The exact response cache, see [caching.md](caching.md)."""

    enabled: Annotated[bool, Meta(description="Look answers up in the response cache and store them there.")] = True
    ttl: Annotated[Seconds, Meta(le=2_592_000, description="Seconds that a stored answer is kept.")] = 3600.0
    max_entry_bytes: Annotated[Positive, Meta(description="Largest answer that is stored.")] = 65_536
    max_entries_per_tenant: Annotated[Positive, Meta(description="Entries of one tenant; oldest go first.")] = 10_000
    max_bytes_per_tenant: Annotated[
        Positive, Meta(description="Most bytes of one tenant's stored answers; the oldest are deleted first.")
    ] = 67_108_864
    scope: Annotated[
        CacheScope,
        Meta(
            description="Who may be given a stored answer: `user`: the user (or API key) that asked first; `tenant`: "
            "everybody of the tenant, unless personal data is involved."
        ),
    ] = "user"
    tenant_scopes: Annotated[
        dict[Annotated[str, Meta(pattern="^[A-Za-z0-9_.-]{1,64}$")], CacheScope],
        Meta(description="Scope of single tenants, instead of `scope`."),
    ] = {}
    follow_seconds: Annotated[
        Seconds,
        Meta(
            description="Seconds that a request which follows an equal one waits for its next piece of text before it"
            " asks an engine itself."
        ),
    ] = 10.0

    @property
    def bounds(self) -> dict[str, Any]:
        """The bounds that `cache.response.ResponseCache` takes."""
        return {"ttl": self.ttl, "max_entries": self.max_entries_per_tenant, "max_bytes": self.max_bytes_per_tenant}
