"""guidellm: a load of eight requests, two at a time, on each endpoint; it looks at /health by itself."""

import json
import subprocess
from pathlib import Path

from checks import KEY, MODEL, URL, check, run

TOKENIZER = Path(__file__).parents[3] / "deploy" / "demo" / "model"


def load(path: str) -> None:
    """Check that every request of a run succeeded."""
    output = Path(f"{path.replace('/', '-')}.json").absolute()
    options = {
        "--backend": {"kind": "openai_http", "target": URL, "model": MODEL, "api_key": KEY, "request_format": path},
        "--tokenizer": {"kind": "huggingface_auto", "model": str(TOKENIZER)},
        "--data": {"kind": "synthetic_text", "prompt_tokens": 32, "output_tokens": 8},
        "--profile": {"kind": "concurrent", "streams": [2]},
        "--constraint": {"kind": "max_requests", "count": 8},
        "--output": {"kind": "json", "path": str(output)},
    }
    words = [word for option, value in options.items() for word in (option, json.dumps(value))]
    done = subprocess.run(["guidellm", "run", *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, (done.stdout + done.stderr)[-300:]
    [benchmark] = json.loads(output.read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert len(requests["successful"]) == 8 and not requests["errored"]


@check
def chat_completions() -> None:
    load("/v1/chat/completions")


@check
def completions() -> None:
    load("/v1/completions")


@check
def responses() -> None:
    load("/v1/responses")


run(seconds=110)
