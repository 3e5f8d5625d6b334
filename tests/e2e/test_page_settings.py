"""The settings of a conversation on the chat page: what was set is sent, what was not is not."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import Visit, needs_chromium, visit
from tests.e2e.page import answered, ask, connected, watched
from tests.e2e.scripted import ScriptedServer

pytestmark = needs_chromium

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def settings(page: Page) -> Any:
    """The dialog, opened."""
    page.get_by_role("button", name="Settings").click()
    dialog = page.get_by_role("dialog", name="Settings of this conversation")
    expect(dialog.get_by_label("Instructions")).to_be_focused()
    return dialog


def use(page: Page, **values: str) -> None:
    dialog = settings(page)
    for label, value in values.items():
        dialog.get_by_label(label.replace("_", " ")).fill(value)
    dialog.get_by_role("button", name="Use").click()
    expect(dialog).to_be_hidden()


def test_only_what_was_set_is_sent(browser: Browser, server: ScriptedServer) -> None:
    """With each question of this conversation, after a reload too, and of no other one."""
    with visit(browser, server.url) as tab:
        created = watched(tab)
        ask(tab.page, "hello")
        answered(tab.page)
        plain = {"type": "response.create", "model": "auto", "input": [{"role": "user", "content": "hello"}]}
        assert created == [plain]
        dialog = settings(tab.page)
        for label, value in {
            "Instructions": "Answer in Latin.",
            "Temperature": "0",
            "Top-p": "0.5",
            "Longest answer": "40",
            "Seed": "7",
            "Stop at": "\nEND\n\nSTOP\n",
            "Answers from the cache": "no-cache",
            "Form of the answer": "json_schema",
            "JSON schema": json.dumps(SCHEMA),
        }.items():
            field = dialog.get_by_label(label, exact=True)
            if label in ("Answers from the cache", "Form of the answer"):
                field.select_option(value)
            else:
                field.fill(value)
        dialog.get_by_role("button", name="Use").click()
        expect(tab.page.get_by_role("button", name="Settings (8 set)")).to_be_focused()
        ask(tab.page, "again")
        answered(tab.page)
        given = {
            "instructions": "Answer in Latin.",
            "temperature": 0,
            "top_p": 0.5,
            "max_output_tokens": 40,
            "seed": 7,
            "stop": ["END", "STOP"],
            "text": {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}},
            "roundhouse": {"cache": "no-cache"},
        }
        assert {key: created[1].get(key) for key in given} == given
        assert created[1].keys() - given.keys() == {"type", "model", "input", "previous_response_id"}
        tab.page.reload()
        connected(tab.page)
        ask(tab.page, "and again")
        answered(tab.page)
        assert {key: created[2].get(key) for key in given} == given
        tab.page.get_by_role("button", name="New chat").click()
        expect(tab.page.get_by_role("button", name="Settings", exact=True)).to_be_visible()
        ask(tab.page, "hello")
        answered(tab.page)
        assert created[3] == plain


def test_what_is_taken_back_is_not_sent(browser: Browser, server: ScriptedServer) -> None:
    """One field, or all."""
    with visit(browser, server.url) as tab:
        created = watched(tab)
        use(tab.page, Temperature="1", Seed="7")
        use(tab.page, Seed="")
        ask(tab.page, "one")
        answered(tab.page)
        assert (created[0]["temperature"], "seed" in created[0]) == (1, False)
        settings(tab.page).get_by_role("button", name="Clear").click()
        tab.page.get_by_role("button", name="Use").click()
        ask(tab.page, "two")
        answered(tab.page)
        assert created[1].keys() == {"type", "model", "input", "previous_response_id"}


def test_wrong_settings_are_told_in_sentences(tab: Visit) -> None:
    """And the dialog can be left with what held before."""
    dialog = settings(tab.page)
    form, use, alert = (
        dialog.get_by_label("Form of the answer"),
        dialog.get_by_role("button", name="Use"),
        dialog.get_by_role("alert"),
    )
    form.select_option("json_schema")
    for schema, told in (
        ("", "JSON schema: nothing is given."),
        ("{", "The schema is no JSON: "),
        ("[]", "The schema is no JSON object"),
    ):
        dialog.get_by_label("JSON schema", exact=True).fill(schema)
        use.click()
        expect(alert).to_contain_text(told)
    form.select_option("")
    expect(dialog.get_by_label("JSON schema", exact=True)).to_be_hidden()
    dialog.get_by_label("Temperature").fill("3")
    use.click()
    expect(dialog).to_be_visible()
    tab.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(tab.page.get_by_role("button", name="Settings", exact=True)).to_be_focused()


def test_presets_are_kept_for_other_conversations(tab: Visit, server: ScriptedServer) -> None:
    """Saved under a name, taken over, deleted."""
    dialog = settings(tab.page)
    dialog.get_by_label("Temperature").fill("0.25")
    dialog.get_by_role("button", name="Save as preset").click()
    expect(dialog.get_by_role("alert")).to_have_text("Give the preset a name.")
    dialog.get_by_label("Name of a new one").fill("Sober")
    dialog.get_by_label("Name of a new one").press("Enter")
    expect(dialog.get_by_label("Take over")).to_have_value("Sober")
    tab.page.keyboard.press("Escape")
    tab.page.reload()
    connected(tab.page)
    settings(tab.page).get_by_label("Take over").select_option("Sober")
    expect(dialog.get_by_label("Temperature")).to_have_value("0.25")
    dialog.get_by_role("button", name="Use").click()
    ask(tab.page, "hello")
    answered(tab.page)
    assert server.pipeline.turns[0].request.sampling.temperature == 0.25
    settings(tab.page).get_by_label("Take over").select_option("Sober")
    dialog.get_by_role("button", name="Delete preset").click()
    expect(dialog.get_by_label("Take over").locator("option")).to_have_text(["None"])


def test_a_dialog_that_cannot_be_loaded_is_told(tab: Visit) -> None:
    """It comes with the first use, for which the server must be there."""
    tab.page.route("**/js/settings-dialog.js", lambda route: route.abort())
    tab.page.get_by_role("button", name="Settings").click()
    expect(tab.page.get_by_role("alert")).to_have_text("The server cannot be reached.")
    expect(tab.page.get_by_role("dialog")).to_have_count(0)
