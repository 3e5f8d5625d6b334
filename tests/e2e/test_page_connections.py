"""The chat page when its connections break, and when its server restarts."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Browser, Page, Route, WebSocketRoute, expect

from tests.e2e.browser import Visit, needs_chromium, visit
from tests.e2e.page import LONG, answer, answered, ask, connected
from tests.e2e.scripted import Answer, ScriptedServer

pytestmark = needs_chromium


def drop_sockets(page: Page, after: Iterator[int | None]) -> list[list[dict[str, Any]]]:
    """Cut each of the page's WebSockets after as many events of a turn as `after` says; None: never.

    Returns what the page has sent over each of them.
    """
    sent: list[list[dict[str, Any]]] = []

    def on_socket(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        mine: list[dict[str, Any]] = []
        sent.append(mine)
        left = next(after)
        seen = 0

        def to_server(text: str | bytes) -> None:
            mine.append(json.loads(text))
            server.send(text)

        def to_page(text: str | bytes) -> None:
            nonlocal seen
            if left is not None and seen >= left:
                socket.close(code=3001, reason="cut")
                server.close()
                return
            seen += 1
            socket.send(text)

        socket.on_message(to_server)
        server.on_message(to_page)

    page.route_web_socket(re.compile("/v1/responses"), on_socket)
    return sent


def forever(*first: int | None) -> Iterator[int | None]:
    yield from first
    while True:
        yield None


def test_a_cut_connection_loses_and_doubles_nothing(browser: Browser, server: ScriptedServer) -> None:
    """Cut six times at random events, some of them on their way: the text is the server's, character by character."""
    server.pipeline.answers["long"] = Answer(text=LONG, chunk=3, pause=0.002)
    rng = random.Random(7)
    with visit(browser, server.url) as tab:
        sent = drop_sockets(tab.page, forever(*(rng.randrange(5, 60) for _ in range(6))))
        tab.page.goto("/")
        ask(tab.page, "long")
        answered(tab.page)
        expect(answer(tab.page)).to_have_text(LONG)
        resumes = [event for events in sent for event in events if event["type"] == "response.resume"]
        assert resumes
        assert len(server.pipeline.turns) == 1


def test_a_question_lost_before_its_answer_began_is_asked_again(browser: Browser, server: ScriptedServer) -> None:
    """Nothing can be resumed without a response id."""
    with visit(browser, server.url) as tab:
        sent = drop_sockets(tab.page, forever(0))
        tab.page.goto("/")
        ask(tab.page, "hello")
        answered(tab.page)
        expect(answer(tab.page)).to_have_text("A short answer.")
        assert [[event["type"] for event in events] for events in sent] == [["response.create"], ["response.create"]]


def test_a_question_asked_before_the_key_is_known_waits_for_it(browser: Browser, server: ScriptedServer) -> None:
    """The configuration tells the key: until it has come, no ticket is asked for, which would be refused."""
    held: list[Route] = []
    with visit(browser, server.url) as tab:
        used: set[str] = set()
        tab.page.on("request", lambda request: used.add(request.headers.get("authorization", "none")))
        tab.page.route("**/ui/config.json", lambda route: held.append(route))
        tab.page.goto("/")
        ask(tab.page, "hello")
        expect(tab.page.get_by_role("log")).to_have_attribute("aria-busy", "true")
        assert used == {"none"}
        [configuration] = held
        configuration.continue_()
        answered(tab.page)
        expect(answer(tab.page)).to_have_text("A short answer.")
        expect(tab.page.get_by_role("dialog")).to_have_count(0)
        assert used == {"none", "Bearer roundhouse-demo"}


def test_a_connection_that_never_carries_an_answer_fails_the_turn(browser: Browser, server: ScriptedServer) -> None:
    """The question is not sent for ever; Retry is offered and works."""
    with visit(browser, server.url) as tab:
        drop_sockets(tab.page, forever(0, 0, 0))
        tab.page.goto("/")
        ask(tab.page, "hello")
        expect(tab.page.get_by_role("alert")).to_contain_text("The connection was lost each time")
        tab.page.get_by_role("button", name="Retry").click()
        expect(answer(tab.page)).to_have_text("A short answer.")


def test_a_restarting_server_is_shown_and_come_back_to(tab: Visit, server: ScriptedServer) -> None:
    """While it drains the running answer goes on; then the page connects anew."""
    server.pipeline.answers["long"] = Answer(text=LONG, hold_at=100)
    ask(tab.page, "long")
    expect(answer(tab.page)).to_contain_text("word10")
    server.call(server.gateway.connections.drain)
    expect(tab.page.locator("#connection")).to_have_text("Server is restarting")
    server.release()
    answered(tab.page)
    expect(answer(tab.page)).to_have_text(LONG)
    expect(tab.page.locator("#connection")).to_have_text("Reconnecting")
    server.gateway.connections.draining = False
    connected(tab.page)
