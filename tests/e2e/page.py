"""A user's actions on the chat page, and what the user sees there."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import Page, WebSocket, expect

from tests.e2e.browser import NOTHING, Visit

LONG = " ".join(f"word{number}" for number in range(400))
"""An answer that takes a while."""


def connected(page: Page) -> None:
    expect(page.locator("#connection")).to_have_text(re.compile("Connected|Resumed"))


def give_key(page: Page, key: str) -> None:
    """As if it had been typed into this tab before the page is opened."""
    page.goto(NOTHING)
    page.evaluate("key => sessionStorage.setItem('roundhouse.key', key)", key)


def message(page: Page) -> Any:
    return page.get_by_label("Message", exact=True)


def ask(page: Page, question: str) -> None:
    message(page).fill(question)
    message(page).press("Enter")


def answered(page: Page) -> None:
    expect(page.get_by_role("log")).to_have_attribute("aria-busy", "false")


def answer(page: Page) -> Any:
    """Return the text of the last answer."""
    return page.locator(".markdown").last


def reload(page: Page) -> None:
    """Load the page anew once the browser has written what it was given to keep: what it is about to write is lost."""
    page.evaluate(
        """() => new Promise((resolve) => {
          indexedDB.open("roundhouse").onsuccess = ({ target: { result: database } }) => {
            // Begins when all transactions that write, and were asked for before, have ended.
            database.transaction("trees").objectStore("trees").count().onsuccess = () => resolve(database.close());
          };
        })"""
    )
    page.reload()


def watched(tab: Visit) -> list[dict[str, Any]]:
    """Open the page; returns the `response.create` events that it sends from now on, but for what names each.

    A question whose connection was lost is sent again, under the same key: that is no other one.
    """
    created: list[dict[str, Any]] = []
    sent: dict[str, dict[str, Any]] = {}

    def on_frame(frame: str | bytes) -> None:
        event = json.loads(frame)
        if event["type"] == "response.create":
            asked = {key: value for key, value in event.items() if key not in ("idempotency_key", "stream_id")}
            if sent.get(event["idempotency_key"]) != asked:
                created.append(asked)
            sent[event["idempotency_key"]] = asked

    def on_socket(socket: WebSocket) -> None:
        socket.on("framesent", on_frame)

    tab.page.on("websocket", on_socket)
    tab.page.goto("/")
    connected(tab.page)
    return created
