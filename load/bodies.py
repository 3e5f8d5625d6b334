"""Bodies of requests, as OpenAI's API has them: what is not asked for is not sent, so that any server takes them."""

from __future__ import annotations

from typing import Any

from load.plan import PlannedTurn


def request_body(turn: PlannedTurn, extra: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a turn's request; a field of `extra` replaces one of it, and takes it away if it is None."""
    body: dict[str, Any] = {"model": turn.model}
    if turn.protocol != "responses":  # a WebSocket always streams
        body["stream"] = True
    if turn.protocol == "chat":
        body |= {
            "messages": [{"role": "user", "content": turn.prompt}],
            "max_tokens": turn.output_tokens,
            "stream_options": {"include_usage": True},
        }
    else:
        body |= {"input": turn.prompt, "max_output_tokens": turn.output_tokens}
    if turn.seed is not None:
        body["seed"] = turn.seed
    return {name: value for name, value in (body | extra).items() if value is not None}
