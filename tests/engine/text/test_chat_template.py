"""Chat templates: the helpers that templates expect, and what they must not reach."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from engine.text.chat_template import ChatTemplate, ChatTemplateError

MESSAGES = [{"role": "user", "content": "hi"}]


def template(source: str, **special_tokens: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, special_tokens)


def test_special_tokens_are_variables() -> None:
    assert template("{{ bos_token }}{{ messages[0].content }}", bos_token="<s>").render(MESSAGES) == "<s>hi"


def test_blocks_leave_no_white_space() -> None:
    assert (
        template("{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}").render(MESSAGES)
        == "user\n"
    )


def test_the_generation_prompt_can_be_left_out() -> None:
    source = "{% if add_generation_prompt %}go{% endif %}"
    assert template(source).render(MESSAGES) == "go"
    assert template(source).render(MESSAGES, add_generation_prompt=False) == ""


def test_other_variables_reach_the_template() -> None:
    assert template("{{ enable_thinking }}").render(MESSAGES, enable_thinking=False) == "False"


def test_keys_without_a_value_are_absent() -> None:
    source = "{{ 'tool_calls' in messages[0] }}"
    assert template(source).render([{"role": "user", "content": "hi", "tool_calls": None}]) == "False"


def test_tojson_does_not_escape_for_html() -> None:
    assert template("{{ messages[0] | tojson }}").render([{"a": "<é>"}]) == '{"a": "<é>"}'
    assert template("{{ messages[0] | tojson(indent=1) }}").render([{"a": 1}]) == '{\n "a": 1\n}'


def test_loop_controls_and_generation_marks_are_understood() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    assert template(source).render([{"content": "a"}, {"content": "b"}]) == "a"


def test_strftime_now_gives_the_date() -> None:
    assert template("{{ strftime_now('%Y') }}").render(MESSAGES) in {str(datetime.now().year + d) for d in (-1, 0, 1)}


def test_a_template_may_refuse_messages() -> None:
    with pytest.raises(ChatTemplateError, match="refuses them: roles must alternate"):
        template("{{ raise_exception('roles must alternate') }}").render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    ["{{ messages[0].content.parts[0] }}", "{{ messages[0]['content'] + 1 }}", "{{ messages[0].content.x.y }}"],
)
def test_messages_of_an_unexpected_shape_are_an_error_of_the_request(source: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"^messages: "):
        template(source).render(MESSAGES)


def test_no_messages_are_refused() -> None:
    with pytest.raises(ChatTemplateError, match="at least one message"):
        template("x").render([])


def test_a_model_without_template_says_what_to_do_instead() -> None:
    with pytest.raises(ChatTemplateError, match="/v1/completions"):
        ChatTemplate({}, {}).render(MESSAGES)


def test_a_malformed_template_is_refused_when_it_is_read() -> None:
    with pytest.raises(ChatTemplateError, match="chat template: "):
        template("{% for %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'content': 'changed'}) }}",
    ],
)
def test_the_sandbox_cannot_be_left_nor_messages_changed(source: str) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    with pytest.raises(ChatTemplateError):
        template(source).render(messages)
    assert messages == [{"role": "user", "content": "hi"}]


def test_tools_select_the_template_made_for_them() -> None:
    both = ChatTemplate({"default": "plain", "tool_use": "{{ tools | length }} tools"}, {})
    assert both.render(MESSAGES) == "plain"
    assert both.render(MESSAGES, tools=[{}, {}]) == "2 tools"


def test_what_a_template_writes_itself_is_known() -> None:
    written = template("<think>{{ '<|' + role + '|>' }}{# </think> #}")
    assert written.writes("<think>")
    assert not written.writes("</think>")


def test_the_source_is_that_of_the_template_that_is_used() -> None:
    """With tools the one for tools, if there is one."""
    both = ChatTemplate({"default": "plain", "tool_use": "tools"}, {})
    assert (both.source(tools=False), both.source(tools=True)) == ("plain", "tools")
    assert ChatTemplate({"default": "plain"}, {}).source(tools=True) == "plain"
    assert ChatTemplate({}, {}).source(tools=True) == ""
