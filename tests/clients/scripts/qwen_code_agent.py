"""Qwen Code: one task, by chat completions."""

import json
import os
from pathlib import Path

from checks import API, KEY, MODEL
from coding import INSTRUCTIONS, TASK, perform

SETTINGS = {
    "model": {
        "generationConfig": {
            "timeout": 900_000,
            # Unless told otherwise it asks for 32,000 tokens of output, which is a model's whole context here.
            "samplingParams": {"max_tokens": 2048},
        }
    },
    "memory": {"enableManagedAutoMemory": False},
}
EXCLUDED = [
    *["agent", "enter_worktree", "exit_worktree", "get_goal", "list_agents", "record_artifact", "report_findings"],
    *["send_message", "skill", "task_stop", "tool_call", "tool_search", "update_goal"],
]
"""Functions that it offers beside its core tools, of which `write_file` is enough."""

FOLDER = Path(os.environ["HOME"], ".qwen")
FOLDER.mkdir()
Path(FOLDER, "settings.json").write_text(json.dumps(SETTINGS))
perform(
    *["qwen", "--system-prompt", INSTRUCTIONS, "--core-tools", "write_file", "--exclude-tools", ",".join(EXCLUDED)],
    *["--yolo", "-p", TASK],
    OPENAI_API_KEY=KEY,
    OPENAI_BASE_URL=API,
    OPENAI_MODEL=MODEL,
)
