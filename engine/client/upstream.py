"""The interface to one server that a gateway asks for tokens: an engine of ours (`EngineClient`) or another server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypedDict, Unpack

from engine.client.answer_stream import AnswerStream
from engine.client.conversation import ChatPrompt
from engine.client.generation import Generation
from engine.text.processor import TextProcessor
from engine.wire import Blocks, Grammar, Load, ModelInfo, SamplingParams, ServiceClass


class GenerateOptions(TypedDict, total=False):
    """Fields of `engine.wire.Generate` that a caller may name."""

    adapter: str | None
    salt: bytes
    grammar: Grammar | None
    tenant: str
    weight: float
    service: ServiceClass
    queue_timeout: float | None
    timeout: float | None
    speculate: bool
    request_id: str
    traceparent: str


class Upstream(Protocol):
    """Answers prompts: of token ids, which it continues, or conversations; one of both is refused. Keeps in touch with
    its server, and comes back whenever that does."""

    address: str
    server_name: str | None
    """Name that the server's certificate is for; None: the host of the address."""
    id: str
    """Id of the process that is behind the address, or was when it was connected; empty if it told none."""
    on_ready: Callable[[], None]
    """Called when the server has introduced itself."""
    info: ModelInfo | None
    """Description of the model behind it; known from the first connection on and kept while it is away."""
    load: Load | None
    """Its latest snapshot; None while it is not connected."""
    tells_blocks: bool
    """Whether it can tell which prefix blocks it holds; known once it is connected."""

    @property
    def connected(self) -> bool:
        """Whether it takes requests."""

    @property
    def resumes(self) -> bool:
        """Whether it is connected, stays, and can go on with answers that others of the same model began."""

    @property
    def leaving(self) -> bool:
        """Whether it is going away and refuses new requests."""

    @property
    def lingered(self) -> int:
        """Answers that went on in the server after their connection was closed, as far as it tells, since the start."""

    @property
    def live(self) -> int:
        """Number of generations that have not ended yet."""

    async def idle(self) -> None:
        """Wait until no generation is live."""

    async def start(self) -> None:
        """Begin to connect; returns at once."""

    async def aclose(self) -> None:
        """Close all connections; live generations raise `EngineGone`."""

    async def wait_connected(self) -> None:
        """Wait until it takes requests; from then on `info` is known. Combine with `asyncio.timeout`."""

    def retry(self) -> None:
        """Connect at once, if it is not connected, instead of after a pause."""

    def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        text: TextProcessor | None = None,
        stop: Sequence[str] = (),
        shown: Collection[int] = (),
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Start a request and return its generation; iterate over that for deltas.

        Args:
            text: turns tokens into text; needed for `stop` strings. Without it deltas carry token ids only.
            shown: special tokens that become text like any other, because they mean something to the caller.
            options: the other fields of `engine.wire.Generate`.

        Raises:
            EngineGone: it is not connected (`started` is false).
            RequestInvalid: it can never serve this request, or takes conversations only.
            ValueError: `stop` without `text`, or an empty stop string.
        """

    def converse(
        self,
        conversation: ChatPrompt,
        sampling: SamplingParams,
        *,
        stop: Sequence[str] = (),
        **options: Unpack[GenerateOptions],
    ) -> AnswerStream:
        """Ask for the answer to a conversation; iterate over it for deltas of parts.

        Raises:
            EngineGone, ValueError: as from `generate`.
            RequestInvalid: it can never serve this request, or takes token ids only.
        """

    def resume(self, generation: Generation) -> None:
        """Go on with a generation that another server of the same model has lost, at its next token.

        Raises:
            EngineGone: it is not connected, or cannot go on with what another one began.
            RequestInvalid: it can never serve the rest.
        """

    def hand_on(self) -> int:
        """End the answers that were begun as if the server went away, so that others go on; returns how many."""

    def announce(self, adapter: str) -> None:
        """Announce a request for this adapter version, so that the server can begin to load it."""

    def pin(self, adapters: Sequence[str]) -> None:
        """Keep these adapter versions loaded; replaces the last list."""

    def follow_blocks(self, listener: Callable[[Blocks], None] | None) -> None:
        """Pass the `Blocks` that it tells to `listener`; None ends that."""
