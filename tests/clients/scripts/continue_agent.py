"""Continue's command line: one task, by chat completions."""

import json
from pathlib import Path

from checks import API, KEY, MODEL
from coding import TASK, perform

# JSON is YAML.
CONFIG = {
    "name": "roundhouse",
    "version": "1.0.0",
    "schema": "v1",
    "models": [
        {
            "name": MODEL,
            "provider": "openai",
            "model": MODEL,
            "apiBase": API,
            "apiKey": KEY,
            "roles": ["chat"],
            "capabilities": ["tool_use"],
            "defaultCompletionOptions": {"contextLength": 32768, "maxTokens": 2048},
        }
    ],
}
Path("config.yaml").write_text(json.dumps(CONFIG))
perform("cn", "--config", "config.yaml", "--auto", "-p", TASK, CONTINUE_TELEMETRY_ENABLED="0")
