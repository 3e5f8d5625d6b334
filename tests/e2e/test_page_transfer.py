"""Conversations taken along: exports of other programs, markdown, copies, folders."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from tests.e2e.browser import Visit, needs_chromium
from tests.e2e.page import answer, answered, ask, connected, reload
from tests.e2e.scripted import Answer, ScriptedServer
from tests.e2e.test_page_history import exported, fill, listed

pytestmark = needs_chromium

EXPORTS = Path(__file__).parent / "exports"


def test_conversations_of_chatgpt_are_imported(tab: Visit, server: ScriptedServer) -> None:
    """With their branches, the one that was shown first; pictures, tools and hidden messages are left out."""
    tab.page.get_by_label("Import").set_input_files(EXPORTS / "chatgpt.json")
    expect(tab.page.locator("#told")).to_have_text("One conversation was imported.")
    listed(tab.page).filter(has_text="Capitals").click()
    expect(tab.page.get_by_role("heading", name="March 12, 2025")).to_be_visible()
    expect(tab.page.locator(".question p")).to_have_text(["What is the capital of France?", "And of this one?"])
    expect(tab.page.locator(".markdown")).to_have_text(["Paris.", "Rome, the eternal city."])
    expect(tab.page.locator(".versions > span")).to_have_text(["2/2"])
    tab.page.get_by_role("button", name="Earlier version").click()
    expect(tab.page.locator(".markdown")).to_have_text(["Lyon."])
    ask(tab.page, "Really?")
    answered(tab.page)
    asked = [entry.content for entry in server.pipeline.turns[0].conversation]
    assert asked == ["What is the capital of France?", "Lyon.", "Really?"]


def test_conversations_of_open_webui_are_imported(tab: Visit, tmp_path: Path) -> None:
    """A question without an answer too. Importing twice changes nothing."""
    for _ in range(2):
        tab.page.get_by_label("Import").set_input_files(EXPORTS / "open-webui.json")
        expect(listed(tab.page)).to_have_text(["Rivers"])
    expect(tab.page.get_by_role("heading", name="Pinned")).to_be_visible()
    listed(tab.page).click()
    expect(tab.page.locator(".question p")).to_have_text(["Which river is the longest?", "Who says so?"])
    expect(tab.page.locator(".markdown").first).to_have_text("The Amazon, some say.")
    [conversation] = exported(tab.page, tmp_path)["conversations"]
    assert [(turn["question"], turn["text"], turn["model"]) for turn in conversation["turns"]] == [
        ("Which river is the longest?", "The Nile.", "llama3.2:3b"),
        ("Which river is the longest?", "The Amazon, some say.", "llama3.2:3b"),
        ("Who says so?", "", "auto"),
    ]


def test_other_lists_are_refused_in_a_sentence(tab: Visit, tmp_path: Path) -> None:
    told = tab.page.locator("#told")
    for text, why in (
        ('[{"messages": []}]', "it has no conversations of ChatGPT or Open WebUI"),
        ('[{"mapping": {}}]', "a conversation has no id"),
        ('[{"id": null, "mapping": {}}]', "a conversation has no id"),
    ):
        told.evaluate("told => told.replaceChildren()")
        (tmp_path / "other.json").write_text(text)
        tab.page.get_by_label("Import").set_input_files(tmp_path / "other.json")
        expect(told).to_have_text(f"This file cannot be read: {why}.")


def test_a_conversation_is_saved_as_markdown(tab: Visit, server: ScriptedServer, tmp_path: Path) -> None:
    """The branch that is shown."""
    server.pipeline.answers["one"] = Answer(text="first **answer**")
    fill(tab, "one")
    ask(tab.page, "two")
    answered(tab.page)
    with tab.page.expect_download() as saving:
        tab.page.get_by_role("button", name="Markdown").click()
    assert saving.value.suggested_filename == "roundhouse-conversation.md"
    saving.value.save_as(tmp_path / "saved.md")
    assert (tmp_path / "saved.md").read_text("utf-8") == (
        "# one\n\n## Question\n\none\n\n## Answer (scripted-small)\n\nfirst **answer**\n\n"
        "## Question\n\ntwo\n\n## Answer (scripted-small)\n\nA short answer.\n"
    )


def test_a_turn_is_continued_in_a_conversation_of_its_own(tab: Visit, server: ScriptedServer) -> None:
    """What comes before it is there too; neither conversation changes the other."""
    for question in ("one", "two", "three"):
        server.pipeline.answers[question] = Answer(text=f"answer to {question}")
        ask(tab.page, question)
        answered(tab.page)
    before = tab.page.url
    tab.page.get_by_role("article").nth(1).get_by_role("button", name="Continue in a conversation of its own").click()
    expect(listed(tab.page)).to_have_count(2)
    expect(tab.page.locator(".markdown")).to_have_text(["answer to one", "answer to two"])
    assert tab.page.url != before
    ask(tab.page, "other")
    answered(tab.page)
    asked = [entry.content for entry in server.pipeline.turns[-1].conversation]
    assert asked == ["one", "answer to one", "two", "answer to two", "other"]
    reload(tab.page)
    connected(tab.page)
    expect(answer(tab.page)).to_have_text("A short answer.")
    listed(tab.page).last.click()
    expect(answer(tab.page)).to_have_text("answer to three")


def test_conversations_are_put_into_folders(tab: Visit, tmp_path: Path) -> None:
    """By keys alone; an empty name takes one out again. Exports have them."""
    fill(tab, "apple", "pear", "plum")

    def move(title: str, folder: str) -> None:
        tab.page.get_by_role("button", name=f"Move to a folder: {title}").press("Enter")
        field = tab.page.get_by_role("combobox", name="Folder")
        field.fill(folder)
        field.press("Enter")
        expect(tab.page.get_by_role("link", name=title)).to_be_focused()

    move("apple", "Trees")
    move("plum", "Trees")
    move("pear", "Bushes")
    headings = tab.page.get_by_role("navigation", name="Conversations").get_by_role("heading")
    expect(headings).to_have_text(["Bushes", "Trees"])
    expect(listed(tab.page)).to_have_text(["pear", "plum", "apple"])
    move("pear", "")
    expect(headings).to_have_text(["Trees", "Today"])
    tab.page.get_by_role("button", name="Move to a folder: pear").press("Enter")
    field = tab.page.get_by_role("combobox", name="Folder")
    expect(field).to_be_focused()
    field.press("Escape")
    expect(tab.page.get_by_role("link", name="pear")).to_be_focused()
    folders = {each["title"]: each.get("folder", "") for each in exported(tab.page, tmp_path)["conversations"]}
    assert folders == {"apple": "Trees", "plum": "Trees", "pear": ""}
