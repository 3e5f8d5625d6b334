"""The gateway's side of a server that answers conversations: text and calls come back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Unpack

import msgspec

from engine.client.conversation import ChatPrompt
from engine.client.generation import EngineGone, Generation, RequestFailed, RequestInvalid, UnreadableOutput
from engine.client.upstream import GenerateOptions
from engine.text.processor import TextProcessor
from engine.wire import Generate, ModelInfo, SamplingParams
from gateway.upstreams.dialect import ServerDescription
from gateway.upstreams.messages.answer import MessageAnswer
from gateway.upstreams.messages.body import request_body
from gateway.upstreams.messages.dialect import MessageDialect, MessageEvent
from gateway.upstreams.messages.reading import MessageReader, UnofferedCall
from gateway.upstreams.pages import ServerAccess, ServerPages
from gateway.upstreams.refusal import server_failure
from gateway.upstreams.server import ServerClient, logger

_NAMED = 5
"""Most models of a server that an error names."""


class MessageUpstream(ServerClient):
    """Has one server answer conversations, see `Upstream`. A server that is lost takes its answers with it."""

    resumes = False

    def __init__(
        self,
        address: str,
        dialect: MessageDialect,
        model: str,
        context: int,
        access: ServerAccess,
        *,
        silence: float = 10.0,
        on_fault: Callable[[], None] = lambda: logger.exception("a fault of ours"),
    ) -> None:
        """
        Args:
            model: its name at the server.
            context: most tokens of a conversation and its answer, which such servers do not tell.
            silence, on_fault: see `ServerClient`.
        """
        super().__init__(address, dialect, access, silence=silence, on_fault=on_fault)
        self._dialect = dialect
        self._events = msgspec.json.Decoder(dialect.event)
        self._model = model
        self._context = context

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
        """Refuse, see `Upstream`."""
        raise RequestInvalid("prompt: this model takes messages only", started=False, field="prompt")

    def converse(
        self,
        conversation: ChatPrompt,
        sampling: SamplingParams,
        *,
        stop: Sequence[str] = (),
        **options: Unpack[GenerateOptions],
    ) -> MessageAnswer:
        """See `Upstream`."""
        http, model = self._ready(started=False)
        if conversation.tokens >= self._context:
            raise RequestInvalid(
                f"prompt: about {conversation.tokens} tokens leave no room for an answer within the {self._context} "
                "that this model takes; shorten the prompt",
                started=False,
                field="prompt",
            )
        request = Generate(self._new_id(), [], sampling, **options)
        body = request_body(conversation, request, self._dialect, model.name)
        answer = MessageAnswer(request.id, conversation.tokens, self._cancel, stop=stop)
        reader = MessageReader({tool.name for tool in conversation.tools}, sampling.logprobs)
        self._prompt_tokens += conversation.tokens
        self._begin(http, _StreamedMessage(answer, reader, self._events, self.address), request, body)
        return answer

    def resume(self, generation: Generation) -> None:
        """Refuse, see `Upstream`."""
        raise EngineGone("this server cannot go on in the middle of an answer", started=True)

    def hand_on(self) -> int:
        """See `Upstream`: nobody could go on."""
        return 0

    async def _description(self, server: ServerPages) -> tuple[ServerDescription, ModelInfo]:
        served, dialect = self._dialect.served(*await server.about()), self._dialect.name
        is_listed = self._dialect.is_listed
        identity = next((served[name] for name in served if is_listed(self._model, name)), None)
        if identity is None:
            others = ", ".join([*served][:_NAMED]) or "none"
            raise ValueError(f"it has no model {self._model}; set `model` of the pool to one that it has: {others}")
        found = ServerDescription(self._model, self._context, identity)
        return found, ModelInfo(
            name=self._model,
            revision=hashlib.blake2b(f"{dialect}\n{identity}".encode(), digest_size=16).hexdigest(),
            context=self._context,
            vocabulary=0,
            eos_token_ids=(),
            block_size=0,
            device=dialect,
            dtype="",
        )


class _StreamedMessage:
    """An answer in parts, see `StreamedAnswer`."""

    mark = 0

    def __init__(
        self, stream: MessageAnswer, reader: MessageReader, events: msgspec.json.Decoder[MessageEvent], address: str
    ) -> None:
        self.stream = stream
        self._reader = reader
        self._events = events
        self._address = address

    @property
    def begun(self) -> bool:
        return self._reader.tokens > 0

    @property
    def ended(self) -> bool:
        return self._reader.ended

    def accept(self) -> None:
        """Wait for the first event: some servers say only there that they refuse a request."""

    def take(self, event: str) -> int:
        chunk = self._events.decode(event).chunk()
        if chunk.error is not None:
            raise server_failure(chunk.error, self._address, started=self.stream.started)
        before = self._reader.tokens
        try:
            output = self._reader.read(chunk)
        except UnofferedCall:
            raise UnreadableOutput(started=self.stream.started) from None
        self.stream.accept()
        self.stream.feed(output.parts, output.tokens)
        if chunk.usage is not None:
            self.stream.count(self._reader.usage)
        return output.tokens - before

    def end(self) -> bool:
        last = self._reader.end()
        if last is None:
            return False
        self.stream.feed(last.parts, self._reader.tokens)
        self.stream.count(self._reader.usage)
        if last.finish == "error":
            message = f"server {self._address} has ended its answer for a reason of its own"
            raise RequestFailed(message, started=self.stream.started)
        self.stream.end(last.finish, filtered=last.filtered)
        return True

    def out_of_time(self) -> None:
        self.stream.end("timeout")
