"""opencode: one task, by chat completions."""

import json
import os
from pathlib import Path

from checks import API, KEY, MODEL
from coding import INSTRUCTIONS, TASK, perform

CONFIG = {
    "provider": {
        "roundhouse": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Roundhouse",
            "options": {"baseURL": API, "apiKey": KEY},
            "models": {MODEL: {"name": MODEL, "limit": {"context": 32768, "output": 2048}}},
        }
    },
    "agent": {"build": {"prompt": INSTRUCTIONS}},
    "permission": {"*": "deny", "edit": "allow"},
    "autoupdate": False,
    "share": "disabled",
}
FOLDER = Path(os.environ["HOME"], ".config", "opencode")
FOLDER.mkdir(parents=True)
Path(FOLDER, "opencode.json").write_text(json.dumps(CONFIG))
perform("opencode", "run", "--model", f"roundhouse/{MODEL}", TASK, OPENCODE_DISABLE_MODELS_FETCH="1")
