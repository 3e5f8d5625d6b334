"""Lines of the documentation."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDTH = 120
GENERATED = ("bench/results/", *(f"docs/{page}.md" for page in ("admin-endpoints", "configuration", "engine-options")))
"""Pages that programs write."""


def test_no_line_of_prose_is_longer_than_a_line_of_code_may_be() -> None:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pages = [page for page in listed.split() if not page.startswith(GENERATED)]
    assert len(pages) > 20
    long = []
    for page in pages:
        text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
        long += [(page, line) for line in text.splitlines() if len(line) > WIDTH and not re.match(r" *(\||!\[)", line)]
    assert long == []
