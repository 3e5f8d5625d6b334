"""Encodes conversations for the tasks of one event loop, beside which the loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from engine.client.shared_process import SharedLimitedProcess
from engine.limited_process import LimitExceeded
from engine.text.chat_template import ChatTemplateTooCostly, Message
from engine.text.processor import TextProcessor
from engine.text.rendering import text_of

LONG_TEXT = 8_000
"""Characters from which a text is tokenised in a thread."""


class ConversationEncoder:
    """Encodes conversations for one checkpoint. A process that is busy with one gets those that come meanwhile."""

    def __init__(self, text: TextProcessor) -> None:
        self._text = text
        self._process = SharedLimitedProcess(*text.renderer.process)

    async def start(self) -> None:
        """Start the process that renders templates, for which the first conversation would wait.

        Raises:
            OSError: it cannot be started.
        """
        await self._process.start()

    async def aclose(self) -> None:
        """End the process."""
        await self._process.aclose()

    async def encode(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> list[int]:
        """Return the token ids of a conversation, see `TextProcessor.encode_chat`.

        Raises:
            ChatTemplateError: as there.
            OSError: the process cannot be started, or was ended by something else.
        """
        asked = self._text.conversation(messages, add_generation_prompt, tools, continue_final_message, variables)
        rendered = text_of(await self._ask(asked.encode()))
        encode = partial(self._text.encode_rendered, rendered, cut=continue_final_message)
        return encode() if len(rendered) < LONG_TEXT else await asyncio.to_thread(encode)

    async def _ask(self, message: bytes) -> bytes:
        try:
            try:
                return await self._process.ask(message)
            except OSError:
                return await self._process.ask(message)  # something has ended the process since the last conversation
        except LimitExceeded as error:
            raise ChatTemplateTooCostly(f"takes {error}") from None
