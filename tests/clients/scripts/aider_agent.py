"""aider: one task, by chat completions; it writes whole files from a model's text."""

from checks import API, KEY, MODEL
from coding import TASK, perform

QUIET = [
    "--no-check-update",
    "--no-show-model-warnings",
    "--analytics-disable",
    "--no-pretty",
    "--no-show-release-notes",
]
perform(
    *["aider", "--model", f"openai/{MODEL}", "--openai-api-base", API, "--openai-api-key", KEY],
    *["--yes-always", "--no-git", "--edit-format", "whole", *QUIET, "--message", TASK, "hello.txt"],
)
