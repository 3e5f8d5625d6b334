"""Settings of the embedder."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.section import Positive, Seconds, Section, SettingsError


class Embedder(Section, frozen=True):
    """Sentence embeddings, computed in a process of its own, see [caching.md](caching.md#embeddings)."""

    enabled: Annotated[bool, Meta(description="Have one: `serve` starts it once the chat is ready.")] = True
    address: Annotated[
        str | None, Meta(description="unix:// address of one that runs already; empty: `serve` starts one.")
    ] = None
    model: Annotated[
        str,
        Meta(
            description="Directory of a sentence-transformers model, or its name on Hugging Face's hub; empty: "
            "all-MiniLM-L6-v2, which is installed and needs no network."
        ),
    ] = ""
    name: Annotated[str, Meta(description="What clients call it; empty: the end of its directory's or own name.")] = ""
    device: Annotated[Literal["cpu", "cuda"], Meta(description="Device on which it runs.")] = "cpu"
    threads: Annotated[Positive, Meta(description="Its CPU threads.")] = 1
    queue: Annotated[int, Meta(ge=64, description="Most texts that wait for it; more are refused.")] = 4096
    timeout: Annotated[
        Seconds, Meta(description="Seconds that a turn waits for its embedding; a later one is a miss.")
    ] = 0.1
    dimensions: Annotated[
        list[int],
        Meta(
            description="Lengths to which `dimensions` of `/v1/embeddings` may cut vectors beside the model's own: "
            "those it was trained for (Matryoshka)."
        ),
    ] = []


def check_embedder(embedder: Embedder) -> None:
    """
    Raises:
        SettingsError: an address or a length is none.
    """
    if embedder.address is not None and not embedder.address.startswith("unix:///"):
        raise SettingsError(f"embedder.address: {embedder.address!r} is no address; use unix:///path")
    if any(length < 1 for length in embedder.dimensions):
        raise SettingsError("embedder.dimensions: a length must be at least 1")
