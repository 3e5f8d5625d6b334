"""The pages by keys alone: nothing is focused but by the Tab key, and nothing is pressed but keys."""

from __future__ import annotations

from typing import NamedTuple

from playwright.sync_api import Locator, Page, expect

_CONTROLS = """[...document.querySelectorAll(
  "a[href], button, input, select, textarea, summary, [tabindex]:not([tabindex^='-'])"
)].filter((element) => element.tabIndex >= 0 && !element.disabled
  && element.checkVisibility({ visibilityProperty: true }) && !element.closest("[inert]")
  && (document.querySelector("dialog:modal") ?? document).contains(element))"""
"""What can be used now: of a page with a modal dialog what is in that."""
_AHEAD = f"""((elements) => {{
  const controls = {_CONTROLS};
  const here = document.activeElement;
  const follows = (each) => each === here || here.compareDocumentPosition(each) & Node.DOCUMENT_POSITION_FOLLOWING;
  const from = Math.max(0, here === document.body ? 0 : controls.findIndex(follows));
  return elements.map((each) => (controls.indexOf(each) - from + controls.length) % controls.length);
}})"""
"""How many times Tab comes to something else before it comes to these, as far as their order tells."""

_ROUNDS = 6
"""How often the controls ahead are walked through: Tab comes to each part of a date, too."""


def focus(target: Locator, key: str = "Tab") -> None:
    """Go on by this key until it has the focus."""
    expect(target).to_be_visible()
    page = target.page
    most = 2 * int(page.evaluate(f"{_CONTROLS}.length")) + 10
    if key == "Tab":
        for _ in range(target.evaluate(f"element => {_AHEAD}([element])[0]")):
            page.keyboard.press(key)
    for _ in range(most):
        if target.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press(key)
    raise AssertionError(f"{key} never comes to {target}")


def press(target: Locator, key: str = "Enter") -> None:
    """Go to a control, and press a key; something has the focus afterwards."""
    focus(target)
    target.page.keyboard.press(key)
    kept(target.page)


def kept(page: Page) -> None:
    """Something has the focus, also once the page is drawn: what is hidden then loses it."""
    page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    expect(page.locator(":focus"), "the focus").to_have_count(1)


class Step(NamedTuple):
    """What a reader does by keys."""

    at: str
    """Selector of the control that Tab goes on to, the last one of these; empty: what has the focus already."""
    then: str
    """Selector of what is there afterwards."""
    keys: str = "Enter"
    """Keys that are pressed, one after the other."""
    text: str | None = None
    """What is written first, in the place of what stands there."""


def walk(page: Page, *steps: Step) -> None:
    """Take steps; after each of them something has the focus."""
    for step in steps:
        target = page.locator(step.at or ":focus").last
        focus(target)
        if step.text is not None:
            write(target, step.text)
        for key in step.keys.split():
            page.keyboard.press(key)
        expect(page.locator(step.then), f"after {step}").not_to_have_count(0)
        kept(page)


def write(target: Locator, text: str) -> None:
    """Replace what is in a field."""
    focus(target)
    target.page.keyboard.press("ControlOrMeta+a")
    target.page.keyboard.type(text)


def choose(target: Locator, option: str) -> None:
    """An option of a list, by the beginning of its name."""
    focus(target)
    target.page.keyboard.type(option)


def unreachable(page: Page, within: str = "html") -> list[str]:
    """Controls in an element that Tab never comes to, as HTML."""
    page.evaluate(
        f"""(within) => {{
          window.missed = new Set({_CONTROLS}.filter((element) => element.closest(within)));
          document.addEventListener("focusin", ({{ target }}) => missed.delete(target));
          missed.delete(document.activeElement);
        }}""",
        within,
    )
    for _ in range(_ROUNDS):
        ahead: list[int] = page.evaluate(f"{_AHEAD}([...missed])")
        if not ahead:
            break
        for _ in range(max(ahead) + 3):
            page.keyboard.press("Tab")
    found: list[str] = page.evaluate(
        """[...missed].filter((element) => element.isConnected && element.checkVisibility({ visibilityProperty: true }))
          .map((element) => element.outerHTML.slice(0, 120))"""
    )
    return found
