"""The `llm` command: prompts, streams, conversations, schemas, tools, with a model in its own file."""

import json
import os
import subprocess
from pathlib import Path

from checks import API, KEY, MODEL, QUESTION, check, run

FOLDER = Path(os.environ["HOME"], "llm")
FOLDER.mkdir()
Path(FOLDER, "extra-openai-models.yaml").write_text(
    f"""
- model_id: chat
  model_name: {MODEL}
  api_base: {API}
  api_key_name: roundhouse
  supports_schema: true
  supports_tools: true
- model_id: text
  model_name: {MODEL}
  api_base: {API}
  api_key_name: roundhouse
  completion: true
"""
)
Path(FOLDER, "keys.json").write_text(json.dumps({"roundhouse": KEY}))


def llm(*words: str) -> str:
    """What the command prints."""
    done = subprocess.run(
        ["llm", *words], capture_output=True, text=True, env={**os.environ, "LLM_USER_PATH": str(FOLDER)}, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@check
def prompt() -> None:
    assert llm("-m", "chat", "-s", "Be brief.", "-o", "max_tokens", "16", QUESTION)


@check
def not_streamed() -> None:
    assert llm("-m", "chat", "--no-stream", "-o", "max_tokens", "16", QUESTION)


@check
def conversation() -> None:
    assert llm("-m", "chat", "-c", "-o", "max_tokens", "16", "And?")


@check
def schema() -> None:
    document = json.dumps(
        {
            "type": "object",
            "properties": {"rain": {"type": "boolean"}},
            "required": ["rain"],
            "additionalProperties": False,
        }
    )
    assert isinstance(json.loads(llm("-m", "chat", "--schema", document, "Does it rain?"))["rain"], bool)


@check
def offered_tool() -> None:
    """Which a model may call or not."""
    assert llm("-m", "chat", "-T", "llm_version", "-o", "max_tokens", "16", QUESTION)


@check
def completion() -> None:
    assert llm("-m", "text", "-o", "max_tokens", "8", QUESTION)


run()
