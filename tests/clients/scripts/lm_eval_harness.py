"""lm-evaluation-harness: multiple choice, generation and perplexity by completions, generation by chat completions."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from checks import API, KEY, MODEL, check, run

TOKENIZER = Path(__file__).parents[3] / "deploy" / "demo" / "model"
TASKS = Path("tasks")
TASKS.mkdir()
ROWS = [{"question": f"{n} and {n} make", "choices": ["two", "three"], "answer": n % 2} for n in range(3)]
Path("rows.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))
COMMON: dict[str, Any] = {
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": str(Path("rows.jsonl").absolute())}},
    "test_split": "test",
    "doc_to_text": "{{question}}",
}
KINDS: dict[str, dict[str, Any]] = {
    "choose": {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}"},
    "write": {
        "output_type": "generate_until",
        "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match"}],
    },
    "measure": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
}
for kind, fields in KINDS.items():
    # JSON is YAML.
    Path(TASKS, f"{kind}.yaml").write_text(json.dumps({"task": kind, **COMMON, **fields}))


def evaluate(kind: str, model: str, path: str, *more: str) -> dict[str, float]:
    """The metrics of a task."""
    given = f"model={MODEL},base_url={API}/{path},tokenizer={TOKENIZER},max_length=2047,num_concurrent=2,max_retries=1"
    command = ["lm_eval", "--model", model, "--model_args", given, "--tasks", kind, "--include_path", str(TASKS), *more]
    output = Path(f"out-{kind}-{model}")
    done = subprocess.run(
        [*command, "--output_path", str(output)],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENAI_API_KEY": KEY},
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-300:]
    [file] = output.rglob("results_*.json")
    return json.loads(file.read_text())["results"][kind]


@check
def multiple_choice() -> None:
    """By the log-probabilities of prompts, which are sent as token ids."""
    assert 0 <= evaluate("choose", "local-completions", "completions", "--batch_size", "4")["acc,none"] <= 1


@check
def generation() -> None:
    assert "exact_match,none" in evaluate("write", "local-completions", "completions")


@check
def perplexity() -> None:
    assert evaluate("measure", "local-completions", "completions")["word_perplexity,none"] > 1


@check
def chat_generation() -> None:
    found = evaluate("write", "local-chat-completions", "chat/completions", "--apply_chat_template")
    assert "exact_match,none" in found


run(seconds=210)
