"""The gateway's side of a server that continues token ids: tokens in and out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Unpack

import httpx2
import msgspec

from engine.client.answer_stream import AnswerStream
from engine.client.conversation import ChatPrompt
from engine.client.generation import EngineGone, Generation, RequestInvalid
from engine.client.upstream import GenerateOptions
from engine.text.processor import TextProcessor
from engine.wire import Generate, ModelInfo, Output, SamplingParams
from gateway.upstreams.adapters import AdapterAccess
from gateway.upstreams.body import model_info, request_body, seed_of
from gateway.upstreams.dialect import AnswerEvent, ServerDescription, TokenDialect
from gateway.upstreams.pages import ServerAccess, ServerPages
from gateway.upstreams.reading import ChunkReader
from gateway.upstreams.refusal import server_failure
from gateway.upstreams.server import ServerClient, logger


class HttpUpstream(ServerClient):
    """Has one server continue token ids, see `Upstream`."""

    def __init__(
        self,
        address: str,
        dialect: TokenDialect,
        text: TextProcessor,
        access: ServerAccess,
        *,
        adapters: AdapterAccess = AdapterAccess(),  # noqa: B008  it is frozen
        silence: float = 10.0,
        on_fault: Callable[[], None] = lambda: logger.exception("a fault of ours"),
    ) -> None:
        """
        Args:
            text: tokenizer of the server's model.
            adapters, silence, on_fault: see `ServerClient`.
        """
        super().__init__(address, dialect, access, adapters=adapters, silence=silence, on_fault=on_fault)
        self._dialect = dialect
        self._events = msgspec.json.Decoder(dialect.event)
        self._text = text

    @property
    def resumes(self) -> bool:
        """See `Upstream`. A sampled answer goes on with other draws: these servers do not key them by position."""
        return self.connected

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
        """See `Upstream`."""
        http, model = self._ready(started=False)
        request = Generate(self._new_id(), list(prompt_ids), sampling, **options)
        self._adapters.check(request.adapter)
        body = request_body(request, self._dialect, model)
        generation = Generation(request, self._cancel, text=text, stop=stop, shown=shown)
        self._ask(http, generation, request, body)
        return generation

    def converse(self, conversation: ChatPrompt, *_: object, **__: object) -> AnswerStream:
        """Refuse, see `Upstream`."""
        raise RequestInvalid("prompt: this server is asked for token ids", started=False, field="prompt")

    def resume(self, generation: Generation) -> None:
        """See `Upstream`."""
        http, model = self._ready(started=True)
        if generation.request.grammar is not None:
            raise EngineGone("this server cannot go on in the middle of a grammar", started=True)
        request = generation.rest(self._new_id())
        self._adapters.check(request.adapter)
        self._ask(http, generation, request, request_body(request, self._dialect, model))
        generation.resume(request.id, self._cancel)

    def hand_on(self) -> int:
        """See `Upstream`."""
        going = [answer.stream for answer, _ in self._live.values() if answer.stream.started]
        for stream in going:
            stream.fail(EngineGone(f"server {self.address} is drained", started=True, leaving=True))
        return len(going)

    def _ask(
        self, http: httpx2.AsyncClient, generation: Generation, request: Generate, body: dict[str, object]
    ) -> None:
        self._prompt_tokens += len(request.prompt)
        reader, mark = ChunkReader(request, self._text), seed_of(request.sampling, self._dialect)
        answer = _StreamedTokens(generation, request, reader, self._events, self.address, mark)
        self._begin(http, answer, request, body)

    async def _description(self, server: ServerPages) -> tuple[ServerDescription, ModelInfo]:
        found = self._dialect.describe(*await server.about())
        return found, model_info(found, self._dialect, self._text)


class _StreamedTokens:
    """An answer in tokens, see `StreamedAnswer`."""

    def __init__(
        self,
        stream: Generation,
        request: Generate,
        reader: ChunkReader,
        events: msgspec.json.Decoder[AnswerEvent],
        address: str,
        mark: int,
    ) -> None:
        self.stream = stream
        self.mark = mark
        self._id = request.id
        self._reader = reader
        self._events = events
        self._address = address

    @property
    def begun(self) -> bool:
        return self._reader.begun

    @property
    def ended(self) -> bool:
        return self._reader.ended

    def accept(self) -> None:
        self.stream.feed(Output(self._id))

    def take(self, event: str) -> int:
        chunk = self._events.decode(event).chunk()
        if chunk.error is not None:
            raise server_failure(chunk.error, self._address, started=self.stream.started)
        output = self._reader.read(chunk)
        if output is None:
            return 0
        self.stream.feed(output)
        return len(output.tokens)

    def end(self) -> bool:
        last = self._reader.end()
        if last is not None:
            self.stream.feed(last)
        return last is not None

    def out_of_time(self) -> None:
        self.stream.feed(Output(self._id, finish="timeout"))
