"""The `[chat]` section."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.records.section import Positive, Seconds, Section

HistoryPlace = Literal["browser", "server", "off"]
_TenantName = Annotated[str, Meta(pattern="^[A-Za-z0-9_.-]{1,64}$")]
Readers = Literal["off", "tenant", "anyone"]


class ChatSettings(Section, frozen=True):
    """Where the chat page keeps conversations, see [chat-page.md](chat-page.md#where-conversations-are-kept)."""

    history: Annotated[
        HistoryPlace,
        Meta(
            description="Where conversations are kept: in the `browser`, on the `server` (those of callers without a "
            "user in the browser), or in their tab only (`off`)."
        ),
    ] = "browser"
    tenants: Annotated[
        dict[_TenantName, HistoryPlace],
        Meta(description="`history` of single tenants."),
    ] = {}
    keep: Annotated[Seconds, Meta(description="Seconds Redis keeps a conversation after its last change.")] = (
        7_776_000.0
    )
    max_bytes_per_user: Annotated[
        Positive, Meta(description="Most bytes of one user's conversations, before they are compressed.")
    ] = 33_554_432

    sharing: Annotated[
        Readers,
        Meta(
            description="Who may read a conversation that is shared, if they have its address: nobody (`off`), callers "
            "of the same tenant, or anyone. Tenants whose `history` is `off` share none."
        ),
    ] = "tenant"

    comments: Annotated[
        bool,
        Meta(
            description="Whether users may write a comment beside their rating of an answer, for their tenant's admins."
        ),
    ] = False
    tenant_comments: Annotated[dict[_TenantName, bool], Meta(description="`comments` of single tenants.")] = {}

    def comments_of(self, tenant: str) -> bool:
        """Whether a tenant's users may write comments."""
        return self.tenant_comments.get(tenant, self.comments)

    def sharing_of(self, tenant: str) -> Readers:
        """Who may read what a tenant's callers share."""
        return "off" if self.history_of(tenant, has_user=True) == "off" else self.sharing

    def history_of(self, tenant: str, *, has_user: bool) -> HistoryPlace:
        """Where conversations of a caller are kept. Args: has_user: whether it is known which user calls."""
        place = self.tenants.get(tenant, self.history)
        return "browser" if place == "server" and not has_user else place
