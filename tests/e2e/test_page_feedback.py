"""What readers think of an answer, from the chat page to Redis."""

from __future__ import annotations

import msgspec
from playwright.sync_api import Browser, Route, expect

from gateway.config.chat import ChatSettings
from gateway.config.settings import demo_settings
from gateway.errors import EngineFailed
from tests.e2e.browser import Visit, needs_chromium, violations, visit
from tests.e2e.page import answered, ask, connected, reload
from tests.e2e.scripted import Answer, ScriptedServer

pytestmark = needs_chromium

COMMENT = "A word to the admins of your organisation"


def test_thumbs_reach_the_server_and_survive_a_reload(tab: Visit, server: ScriptedServer) -> None:
    """The last one counts, and pressed again it is taken back; what the server does not take is not shown as taken. An
    answer that failed has none."""
    server.pipeline.answers["broken"] = Answer(failure=EngineFailed("it broke"))
    ask(tab.page, "broken")
    answered(tab.page)
    good, bad = (tab.page.get_by_role("button", name=name) for name in ("Good answer", "Bad answer"))
    expect(good).to_have_count(0)
    ask(tab.page, "question")
    answered(tab.page)
    for thumb, other in ((good, bad), (bad, good)):
        thumb.click()
        expect(thumb).to_have_attribute("aria-pressed", "true")
        expect(other).to_have_attribute("aria-pressed", "false")
        expect(thumb).to_be_focused()
    reload(tab.page)
    connected(tab.page)
    expect(bad).to_have_attribute("aria-pressed", "true")
    response = server.pipeline.turns[-1].id
    noted = [(each["response"], each["signal"]) for each in server.feedback()]
    assert noted[-2:] == [(response, "up"), (response, "down")]

    bad.click()
    expect(bad).to_have_attribute("aria-pressed", "false")
    assert server.feedback()[-1]["signal"] == "withdrawn"
    bad.click()
    expect(bad).to_have_attribute("aria-pressed", "true")

    tab.context.route("**/feedback", lambda route: route.abort())
    good.click()
    expect(tab.page.get_by_text("Not taken", exact=True)).to_be_visible()
    expect(bad).to_have_attribute("aria-pressed", "true")
    expect(tab.page.get_by_text("Not taken", exact=True)).to_have_count(0)


def test_of_two_ratings_the_last_counts_however_slow_the_first_is(tab: Visit, server: ScriptedServer) -> None:
    ask(tab.page, "question")
    answered(tab.page)
    held: list[Route] = []
    tab.page.route("**/feedback", lambda route: route.continue_() if held else held.append(route))
    good, bad = (tab.page.get_by_role("button", name=name) for name in ("Good answer", "Bad answer"))
    with tab.page.expect_request("**/feedback"):
        good.click()
    bad.click()
    tab.page.wait_for_timeout(100)  # in which the second would have come and gone
    held[0].continue_()
    expect(bad).to_have_attribute("aria-pressed", "true")
    expect(good).to_have_attribute("aria-pressed", "false")
    assert [each["signal"] for each in server.feedback()[-2:]] == ["up", "down"]


def test_a_bad_answer_may_be_bad_for_a_reason(tab: Visit, server: ScriptedServer) -> None:
    """Which is offered with the thumb down only, can be taken back, and survives a reload."""
    ask(tab.page, "question")
    answered(tab.page)
    reasons = tab.page.get_by_role("group", name="What is wrong with it?")
    expect(reasons).to_be_hidden()
    tab.page.get_by_role("button", name="Bad answer").click()
    wrong, slow = (reasons.get_by_role("button", name=name) for name in ("Wrong", "Too slow"))
    for reason, other in ((wrong, slow), (slow, wrong)):
        reason.click()
        expect(reason).to_have_attribute("aria-pressed", "true")
        expect(other).to_have_attribute("aria-pressed", "false")
        expect(reason).to_be_focused()
    reload(tab.page)
    connected(tab.page)
    expect(slow).to_have_attribute("aria-pressed", "true")
    slow.click()
    expect(slow).to_have_attribute("aria-pressed", "false")
    tab.page.get_by_role("button", name="Good answer").click()
    expect(reasons).to_be_hidden()
    mine = [each for each in server.feedback() if each["response"] == server.pipeline.turns[-1].id]
    said = [(each["signal"], each.get("reason")) for each in mine]
    assert said == [("down", None), ("down", "wrong"), ("down", "too_slow"), ("down", None), ("up", None)]


def test_a_comment_goes_to_the_admins_where_it_may(browser: Browser, redis_url: str, tab: Visit) -> None:
    """Beside a thumb that is pressed. What is being written stays while a reason is given; what was sent survives a
    reload, and goes with the rating."""
    ask(tab.page, "question")
    answered(tab.page)
    tab.page.get_by_role("button", name="Bad answer").click()
    expect(tab.page.get_by_label(COMMENT)).to_be_hidden()
    settings = msgspec.structs.replace(demo_settings(), chat=ChatSettings(comments=True))
    with ScriptedServer(redis_url, settings) as server, visit(browser, server.url) as other:
        page = other.page
        page.goto("/")
        connected(page)
        ask(page, "question")
        answered(page)
        comment, send = page.get_by_label(COMMENT), page.locator(".comment button")
        expect(comment).to_be_hidden()
        page.get_by_role("button", name="Bad answer").click()
        comment.fill("It was 1969.")
        page.get_by_role("button", name="Wrong").click()
        expect(page.get_by_role("button", name="Wrong")).to_have_attribute("aria-pressed", "true")
        expect(comment).to_have_value("It was 1969.")
        response = server.pipeline.turns[-1].id
        assert server.comment(response) is None
        send.click()
        expect(send).to_have_text("Sent")
        expect(send).to_be_focused()
        expect(send).to_have_text("Send")
        kept = server.comment(response)
        assert kept is not None and (kept.rating, kept.reason, kept.text) == ("down", "wrong", "It was 1969.")
        reload(page)
        connected(page)
        expect(comment).to_be_visible()
        expect(comment).to_have_value("It was 1969.")
        page.get_by_role("button", name="Too slow").click()
        expect(page.get_by_role("button", name="Too slow")).to_have_attribute("aria-pressed", "true")
        kept = server.comment(response)
        assert kept is not None and (kept.reason, kept.text) == ("too_slow", "It was 1969.")
        assert violations(page) == []
        page.get_by_role("button", name="Bad answer").click()
        expect(comment).to_be_hidden()
        assert server.comment(response) is None
