"""The pages by keys alone: nothing is focused but by the Tab key, and nothing is pressed but keys."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

_CONTROLS = """[...document.querySelectorAll(
  "a[href], button, input, select, textarea, summary, [tabindex]:not([tabindex^='-'])"
)].filter((element) => element.tabIndex >= 0 && !element.disabled
  && element.checkVisibility({ visibilityProperty: true }) && !element.closest("[inert]")
  && (document.querySelector("dialog:modal") ?? document).contains(element))"""
"""What can be used now: of a page with a modal dialog what is in that."""


def focus(target: Locator) -> None:
    """Go on by Tab until it has the focus."""
    expect(target).to_be_visible()
    page = target.page
    most = 2 * int(page.evaluate(f"{_CONTROLS}.length")) + 10
    for _ in range(most):
        if target.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab never comes to {target}")


def press(target: Locator, key: str = "Enter") -> None:
    """Go to a control, and press a key; something has the focus afterwards."""
    focus(target)
    target.page.keyboard.press(key)
    expect(target.page.locator(":focus")).to_have_count(1)


def write(target: Locator, text: str) -> None:
    """Replace what is in a field."""
    focus(target)
    target.page.keyboard.press("ControlOrMeta+a")
    target.page.keyboard.type(text)


def choose(target: Locator, option: str) -> None:
    """An option of a list, by the beginning of its name."""
    focus(target)
    target.page.keyboard.type(option)


def unreachable(page: Page) -> list[str]:
    """Controls that Tab never comes to, as HTML."""
    count = page.evaluate(
        f"""() => {{
          window.missed = new Set({_CONTROLS});
          document.addEventListener("focusin", ({{ target }}) => missed.delete(target));
          missed.delete(document.activeElement);
          return missed.size;
        }}"""
    )
    for _ in range(count + 10):
        page.keyboard.press("Tab")
    found: list[str] = page.evaluate(
        """[...missed].filter((element) => element.isConnected && element.checkVisibility({ visibilityProperty: true }))
          .map((element) => element.outerHTML.slice(0, 120))"""
    )
    return found
