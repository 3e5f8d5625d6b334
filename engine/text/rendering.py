"""Renders conversations with a chat template within limits, whatever the template does.

A template is a program that came with the checkpoint. The sandbox keeps it from all data but what it is given, yet
`'a' * 10**9` or a loop in a loop takes memory and time without end. So templates run in a process that may die of it.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from engine.limited_process import LimitedProcess, LimitExceeded, ProcessLimits
from engine.text.chat_template import ChatTemplate, ChatTemplateError, ChatTemplateTooCostly, Message

_LIMITS = ProcessLimits(cpu_seconds=2.0, memory_bytes=512 * 1024 * 1024)


class TemplateInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a chat template gets."""

    messages: Sequence[Message]
    mark: bool
    """Whether control tokens in text of clients are marked (`imitations.py`)."""
    add_generation_prompt: bool = True
    tools: Sequence[Mapping[str, Any]] | None = None
    variables: Mapping[str, Any] = {}

    def encode(self) -> bytes:
        """Return the message for the process."""
        messages = [dict(message) for message in self.messages]
        return json.dumps(msgspec.structs.asdict(self) | {"messages": messages}).encode()


class TemplateRenderer:
    """Renders conversations with one checkpoint's templates; any thread may call it, and it runs one at a time.

    Args:
        tokens: control tokens, which clients may spell out in their text.
    """

    def __init__(self, template: ChatTemplate, tokens: Collection[str]) -> None:
        setup = {"sources": template.sources, "special_tokens": template.special_tokens, "tokens": list(tokens)}
        self.process = ("engine.text.template_worker", json.dumps(setup).encode(), _LIMITS)
        """The arguments of its `LimitedProcess`."""
        self._process = LimitedProcess(*self.process)
        self._lock = threading.Lock()
        weakref.finalize(self, self._process.close)

    def render(self, conversation: TemplateInput) -> str:
        """Render a conversation.

        Raises:
            ChatTemplateError: see `ChatTemplate.render`; ChatTemplateTooCostly if it exceeds a limit.
            OSError: the process cannot be started, or was ended by something else.
        """
        message = conversation.encode()
        try:
            with self._lock:
                try:
                    answer = self._process.ask(message)
                except OSError:
                    answer = self._process.ask(message)  # something has ended it since the last conversation
        except LimitExceeded as error:
            raise ChatTemplateTooCostly(f"takes {error}") from None
        return text_of(answer)

    def close(self) -> None:
        """End the process; a later conversation starts it again."""
        with self._lock:
            self._process.close()


def text_of(answer: bytes) -> str:
    """Return the text in the answer to a `TemplateInput`.

    Raises:
        ChatTemplateError: see `TemplateRenderer.render`.
    """
    said = json.loads(answer)
    if "costly" in said:
        raise ChatTemplateTooCostly(said["costly"])
    if "error" in said:
        raise ChatTemplateError(said["error"])
    text: str = said["text"]
    return text
