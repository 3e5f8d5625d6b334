"""The chat page in a real browser: what its user sees."""

from __future__ import annotations

import re
import subprocess
import sys

import msgspec
from playwright.sync_api import Browser, WebSocket, expect

from gateway.errors import EngineFailed, RateLimited
from gateway.protocol.caching import Caching
from router.route import ComingTier
from tests.e2e.browser import Visit, needs_chromium, visit
from tests.e2e.conftest import NAMES, Installation
from tests.e2e.page import LONG, answer, answered, ask, connected, message, reload
from tests.e2e.scripted import Answer, ScriptedServer
from tests.e2e.test_page_compare import compare

pytestmark = needs_chromium


def test_a_fresh_installation_answers_in_the_browser(browser: Browser, roundhouse: Installation) -> None:
    """The real thing: example question, streamed answer, the router's decision, the follow-up."""
    frames: list[str | bytes] = []

    def on_socket(socket: WebSocket) -> None:
        socket.on("framereceived", lambda frame: frames.append(frame))

    with visit(browser, roundhouse.url) as tab:
        tab.page.on("websocket", on_socket)
        tab.page.goto("/")
        tab.page.get_by_role("button", name="What is the capital of France?").click()
        answered(tab.page)
        expect(answer(tab.page)).not_to_be_empty()
        cards = tab.page.locator("details.route")
        expect(cards.locator("summary")).to_contain_text("roundhouse-demo")
        # Somebody may have asked the example before; a follow-up in a conversation of its own is new.
        frames.clear()
        ask(tab.page, "And who is it for?")
        expect(cards).to_have_count(2)
        answered(tab.page)
        cards.last.locator("summary").click()
        expect(cards.last).to_contain_text("not calibrated for these models")
        assert sum("output_text.delta" in str(frame) for frame in frames) > 1
        expect(tab.page.get_by_role("alert")).to_have_count(0)


def test_real_models_are_compared(browser: Browser, roundhouse: Installation) -> None:
    """From the question to the preference, with engines."""
    with visit(browser, roundhouse.url) as tab:
        tab.page.goto("/")
        connected(tab.page)
        tab.page.get_by_label("Who answers").select_option("small")
        ask(tab.page, "What do a turntable and a roundhouse have in common?")
        answered(tab.page)
        lanes = compare(tab.page, "medium", "large")
        answered(tab.page)
        for number, tier in enumerate(("small", "medium", "large")):
            expect(lanes.nth(number).get_by_role("heading").first).to_have_text(f"{NAMES[tier]} ({tier})")
            expect(lanes.nth(number).locator(".markdown")).not_to_be_empty()
        lanes.nth(1).get_by_role("button", name="Prefer this").click()
        expect(tab.page.get_by_role("status").last).to_have_text("Preference noted")
        expect(tab.page.locator("details.route summary")).to_contain_text(NAMES["medium"])


def test_a_line_says_which_tiers_are_coming_until_they_are_there(tab: Visit, server: ScriptedServer) -> None:
    """And a tier that has come brings its models and adapters into the choice of who answers."""
    line, coming = tab.page.locator("#coming"), server.arrivals.coming
    expect(line).to_be_hidden()
    medium = ComingTier(tier="medium", model="m", size=491_400_064, here=211_400_000)
    large = ComingTier(tier="large", model="l", size=1_117_320_768, failed=True)
    coming |= {"medium": medium, "large": large}
    try:
        tab.page.reload()
        expect(line).to_have_text(
            "Medium is coming: 43 % of 491 MB. Large could not be fetched yet: the server's terminal says why, and it "
            "is tried again."
        )
        coming["large"] = msgspec.structs.replace(large, failed=False)
        expect(line).to_have_text("Medium is coming: 43 % of 491 MB. Large is coming: 0 % of 1.1 GB.")
        coming["medium"] = msgspec.structs.replace(medium, here=medium.size)
        expect(line).to_contain_text("Medium is starting.")
        with tab.page.expect_request("**/v1/models"):
            del coming["medium"]
        coming.clear()
        expect(line).to_be_hidden()
        connected(tab.page)
    finally:
        coming.clear()


def test_a_line_says_that_no_model_could_be_fetched(tab: Visit, server: ScriptedServer) -> None:
    server.arrivals.none_fetched = True
    try:
        tab.page.reload()
        expect(tab.page.locator("#coming")).to_contain_text("No model could be fetched")
        expect(tab.page.locator("#coming")).to_contain_text("start it again")
    finally:
        server.arrivals.none_fetched = False


def test_an_example_question_is_answered_with_a_card_that_says_why(tab: Visit, server: ScriptedServer) -> None:
    """The empty page offers questions; the answer streams in as markdown; the card shows the decision."""
    server.pipeline.answers["Tell me a joke."] = Answer(
        text="What a **fine** pun.", tier="medium", complexity=0.27, cost=4_217
    )
    examples = tab.page.locator("#examples").get_by_role("button")
    examples.filter(has_text="Tell me a joke.").click()
    expect(answer(tab.page).locator("strong")).to_have_text("fine")
    answered(tab.page)
    expect(examples.first).to_be_hidden()
    card = tab.page.locator("details.route")
    expect(card.locator("summary")).to_contain_text("medium")
    expect(card.locator("summary")).to_contain_text("scripted-medium")
    expect(card.locator("summary")).to_contain_text("tokens/s")
    card.locator("summary").click()
    expect(card).to_contain_text("complexity 0.12 asks for the small tier")
    expect(card.get_by_role("img")).to_have_attribute("aria-label", re.compile("^0.27 on a scale"))
    expect(card).to_contain_text("Miss: a model wrote this")
    expect(card).to_contain_text("30 read (16 of them known already), 5 written")
    expect(card.locator("dt", has_text="Cost")).to_be_visible()
    expect(card.locator("dt", has_text="Replica")).to_be_visible()
    expect(card).to_contain_text(server.pipeline.turns[-1].id)
    expect(card).to_contain_text("$0.0042")
    expect(tab.page.get_by_role("status")).to_have_text("Answer complete")


def test_an_adapter_that_is_offered_has_an_example_question(tab: Visit, server: ScriptedServer) -> None:
    """Of the adapters that come with Roundhouse, the scripted server offers one. Its example picks it."""
    examples = tab.page.locator("#examples").get_by_role("button")
    expect(examples).to_have_count(5)
    tab.page.get_by_role("button", name="pirate: Why is the sky blue?").click()
    answered(tab.page)
    expect(tab.page.get_by_label("Who answers")).to_have_value("pirate")
    assert [turn.request.model for turn in server.pipeline.turns] == ["pirate"]


def test_an_answer_from_the_cache_is_marked(tab: Visit, server: ScriptedServer) -> None:
    """A hit has no speed and no complexity; whose answer it was is said."""
    told = {"stored": "replayed", "similar": "a similar question", "joined": "at the same time"}
    for number, (reason, words) in enumerate(told.items()):
        server.pipeline.answers[reason] = Answer(cache="hit", cache_reason=reason, complexity=None, reasons=())
        ask(tab.page, reason)
        card = tab.page.locator("details.route").nth(number)
        summary = card.locator("summary")
        expect(summary).to_contain_text("from the cache")
        expect(summary).not_to_contain_text("tokens/s")
        answered(tab.page)
        summary.click()
        expect(card).to_contain_text(words)


def test_a_call_of_a_function_is_shown(tab: Visit, server: ScriptedServer) -> None:
    """Its name and arguments, after the text if there is one."""
    for number, text in enumerate(("I look.", "")):
        server.pipeline.answers["call"] = Answer(text=text, call=("get_weather", '{"city": "Rome"}'))
        ask(tab.page, "call")
        said = tab.page.locator(".markdown").nth(number)
        expect(said).to_contain_text("Calls get_weather")
        expect(said).to_contain_text(text)
        expect(said.locator("code").last).to_have_text('{"city": "Rome"}')
        answered(tab.page)


def test_the_terminal_shows_a_call_too(server: ScriptedServer) -> None:
    """`roundhouse chat` against the same answer."""
    server.pipeline.answers["call"] = Answer(text="I look.", call=("get_weather", '{"city": "Rome"}'))
    command = [sys.executable, "-m", "gateway.cli", "chat", "--url", server.url, "--once", "call"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert shown == 'I look.\n[calls get_weather {"city": "Rome"}]\n'


def test_stop_ends_the_answer_and_keeps_its_text(tab: Visit, server: ScriptedServer) -> None:
    """The button and Esc both cancel the turn on the server."""
    server.pipeline.answers["long"] = Answer(text=LONG, hold_at=100)
    for number, stop in enumerate(
        (tab.page.get_by_role("button", name="Stop").click, lambda: tab.page.keyboard.press("Escape"))
    ):
        ask(tab.page, "long")
        turn = tab.page.locator(".turn").nth(number)
        expect(turn.locator(".markdown")).to_contain_text("word10")
        stop()
        answered(tab.page)
        expect(turn.locator(".note")).to_have_text("Stopped")
        expect(turn.locator(".markdown")).to_have_text(LONG[:100])
        assert server.pipeline.turns[number].cancelled


def test_a_conversation_survives_a_reload(tab: Visit) -> None:
    """Questions, answers, cards and the draft come back."""
    ask(tab.page, "hello")
    answered(tab.page)
    message(tab.page).fill("half a thou")
    tab.page.reload()
    expect(tab.page.locator(".question p")).to_have_text("hello")
    expect(answer(tab.page)).to_have_text("A short answer.")
    expect(tab.page.locator("details.route summary")).to_contain_text("small")
    expect(message(tab.page)).to_have_value("half a thou")


def test_a_reload_during_an_answer_goes_on_with_it(tab: Visit, server: ScriptedServer) -> None:
    """The answer belongs to the server: it is neither asked again nor lost."""
    server.pipeline.answers["long"] = Answer(text=LONG, hold_at=100)
    ask(tab.page, "long")
    expect(answer(tab.page)).to_contain_text("word10")
    reload(tab.page)
    expect(answer(tab.page)).to_contain_text("word10")
    server.release()
    answered(tab.page)
    expect(answer(tab.page)).to_have_text(LONG)
    assert len(server.pipeline.turns) == 1


def test_the_next_question_follows_the_previous_response(tab: Visit, server: ScriptedServer) -> None:
    """Only the new message is sent; the server knows the rest."""
    ask(tab.page, "first")
    answered(tab.page)
    ask(tab.page, "second")
    answered(tab.page)
    second = server.pipeline.turns[1]
    assert second.request.previous_response_id == server.pipeline.turns[0].id
    assert [entry.content for entry in second.conversation] == ["first", "A short answer.", "second"]


def test_a_forgotten_conversation_is_told_again(tab: Visit, server: ScriptedServer) -> None:
    """When the server no longer has the previous response, the page sends the whole conversation."""
    ask(tab.page, "first")
    answered(tab.page)
    server.call(server.gateway.turns.forget, server.pipeline.turns[0].id)
    ask(tab.page, "second")
    answered(tab.page)
    expect(tab.page.locator(".markdown")).to_have_count(2)
    second = server.pipeline.turns[1]
    assert second.request.previous_response_id is None
    assert [entry.content for entry in second.conversation] == ["first", "A short answer.", "second"]


def test_a_refused_question_says_why_and_can_be_retried(tab: Visit, server: ScriptedServer) -> None:
    """With the waiting time; the next attempt is a new turn."""
    server.pipeline.answers["hello"] = Answer(refusal=RateLimited("the token limit is used up", retry_after=11.5))
    ask(tab.page, "hello")
    alert = tab.page.get_by_role("alert")
    expect(alert).to_contain_text("As much was asked as may be asked at the moment. Try again in 12 s.")
    del server.pipeline.answers["hello"]
    alert.get_by_role("button", name="Retry").click()
    expect(answer(tab.page)).to_have_text("A short answer.")
    expect(tab.page.get_by_role("alert")).to_have_count(0)


FAILURES = {
    "spend_per_day; subject=tenant": (41_944, "Your organisation's budget of today is spent. Try again (at|on) "),
    "output_tokens_per_minute; subject=key:ci": (7, "This key's share of text to write .* Try again in 7 s."),
    "concurrent_turns; subject=user:ann": (2, "As many answers as your limit allows"),
}


def test_limits_speak_to_people(tab: Visit, server: ScriptedServer) -> None:
    """No name of a setting, no raw seconds, no micro-dollars."""
    for number, (limit, (seconds, words)) in enumerate(FAILURES.items()):
        refusal = RateLimited(f"{limit} is reached: 13765 of 20000 micro-dollars", retry_after=seconds)
        refusal.headers["x-roundhouse-limit-reached"] = f"{limit}; used=13765; limit=20000"
        server.pipeline.answers["hello"] = Answer(refusal=refusal)
        ask(tab.page, "hello")
        alert = tab.page.locator(".turn").nth(number).get_by_role("alert")
        expect(alert).to_contain_text(re.compile(words))
        assert not re.search(r"_|\d{3}|micro", alert.inner_text())


def test_an_answer_that_fails_half_way_keeps_its_text(tab: Visit, server: ScriptedServer) -> None:
    """The failed turn is not part of the conversation that the next question continues."""
    server.pipeline.answers["break"] = Answer(text="Half an ans", failure=EngineFailed("the engine went away"))
    ask(tab.page, "break")
    expect(tab.page.get_by_role("alert")).to_contain_text(
        "The model that was answering failed. What it said so far is kept"
    )
    expect(answer(tab.page)).to_have_text("Half an ans")
    ask(tab.page, "next")
    answered(tab.page)
    assert [entry.content for entry in server.pipeline.turns[1].conversation] == ["next"]


def test_retry_asks_past_the_cache(tab: Visit, server: ScriptedServer) -> None:
    """Another answer is wanted, not the same one again."""
    ask(tab.page, "hello")
    answered(tab.page)
    tab.page.get_by_role("button", name="Retry").click()
    expect(message(tab.page)).to_be_focused()
    answered(tab.page)
    expect(tab.page.locator(".turn")).to_have_count(1)
    assert [turn.request.caching for turn in server.pipeline.turns] == [Caching(), Caching(no_store=True)]


def test_the_picker_names_tiers_models_and_adapters_and_is_remembered(tab: Visit, server: ScriptedServer) -> None:
    """What is picked answers the next message, after a reload too. A model that does not chat is not offered."""
    picker = tab.page.get_by_label("Who answers")
    expect(picker.locator("option")).to_have_text(
        ["Auto", "Small", "Medium", "Large", "scripted-small", "scripted-large", "pirate"]
    )
    groups = picker.locator("optgroup")
    assert [group.get_attribute("label") for group in groups.all()] == ["Models", "Adapters of scripted-small"]
    expect(groups.last.locator("option")).to_have_attribute("title", "answers like a pirate")
    picker.focus()
    tab.page.keyboard.type("pir")
    expect(picker).to_have_value("pirate")
    picker.select_option("large")
    tab.page.reload()
    connected(tab.page)
    ask(tab.page, "hello")
    answered(tab.page)
    assert server.pipeline.turns[0].request.model == "large"


def test_an_enter_of_an_input_method_does_not_send(tab: Visit, server: ScriptedServer) -> None:
    """Nor does Shift+Enter; the plain one does."""
    message(tab.page).fill("one")
    message(tab.page).evaluate(
        "field => field.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true}))"
    )
    message(tab.page).press("Shift+Enter")
    message(tab.page).press_sequentially("two")
    expect(message(tab.page)).to_have_value("one\ntwo")
    message(tab.page).press("Enter")
    answered(tab.page)
    assert [turn.conversation[-1].content for turn in server.pipeline.turns] == ["one\ntwo"]


def test_what_a_model_writes_stays_text(tab: Visit, server: ScriptedServer) -> None:
    """No script, no element of its own, no request to another host, no link but http, https and mailto."""
    server.pipeline.answers["attack"] = Answer(
        text="<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>\n\n"
        "![pixel](https://evil.example/pixel.png) [js](javascript:window.hit=1) [data](data:text/html,hi)\n\n"
        "[good](https://good.example/) <https://auto.example/>\n\n"
        '```x"><svg/onload=window.hit=1>\n<b>code</b>\n```\n\n'
        "$\\href{javascript:window.hit=1}{x}$ $\\includegraphics{https://evil.example/p.png}$ $x<script>1</script>$ "
        "| <b>a</b> |\n|:--|\n| <img src=x onerror=window.hit=1> |\n"
    )
    ask(tab.page, "attack")
    answered(tab.page)
    assert tab.page.evaluate("window.hit") is None
    assert answer(tab.page).locator("script, img, svg, b").count() == 0
    links = answer(tab.page).locator("a")
    assert links.evaluate_all("links => links.map(link => link.getAttribute('href'))") == [
        "https://evil.example/pixel.png",
        "https://good.example/",
        "https://auto.example/",
    ]
    assert set(links.evaluate_all("links => links.map(link => link.rel + ' ' + link.target)")) == {
        "noopener noreferrer _blank"
    }
    assert tab.hosts == {server.url.removeprefix("http://")}


def test_answers_and_code_can_be_copied(browser: Browser, server: ScriptedServer) -> None:
    """The answer as the model wrote it, the code without its fence."""
    text = "Run **this**:\n\n```python\nprint('hi')\n```\n"
    server.pipeline.answers["code"] = Answer(text=text)
    with visit(browser, server.url, permissions=["clipboard-read", "clipboard-write"]) as tab:
        tab.page.goto("/")
        ask(tab.page, "code")
        answered(tab.page)
        code, whole = tab.page.get_by_role("button", name="Copy").all()
        for button, wanted in ((code, "print('hi')\n"), (whole, text)):
            button.click()
            expect(tab.page.get_by_role("button", name="Copied")).to_have_count(1)
            assert tab.page.evaluate("navigator.clipboard.readText()") == wanted
            expect(tab.page.get_by_role("button", name="Copied")).to_have_count(0)
        expect(answer(tab.page).locator(".hljs-string")).to_have_text("'hi'")


def test_without_a_clipboard_of_its_own_the_page_copies_as_by_hand(tab: Visit, server: ScriptedServer) -> None:
    """As over plain HTTP from another machine; the focus stays."""
    page = tab.page
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.evaluate("addEventListener('copy', ({ target }) => (window.taken = target.value))")
    ask(page, "anything")
    answered(page)
    copy = page.get_by_role("button", name="Copy")
    copy.press("Enter")
    expect(page.get_by_role("button", name="Copied")).to_be_focused()
    assert page.evaluate("window.taken") == answer(page).inner_text()


def test_a_copied_part_has_its_formulas_as_they_were_written(browser: Browser, server: ScriptedServer) -> None:
    server.pipeline.answers["formula"] = Answer(text="Euler wrote $e^{i\\pi} = -1$.\n\nHe did.\n")
    with visit(browser, server.url, permissions=["clipboard-read", "clipboard-write"]) as tab:
        tab.page.goto("/")
        ask(tab.page, "formula")
        answered(tab.page)
        expect(answer(tab.page).locator("math")).to_have_count(1)
        answer(tab.page).evaluate("element => getSelection().selectAllChildren(element)")
        tab.page.keyboard.press("Control+c")
        copied = tab.page.evaluate("navigator.clipboard.readText()")
    assert copied == "Euler wrote $e^{i\\pi} = -1$.\n\nHe did."
