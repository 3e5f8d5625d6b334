"""Codex: one task, by responses."""

import os
from pathlib import Path

from checks import API, KEY, MODEL
from coding import INSTRUCTIONS, TASK, perform

HOME = Path(os.environ["HOME"], ".codex")
HOME.mkdir()
Path(HOME, "instructions.md").write_text(INSTRUCTIONS)
Path(HOME, "config.toml").write_text(
    f"""
model = "{MODEL}"
model_provider = "roundhouse"
model_context_window = 32768
model_instructions_file = "{HOME}/instructions.md"
web_search = "disabled"

[features]
multi_agent = false
goals = false
view_image = false
unified_exec = false

[skills]
include_instructions = false

[skills.bundled]
enabled = false

[model_providers.roundhouse]
name = "Roundhouse"
base_url = "{API}"
env_key = "ROUNDHOUSE_KEY"
wire_api = "responses"
"""
)
perform(
    "codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK, ROUNDHOUSE_KEY=KEY
)
