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

from engine.limited_process import LimitedProcess, LimitExceeded, ProcessLimits
from engine.text.chat_template import ChatTemplate, ChatTemplateError, ChatTemplateTooCostly, Message

_LIMITS = ProcessLimits(cpu_seconds=2.0, memory_bytes=512 * 1024 * 1024)


class TemplateRenderer:
    """Renders conversations with one checkpoint's templates; any thread may call it, and it runs one at a time.

    Args:
        tokens: control tokens, which clients may spell out in their text.
    """

    def __init__(self, template: ChatTemplate, tokens: Collection[str]) -> None:
        setup = {"sources": template.sources, "special_tokens": template.special_tokens, "tokens": list(tokens)}
        self._process = LimitedProcess("engine.text.template_worker", json.dumps(setup).encode(), _LIMITS)
        self._lock = threading.Lock()
        weakref.finalize(self, self._process.close)

    def render(
        self,
        messages: Sequence[Message],
        *,
        mark: bool,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any],
    ) -> str:
        """Render a conversation; `mark` marks control tokens in text of clients (`imitations.py`).

        Raises:
            ChatTemplateError: see `ChatTemplate.render`; ChatTemplateTooCostly if it exceeds a limit.
            OSError: the process cannot be started, or was ended by something else.
        """
        asked = {
            "mark": mark,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "variables": variables,
        }
        try:
            with self._lock:
                answer = json.loads(self._ask(json.dumps(asked).encode()))
        except LimitExceeded as error:
            answer = {"costly": f"takes {error}"}
        if "costly" in answer:
            raise ChatTemplateTooCostly(answer["costly"])
        if "error" in answer:
            raise ChatTemplateError(answer["error"])
        text: str = answer["text"]
        return text

    def _ask(self, message: bytes) -> bytes:
        try:
            return self._process.ask(message)
        except OSError:
            return self._process.ask(message)  # something has ended the process since the last conversation
