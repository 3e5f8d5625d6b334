"""Claude Code: one task, by Anthropic's messages."""

from checks import KEY, MODEL, URL
from coding import INSTRUCTIONS, TASK, perform

perform(
    *["claude", "--system-prompt", INSTRUCTIONS, "--tools", "Write", "--disable-slash-commands"],
    *["--permission-mode", "acceptEdits", "-p", TASK],
    ANTHROPIC_BASE_URL=URL,
    ANTHROPIC_AUTH_TOKEN=KEY,
    ANTHROPIC_MODEL=MODEL,
    ANTHROPIC_DEFAULT_HAIKU_MODEL=MODEL,
    CLAUDE_CODE_MAX_OUTPUT_TOKENS="2048",
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    DISABLE_AUTOUPDATER="1",
)
