"""Files of requests, and batches that are waited for, with the real `openai` client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import openai
from openai.types import Batch, FileObject

ENDED = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    """One request, for a short answer unless the body says otherwise."""
    message = {"messages": [{"role": "user", "content": custom_id}], "max_tokens": 3}
    whole = {"model": "small", "temperature": 0, **(message if url == "/v1/chat/completions" else {}), **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": whole}


def jsonl(lines: Iterable[Any]) -> bytes:
    return "".join(json.dumps(each) + "\n" for each in lines).encode()


async def uploaded(client: openai.AsyncOpenAI, content: bytes, name: str = "requests.jsonl") -> FileObject:
    return await client.files.create(file=(name, content), purpose="batch")


async def begun(client: openai.AsyncOpenAI, lines: Iterable[Any], **fields: Any) -> Batch:
    """Upload requests and make a batch of them."""
    lines = list(lines)
    file = await uploaded(client, jsonl(lines))
    endpoint = fields.pop("endpoint", "/v1/chat/completions")
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **fields)


async def ended(client: openai.AsyncOpenAI, batch: Batch, seconds: float = 60) -> Batch:
    """Wait for the end of a batch; what it is shown as all the way is valid in OpenAI's types."""
    async with asyncio.timeout(seconds):
        while True:
            raw = await client.batches.with_raw_response.retrieve(batch.id)
            seen = Batch.model_validate_json(raw.content, strict=True)
            assert seen.model_extra == {}
            if seen.status in ENDED:
                return seen
            await asyncio.sleep(0.1)


async def results(client: openai.AsyncOpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    """Return the results in a file by `custom_id`, of which each is there once."""
    if file_id is None:
        return {}
    content = await client.files.content(file_id)
    found = [json.loads(each) for each in content.text.splitlines()]
    assert all(set(each) == {"id", "custom_id", "response", "error"} for each in found)
    assert len({each["id"] for each in found}) == len(found)
    by_id = {each["custom_id"]: each for each in found}
    assert len(by_id) == len(found)
    return by_id
