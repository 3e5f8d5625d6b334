"""Prints docs/upstreams-conformance.md, made of the conformance suite.

python -m tests.gateway.upstreams.conformance_page > docs/upstreams-conformance.md
"""

from __future__ import annotations

from tests.gateway.upstreams.subjects import SUBJECTS
from tests.gateway.upstreams.test_conformance import FEATURES, REFUSED

_HEAD = """# What servers of other projects do

Each cell is a test of `tests/gateway/upstreams/test_conformance.py`, from which this page is generated (`make docs`).
*refused*: such a request gets an error that names the field, and the test asks for that. Roundhouse and llama.cpp are
the real servers, llama.cpp's from the package xllamacpp. vLLM and SGLang need a GPU: their columns are doubles, which
speak their HTTP protocols as their sources have it, and answer with an engine of ours;
`tests/gateway/upstreams/doubles.py` says which sources.
"""
_COLUMNS = {
    "roundhouse": "Roundhouse",
    "llama.cpp": "llama.cpp",
    "llama.cpp-llguidance": "llama.cpp with llguidance",
    "vllm": "vLLM (double)",
    "sglang": "SGLang (double)",
}


def page() -> str:
    """Return the page."""
    lines = [
        "| | " + " | ".join(_COLUMNS[subject] for subject in SUBJECTS) + " |",
        "|---|" + "---|" * len(SUBJECTS),
        *(
            f"| {what} | " + " | ".join("refused" if each in REFUSED[test] else "yes" for each in SUBJECTS) + " |"
            for test, what in FEATURES.items()
        ),
    ]
    return _HEAD + "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
