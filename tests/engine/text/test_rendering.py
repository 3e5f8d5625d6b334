"""Chat templates that cost more than they may are refused at start, or with the conversation that they fail for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.checkpoint.errors import CheckpointError
from engine.limited_process import ProcessLimits
from engine.text.chat_template import ChatTemplate, ChatTemplateError, ChatTemplateTooCostly
from engine.text.processor import TextProcessor
from tests.engine.checkpoint.gguf.miniature import write_gguf
from tests.engine.checkpoints import write_checkpoint
from tests.engine.tokenizer_zoo import byte_level, write_tokenizer

QUICK = ProcessLimits(cpu_seconds=0.5, memory_bytes=128 * 1024 * 1024)
"""A quarter of what templates are granted, which costs the tests as much less."""
LONG = "makes 9,000,000 characters of them, of at most 8,388,608"
MEMORY = "takes too much memory"
TIME = "takes more than 0.5 s"
HOSTILE = {
    "{{ 'a' * 10**9 }}": MEMORY,
    "{{ 'a' * 9000000 }}": LONG,
    "{{ '%1000000000d' % 1 }}": MEMORY,
    "{{ 'a' | center(10**9) }}": MEMORY,
    "{% set n = namespace(x='a') %}{% for _ in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}": MEMORY,
    "{% for _ in range(99999) %}{% for _ in range(99999) %}{% endfor %}{% endfor %}": TIME,
    "{{ 10 ** (10 ** (8 + messages | length)) }}": TIME,
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.text.rendering._LIMITS", QUICK)


def gguf_file(folder: Path, template: str) -> Path:
    checkpoint = write_checkpoint(folder / "checkpoint", "llama", vocab_size=420)
    return write_gguf(folder / "model.gguf", checkpoint, template=template)


def folder(folder: Path, template: str) -> Path:
    return write_tokenizer(folder / "model", byte_level(), template)


def chat(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("template", HOSTILE)
def test_a_template_that_costs_too_much_is_refused_at_start(tmp_path: Path, template: str) -> None:
    with pytest.raises(CheckpointError, match=r"chat template: for a greeting it .*; use another") as caught:
        TextProcessor.from_path(folder(tmp_path, template))
    assert HOSTILE[template] in str(caught.value)


@pytest.mark.parametrize("write", [folder, gguf_file])
def test_so_is_one_that_is_too_long(tmp_path: Path, write: Callable[[Path, str], Path]) -> None:
    with pytest.raises(ValueError, match="chat template: it has 262,145 characters; 262,144 are the most"):
        TextProcessor.from_path(write(tmp_path, "x" * (256 * 1024 + 1)))


def test_so_is_a_gguf_file_with_such_a_template(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=MEMORY):
        TextProcessor.from_path(gguf_file(tmp_path, "{{ 'a' * 10**9 }}"))


def test_so_is_one_that_costs_too_much_with_tools(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=MEMORY):
        TextProcessor.from_path(folder(tmp_path, "{% if tools %}{{ 'a' * 10**9 }}{% endif %}"))


def test_so_is_one_that_takes_its_time_to_be_compiled(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="takes more than 2 s"):
        TextProcessor.from_path(folder(tmp_path, "{% if messages | length > 1 %}{{ 10 ** (10 ** 9) }}{% endif %}"))


@pytest.mark.parametrize("source", ["(" * 100_000, "{{ " + "(" * 100_000 + " }}"])
def test_one_that_is_nested_without_end_is_no_template_or_plain_text(source: str) -> None:
    if "{{" not in source:
        assert ChatTemplate({"default": source}, {}).render(chat("")) == source
        return
    with pytest.raises(ChatTemplateError, match="chat template: it is nested too deeply"):
        ChatTemplate({"default": source}, {})


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("hostile", [*HOSTILE, "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"])
def test_a_conversation_that_costs_too_much_is_refused_and_the_next_is_rendered(tmp_path: Path, hostile: str) -> None:
    source = "{% if messages[0].content == 'boom' %}" + hostile + "{% else %}{{ messages[0].content }}{% endif %}"
    text = TextProcessor.from_path(folder(tmp_path, source))
    message = HOSTILE.get(hostile, "the chat template cannot render them: maximum recursion depth exceeded")
    for _ in range(2):
        with pytest.raises(ChatTemplateError) as caught:
            text.encode_chat(chat("boom"))
        assert message in str(caught.value)
        assert isinstance(caught.value, ChatTemplateTooCostly) == (hostile in HOSTILE)
        assert text.decode(text.encode_chat(chat("hello"))) == "hello"


def test_a_template_that_refuses_a_greeting_serves_other_conversations(tmp_path: Path) -> None:
    source = "{% if messages | length < 2 %}{{ raise_exception('two are needed') }}{% endif %}yes"
    text = TextProcessor.from_path(folder(tmp_path, source))
    with pytest.raises(ChatTemplateError, match="two are needed"):
        text.encode_chat(chat("one"))
    assert text.decode(text.encode_chat(chat("one") * 2)) == "yes"


def test_threads_render_their_own_conversations(tmp_path: Path) -> None:
    text = TextProcessor.from_path(folder(tmp_path, "{{ messages[0].content }}"))
    found: dict[str, str] = {}

    def run(number: int) -> None:
        for turn in range(20):
            content = f"{number} {turn}"
            found[content] = text.render(chat(content))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80 and all(key == value for key, value in found.items())


def test_a_renderer_that_was_killed_is_replaced(tmp_path: Path) -> None:
    text = TextProcessor.from_path(folder(tmp_path, "{{ messages[0].content }}"))
    text.render(chat("a"))
    process = text.renderer._process
    process.kill()
    assert process._process is not None
    os.waitid(os.P_PID, process._process.pid, os.WEXITED | os.WNOWAIT)
    assert text.render(chat("b")) == "b"


def test_what_json_can_hold_reaches_the_template_unchanged(tmp_path: Path) -> None:
    text = TextProcessor.from_path(folder(tmp_path, "{{ messages[0].content | tojson }}{{ more }}"))
    content = [{"text": "\u2028\x00é😀", "n": 10**30, "f": 0.1, "none": None, "yes": True}]
    rendered = text.render([{"role": "user", "content": content}], more="<a>")
    template = ChatTemplate({"default": "{{ messages[0].content | tojson }}{{ more }}"}, {})
    assert rendered == template.render([{"role": "user", "content": content}], more="<a>")
