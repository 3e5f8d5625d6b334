"""The process that renders chat templates (`rendering.py`): `python -m engine.text.template_worker`."""

from __future__ import annotations

import json
from collections.abc import Callable

from engine.limited_process import serve
from engine.text.chat_template import ChatTemplate, ChatTemplateError
from engine.text.imitations import Imitations, without_marks

_MAX_CHARACTERS = 8 * 1024 * 1024
"""Far above what any context holds, so that nobody tokenises more."""
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
"""Roles that templates may write into a control token: `'<|' + message.role + '|>'`."""


def prepare(encoded: bytes) -> Callable[[bytes], bytes]:
    """Return what answers a conversation with its text, where clients' control tokens are marked, or with an error."""
    setup = json.loads(encoded)
    template = ChatTemplate(setup["sources"], setup["special_tokens"])
    imitations = Imitations(setup["tokens"], template.literals | _ROLES)

    def render(conversation: bytes) -> bytes:
        asked = json.loads(conversation)
        mark = imitations.mark if asked.pop("mark") else lambda value: value
        messages = [
            {key: value if key == "role" and value in _ROLES else mark(value) for key, value in message.items()}
            for message in asked.pop("messages")
        ]
        variables, tools = asked.pop("variables"), asked.pop("tools")
        try:
            text = template.render(messages, tools=mark(tools) if tools else None, **asked, **mark(variables))
        except ChatTemplateError as error:
            return json.dumps({"error": without_marks(str(error))}).encode()
        except MemoryError:
            return json.dumps({"costly": "takes too much memory"}).encode()
        if len(text) > _MAX_CHARACTERS:
            costly = f"makes {len(text):,} characters of them, of at most {_MAX_CHARACTERS:,}"
            return json.dumps({"costly": costly}).encode()
        return json.dumps({"text": text}).encode()

    return render


if __name__ == "__main__":
    serve(prepare)
