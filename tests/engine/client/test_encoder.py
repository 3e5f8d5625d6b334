"""Conversations are encoded beside each other, and one that costs too much costs no other."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from engine.client.encoder import ConversationEncoder
from engine.limited_process import START_SECONDS
from engine.text.chat_template import ChatTemplateTooCostly
from engine.text.processor import TextProcessor
from tests.engine.text.test_rendering import HOSTILE, TIME, chat, folder, quick

__all__ = ["quick"]

pytestmark = pytest.mark.anyio


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("hostile", list(HOSTILE)[1:6:2])
async def test_tasks_lose_nothing_by_a_conversation_that_costs_too_much(tmp_path: Path, hostile: str) -> None:
    """Those that were sent behind it are rendered by the next process."""
    source = "{% if messages[0].content == 'boom' %}" + hostile + "{% else %}{{ messages[0].content }}{% endif %}"
    text = TextProcessor.from_path(folder(tmp_path, source))
    encoder = ConversationEncoder(text)
    said = ["first", "boom", *map(str, range(50)), "boom", "last"]
    found = await asyncio.gather(*(encoder.encode(chat(content)) for content in said), return_exceptions=True)
    await encoder.aclose()
    for content, ids in zip(said, found, strict=True):
        if content == "boom":
            assert isinstance(ids, ChatTemplateTooCostly) and HOSTILE[hostile] in str(ids)
        else:
            assert isinstance(ids, list) and text.decode(ids) == content


async def test_a_task_that_no_longer_waits_takes_no_answer_from_others(tmp_path: Path) -> None:
    text = TextProcessor.from_path(folder(tmp_path, "{{ messages[0].content }}"))
    encoder = ConversationEncoder(text)
    await encoder.start()
    tasks = [asyncio.create_task(encoder.encode(chat(str(number)))) for number in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    await encoder.aclose()
    for number, ids in enumerate(found):
        if number % 3 == 0:
            assert isinstance(ids, asyncio.CancelledError)
        else:
            assert isinstance(ids, list) and text.decode(ids) == str(number)


@pytest.mark.parametrize("content", ["short", "long " * 10_000])
async def test_tasks_and_threads_get_the_same_token_ids(tmp_path: Path, content: str) -> None:
    text = TextProcessor.from_path(folder(tmp_path, "<|user|>{{ messages[0].content }}"))
    encoder = ConversationEncoder(text)
    assert await encoder.encode(chat(content)) == text.encode_chat(chat(content))
    last = {"add_generation_prompt": False, "continue_final_message": True}
    assert await encoder.encode(chat(content), **last) == text.encode_chat(chat(content), **last)
    await encoder.aclose()


async def test_a_process_that_was_killed_is_replaced_for_tasks(tmp_path: Path) -> None:
    text = TextProcessor.from_path(folder(tmp_path, "{{ messages[0].content }}"))
    encoder = ConversationEncoder(text)
    await encoder.encode(chat("a"))
    await encoder.aclose()
    assert text.decode(await encoder.encode(chat("b"))) == "b"
    await encoder.aclose()


@pytest.mark.usefixtures("quick")
async def test_a_process_that_does_not_answer_counts_as_hung(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = TextProcessor.from_path(folder(tmp_path, "{{ messages[0].content }}"))
    encoder = ConversationEncoder(text)
    await encoder.start()
    line = encoder._process._line
    assert line is not None
    monkeypatch.setattr("engine.client.shared_process.PATIENCE", 0.1)
    line._process.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(START_SECONDS / 2):  # what its start might have taken is no patience with it
        with pytest.raises(ChatTemplateTooCostly, match=TIME):
            await encoder.encode(chat("a"))
    assert text.decode(await encoder.encode(chat("b"))) == "b"
    await encoder.aclose()


async def test_a_process_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = TextProcessor.from_path(folder(tmp_path, "{{ messages[0].content }}"))
    encoder = ConversationEncoder(text)
    with monkeypatch.context() as patch:
        patch.setattr("engine.limited_process.sys.executable", "/bin/false")
        with pytest.raises(OSError, match=r"engine\.text\.template_worker does not start"):
            await encoder.encode(chat("a"))
    assert text.decode(await encoder.encode(chat("b"))) == "b"
    await encoder.aclose()
