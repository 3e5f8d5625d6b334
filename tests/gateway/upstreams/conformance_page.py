"""Prints docs/upstreams-conformance.md, made of the conformance suite.

python -m tests.gateway.upstreams.conformance_page > docs/upstreams-conformance.md
"""

from __future__ import annotations

from tests.gateway.upstreams import test_conformance  # noqa: F401  its tests are the rows
from tests.gateway.upstreams.conformance import FEATURES, REFUSED, WITHOUT
from tests.gateway.upstreams.subjects import SUBJECTS

_HEAD = """# What servers of other projects do

Each cell is a test of `tests/gateway/upstreams/test_conformance.py`, from which this page is generated (`make docs`).
*refused*: such a request gets an error that names the field, and the test asks for that; *no*: the server lacks what no
request asks for. Roundhouse and llama.cpp are the real servers, llama.cpp's from the package xllamacpp; it also speaks
OpenAI's and Anthropic's APIs, at `/v1/chat/completions` and `/v1/messages`. ONNX Runtime is the real library, in the
server of this repository. The others are doubles, which speak the servers' HTTP protocols as their sources have it, and
answer with an engine of ours: `doubles.py`, `nvidia_doubles.py` and `message_doubles.py` beside the suite say which
sources. `make test-deep` has vLLM's own server do the same as its double where `python -m bench.peers vllm` has
installed it (`bench/peers.toml` says which version), on CPUs.
"""
_COLUMNS = {
    "roundhouse": "Roundhouse",
    "llama.cpp": "llama.cpp",
    "llama.cpp-llguidance": "llama.cpp with llguidance",
    "vllm": "vLLM",
    "sglang": "SGLang (double)",
    "tensorrt-llm": "TensorRT-LLM (double)",
    "onnxruntime": "ONNX Runtime",
    "openai": "OpenAI's API (llama.cpp)",
    "anthropic": "Anthropic's API (llama.cpp)",
    "ollama": "Ollama (double)",
    "tgi": "TGI (double)",
}


def page() -> str:
    """Return the page."""
    lines = [
        "| | " + " | ".join(_COLUMNS[subject] for subject in SUBJECTS) + " |",
        "|---|" + "---|" * len(SUBJECTS),
        *(
            f"| {what} | " + " | ".join(_cell(test, each) for each in SUBJECTS) + " |"
            for test, what in FEATURES.items()
        ),
    ]
    return _HEAD + "\n" + "\n".join(lines) + "\n"


def _cell(test: str, subject: str) -> str:
    if subject in WITHOUT[test]:
        return "no"
    return "refused" if subject in REFUSED[test] else "yes"


if __name__ == "__main__":
    print(page(), end="")
