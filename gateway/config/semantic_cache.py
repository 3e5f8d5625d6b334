"""The `[embedder]` and `[semantic_cache]` sections."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.records.section import Positive, Seconds, Section, SettingsError


class EmbedderSettings(Section, frozen=True):
    """Sentence embeddings, computed in a process of its own, see [caching.md](caching.md#embeddings)."""

    enabled: Annotated[bool, Meta(description="Run the embedder: `serve` starts it once the chat is ready.")] = True
    address: Annotated[
        str | None, Meta(description="Address (unix://) of an embedder that runs already; empty: `serve` starts one.")
    ] = None
    model: Annotated[
        str,
        Meta(
            description="Directory of a sentence-transformers model, or its name on Hugging Face's hub; empty: "
            "all-MiniLM-L6-v2, which is installed and needs no network."
        ),
    ] = ""
    name: Annotated[str, Meta(description="Name of the model for clients; empty: the last part of `model`.")] = ""
    device: Annotated[Literal["cpu", "cuda"], Meta(description="Device that the embedder runs on.")] = "cpu"
    threads: Annotated[Positive, Meta(description="CPU threads of the embedder.")] = 1
    queue: Annotated[int, Meta(ge=64, description="Most texts that wait for the embedder; more are refused.")] = 4096
    timeout: Annotated[
        Seconds, Meta(description="Seconds that a turn waits for its embedding; without it the turn is a miss.")
    ] = 0.1
    dimensions: Annotated[
        list[int],
        Meta(
            description="Lengths to which `dimensions` of `/v1/embeddings` may cut vectors beside the model's own: "
            "those it was trained for (Matryoshka)."
        ),
    ] = []


Promise = Annotated[float, Meta(ge=0, le=0.2)]


class SemanticCacheSettings(Section, frozen=True):
    """Answers to similar questions, see [caching.md](caching.md#the-semantic-cache)."""

    enabled: Annotated[bool, Meta(description="Use this cache; needs the embedder and `cache.enabled`.")] = False
    max_wrong_hits: Annotated[
        Promise,
        Meta(
            description="Highest share of the answers given to similar questions that may be wrong, for every tenant; "
            "where comparisons do not show that it is kept, none is given. 0: none is given."
        ),
    ] = 0.02
    tenants: Annotated[
        dict[Annotated[str, Meta(pattern="^[A-Za-z0-9_.-]{1,64}$")], Promise],
        Meta(description="`max_wrong_hits` of single tenants; 0 switches the cache off."),
    ] = {}
    max_questions_per_tenant: Annotated[
        int, Meta(ge=4, description="Most questions of one tenant; oldest go first. A partition has a quarter at most.")
    ] = 10_000
    embedding_ttl: Annotated[Seconds, Meta(description="Seconds Redis keeps the embedding of a question.")] = 86_400.0
    max_embedding_bytes_per_tenant: Annotated[
        Positive, Meta(description="Most bytes of one tenant's embeddings in Redis; the oldest are deleted first.")
    ] = 16_777_216

    def promise_of(self, tenant: str) -> float:
        """Highest share of a tenant's hits that may be wrong; 0 if the cache is off."""
        return self.tenants.get(tenant, self.max_wrong_hits) if self.enabled else 0.0


def check_embedder(embedder: EmbedderSettings) -> None:
    """
    Raises:
        SettingsError: the address or a length of vectors is not valid.
    """
    if embedder.address is not None and not embedder.address.startswith("unix:///"):
        raise SettingsError(f"embedder.address: {embedder.address!r} is no address; use unix:///path")
    if any(length < 1 for length in embedder.dimensions):
        raise SettingsError("embedder.dimensions: a length must be at least 1")
