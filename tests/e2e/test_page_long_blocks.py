"""Long blocks of the chat page's answers: code in parts, and the columns of a table that grows."""

from __future__ import annotations

import re

from playwright.sync_api import Page

from tests.e2e.browser import needs_chromium

pytestmark = needs_chromium


def test_code_in_several_parts_is_selected_and_copied_as_it_is(page: Page) -> None:
    """No line more where one part ends, and none less, also far from what is shown, where parts have a height."""
    source = "".join(f"line {number}\n" for number in range(200))
    selected, copied, unseen = page.evaluate(
        """async (source) => {
          const { StreamRenderer } = await import("/static/js/stream.js");
          const turn = document.createElement("div");
          turn.className = "turn";
          const answer = document.createElement("div");
          answer.className = "markdown";
          turn.append(answer);
          document.getElementById("log").append(turn);
          new StreamRenderer(answer).finish("$x$\\n\\n```\\n" + source + "```");
          await new Promise((resolve) => setTimeout(resolve, 100));
          const code = answer.querySelector("code");
          const unseen = [...code.children].map((part) => getComputedStyle(part).containIntrinsicHeight);
          getSelection().selectAllChildren(code);
          const selected = getSelection().toString();
          getSelection().selectAllChildren(answer);
          const clipboardData = new DataTransfer();
          answer.dispatchEvent(new ClipboardEvent("copy", { clipboardData, bubbles: true, cancelable: true }));
          return [selected, clipboardData.getData("text/plain"), unseen];
        }""",
        source,
    )
    assert selected.rstrip("\n") == source.rstrip("\n")
    assert copied.startswith("$x$")
    assert copied.rstrip("\n").endswith(source.rstrip("\n"))
    *full, last = unseen
    assert all(re.fullmatch(r"auto \d{3}(\.\d+)?px", height) for height in full)
    assert last == "none"


TABLE_STREAM = """async (rows) => {
  const { StreamRenderer } = await import("/static/js/stream.js");
  const answer = document.createElement("div");
  answer.className = "markdown";
  document.getElementById("log").append(answer);
  const renderer = new StreamRenderer(answer);
  const seen = [];
  let text = "| a | b |\\n|---|---|\\n";
  for (const row of [...rows, ""]) {
    renderer.update((text += row));
    renderer.flush();
    const cells = [...answer.querySelectorAll("td")];
    const overflowing = cells.filter((cell) => cell.scrollWidth > cell.clientWidth + 1).length;
    seen.push([answer.querySelector("table").style.tableLayout, overflowing]);
  }
  renderer.finish(text);
  const left = [...answer.querySelectorAll("[style]")].filter(({ style }) => style.length > 0).length;
  answer.remove();
  return [seen, left];
}"""


def test_a_long_table_keeps_its_columns_while_there_is_room(page: Page) -> None:
    """A word that has none gets it with what comes next; nothing is left of that when the answer is whole."""
    rows = [f"| row {number} | text |\n" for number in range(90)]
    rows[80] = f"| {'long' * 10} | text |\n"
    seen, left = page.evaluate(TABLE_STREAM, rows)
    assert [layout for layout, _ in seen[:50]] == [""] * 50
    assert [layout for layout, _ in seen[70:]] == ["fixed"] * 21
    assert [number for number, (_, overflowing) in enumerate(seen) if overflowing] == [80]
    assert left == 0
