"""How smoothly the chat page draws in a browser: long answers while they come, and long conversations.

    python -m bench.page                    results in bench/results/page.md (six minutes)
    python -m bench.page --tokens 1000

The page's own files and policy in headless Chromium, whose CPU is slowed down four times; answers come through the
WebSocket from a server that sends a fixed number of tokens a second. A task is what the browser does without a pause;
one over 50 ms is a long task, during which nothing that is typed appears. A frame's gap is the time since the one
before. Usable is a page from when its conversation is there and the field takes keys.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence

import msgspec
from playwright.sync_api import Page, sync_playwright
from rich.console import Console

from bench.page_server import TOKEN, PageServer
from bench.report import Environment, options, publish, table

PRESSES = 60
LONG_TASK, GAP, PAINT, USABLE = 50.0, 34.0, 50.0, 1000.0
"""Milliseconds that are aimed at: longest task, frame gap (p95), key to paint (p95), until a page is usable."""

console = Console(stderr=True)


def numbered(line: str, characters: int, last: str = "\n") -> str:
    """So many characters of numbered lines."""
    lines, length, number = [], 0, 0
    while length < characters:
        lines.append(line.format(number))
        length += len(lines[-1]) + len(last)
        number += 1
    return last.join(lines)[:characters]


def kinds(characters: int) -> dict[str, str]:
    """One long block of each kind, and a text of all."""
    blocks = {
        "list": numbered("- item {} with **bold** and `code`", characters),
        "table": "| a | b |\n|---|--:|\n" + numbered("| row {} | text **b** |", characters),
        "paragraph": numbered("word{} **and** more", characters, " "),
        "code": "```python\n" + numbered("x{0} = f({0})  # a comment", characters) + "\n```",
    }
    part = max(1, characters // 8)
    return {**blocks, "mixed": "\n\n".join([*(text[:part] for text in blocks.values())] * 2)}


class StreamRow(msgspec.Struct, frozen=True):
    """An answer while it came. Milliseconds."""

    kind: str
    rate: int
    tokens: int
    long_tasks: int
    longest: float
    """Longest task over 50 ms; 0: there was none."""
    gap: float
    """95 of 100 frames came within this time after the one before."""
    frames: float
    """Per second."""


class ConversationRow(msgspec.Struct, frozen=True):
    """A page with a long conversation. Milliseconds."""

    messages: int
    usable: float
    key_to_paint: float
    """Until 95 of 100 keys were on the screen."""


RECORD = """() => {
  const record = { tasks: [], gaps: [], on: true };
  window.record = record;
  new PerformanceObserver((list) => record.tasks.push(...list.getEntries().map(({ duration }) => duration)))
    .observe({ type: "longtask" });
  let before = performance.now();
  const frame = (now) => {
    record.gaps.push(now - before);
    before = now;
    if (record.on) requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}"""
STOP = "() => { window.record.on = false; return { tasks: window.record.tasks, gaps: window.record.gaps }; }"

# The time of the frame in which the conversation is there, and the field takes keys.
USABLE_AT = """
  const look = () => {
    const there = document.querySelectorAll(".turn").length >= TURNS && document.querySelector("#model option");
    if (there) setTimeout(() => (document.documentElement.dataset.usable = performance.now()));
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
"""
KEYS = """() => {
  window.keys = [];
  const told = (list) => list.getEntries().filter(({ name }) => name === "keydown").map(({ duration }) => duration);
  new PerformanceObserver((list) => window.keys.push(...told(list))).observe({ type: "event", durationThreshold: 16 });
}"""


def stream(page: Page, server: PageServer, kind: str, text: str, rate: int) -> StreamRow:
    """Ask once, and record until the answer is whole."""
    server.text, server.rate = text, rate
    page.get_by_role("button", name="New chat").click()
    page.evaluate(RECORD)
    page.get_by_label("Message", exact=True).fill("go")
    page.get_by_label("Message", exact=True).press("Enter")
    page.locator(".turn[data-status='completed']").wait_for(timeout=1000 * (60 + 4 * len(text) / TOKEN / rate))
    found = page.evaluate(STOP)
    tasks, gaps = found["tasks"], sorted(found["gaps"][1:])
    return StreamRow(
        kind=kind,
        rate=rate,
        tokens=len(text) // TOKEN,
        long_tasks=len(tasks),
        longest=max(tasks, default=0.0),
        gap=gaps[int(0.95 * len(gaps))],
        frames=1000 * len(gaps) / sum(gaps),
    )


def conversation(page: Page, turns: int) -> ConversationRow:
    """Import a conversation of so many turns, open it anew, and type."""
    saved = [
        {
            "id": f"t{number}",
            "parent": f"t{number - 1}" if number else None,
            "question": f"Question {number}?",
            "model": "auto",
            "status": "completed",
            "continuable": False,
            "text": f"Answer {number} with **bold** text.\n\n- one\n- two\n\n```python\nx = {number}\n```\n",
            **dict.fromkeys(("responseId", "route", "usage", "failure", "rating")),
            "sequence": 1,
        }
        for number in range(turns)
    ]
    kept = {"id": "long", "title": "Long", "updated": 1, "turns": saved, "leaf": saved[-1]["id"]}
    export = json.dumps({"format": "roundhouse.conversations", "version": 1, "conversations": [kept]}).encode()
    page.get_by_label("Import").set_input_files({"name": "long.json", "mimeType": "application/json", "buffer": export})
    page.locator("#told", has_text="imported").wait_for()
    page.add_init_script(USABLE_AT.replace("TURNS", str(turns)))
    page.goto("about:blank")
    page.goto("/#/c/long")
    page.locator("[data-usable]").wait_for(state="attached")
    usable = float(page.evaluate("document.documentElement.dataset.usable"))
    page.evaluate(KEYS)
    page.focus("#message")  # to look for its label would take the page's time
    for number in range(PRESSES):
        page.keyboard.press("abcdefghij"[number % 10])
        page.wait_for_timeout(60)
    # Those that are not told were on the screen within 16 ms.
    found = page.evaluate("window.keys")
    durations = sorted([*found, *[16.0] * (PRESSES - len(found))])
    return ConversationRow(2 * turns, usable, durations[int(0.95 * len(durations))])


def markdown(streams: Sequence[StreamRow], long: ConversationRow, slower: float, load: float) -> str:
    """Return the page of results."""

    def verdict(value: float, aim: float) -> str:
        return f"{value:.0f} of {aim:.0f}{'' if value <= aim else ' (missed)'}"

    lines = []
    for row in streams:
        aims = (
            (verdict(row.longest, LONG_TASK), f"{row.gap:.0f}")
            if row.rate < 1000
            else (
                f"{row.longest:.0f}",
                verdict(row.gap, GAP),
            )
        )
        lines.append(
            f"{row.kind} | {row.rate:,} | {row.tokens:,} | {row.long_tasks} | {aims[0]} | {aims[1]} | {row.frames:.0f}"
        )
    usable, paint = verdict(long.usable, USABLE), verdict(long.key_to_paint, PAINT)
    return "\n".join(
        [
            "# How smoothly the chat page draws",
            "",
            f"- {Environment.here()}, load {load:.0f}: so many processes wanted to run, this one's among them",
            f"- headless Chromium, its CPU slowed down {slower:g} times",
            "- figures in milliseconds, beside those that are aimed at",
            "",
            *table(
                "answer | tokens/s | tokens | long tasks | longest task | frame gap, p95 | frames/s",
                lines,
            ),
            "",
            *table("messages | usable after | key to paint, p95", [f"{long.messages:,} | {usable} | {paint}"]),
            "",
        ]
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--tokens", type=int, default=8000, help="of an answer at 200 tokens/s")
    parser.add_argument("--turns", type=int, default=1000, help="of the long conversation, each two messages")
    parser.add_argument("--slower", type=float, default=4.0, help="how many times the browser's CPU is slowed down")
    arguments = parser.parse_args()
    server = PageServer()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with server.serving() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(base_url=url, viewport={"width": 1280, "height": 800})
        page.set_default_timeout(300_000)
        page.goto("/")
        page.get_by_text("Connected").wait_for()
        throttle = page.context.new_cdp_session(page)
        throttle.send("Emulation.setCPUThrottlingRate", {"rate": arguments.slower})
        texts = kinds(TOKEN * arguments.tokens)
        loads = [*((kind, 200) for kind in texts), ("mixed", 1000)]
        streams = []
        for kind, rate in loads:
            console.print(f"{kind}, {rate} tokens/s ...")
            streams.append(stream(page, server, kind, texts[kind], rate))
        console.print("long conversation ...")
        long = conversation(page, arguments.turns)
        browser.close()
    text = markdown(streams, long, arguments.slower, os.getloadavg()[1])
    publish(arguments.output / "page", text, {"streams": streams, "conversation": long})


if __name__ == "__main__":
    main()
