"""A language that nobody speaks, in place of German: its texts are 40 % longer than the English ones, and show."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import Page

from tests.gateway.http.test_languages import read

_OTHERS = "code, pre, kbd, .markdown, .model, bdi, datalist, [dir=auto], [lang=en], [translate=no], noscript"
"""What people, models and the server's configuration write; so is an option that is named as its value."""

_TEXTS = """(others) => {
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const { parentElement: parent, data } = node;
    if (!parent.closest(others) && !(parent.localName === "option" && parent.value === data)) found.push(data);
  }
  for (const name of ["aria-label", "placeholder", "title"]) {
    for (const element of document.querySelectorAll(`[${name}]`)) {
      if (!element.closest(others)) found.push(element.getAttribute(name));
    }
  }
  return found;
}"""


def speak(page: Page, *catalogues: str) -> None:
    """Have these catalogues of German hold it; what the server says itself stays as it is."""

    def hold(catalogue: str) -> None:
        exported = ((name, each) for name, each in read("de", catalogue).items() if name != "said")
        body = "\n".join(_export(name, entries) for name, entries in exported)
        address = f"**/languages/de/{catalogue}.js"
        page.route(address, lambda route: route.fulfill(body=body, content_type="text/javascript"))

    for catalogue in catalogues:
        hold(catalogue)


def _export(name: str, entries: dict[str, Any]) -> str:
    longer = json.dumps({text: _longer(text, entry) for text, entry in entries.items()})
    return f"export default {longer};" if name == "default" else f"export const {name} = {longer};"


def _longer(text: str, entry: str | dict[str, str]) -> str | dict[str, str]:
    longer = f"⟦{text} {('xxxxx ' * len(text))[: 2 * len(text) // 5]}⟧"
    return longer if isinstance(entry, str) else {form: longer for form in entry}


def untranslated(page: Page, also: str = "", names: str = "(?!)") -> list[str]:
    """Texts that no catalogue has.

    Args:
        also: selector of what else nobody translates.
        names: pattern of names in what is left.
    """
    texts: list[str] = page.evaluate(_TEXTS, ", ".join(filter(None, (_OTHERS, also))))
    english = [text for text in texts if not re.search("[⟦⟧]", text)]
    return [text for text in english if re.search(r"[^\W\d_]{3}", re.sub(names, "", text))]
