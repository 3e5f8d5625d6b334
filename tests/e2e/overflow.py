"""Text that does not fit into its element: cut off, spilling over, or reached by scrolling sideways only."""

from __future__ import annotations

from playwright.sync_api import Page

_SIDEWAYS = ".scroll, .table, .math.display, pre, textarea"
"""What may scroll sideways: tables, formulas and code, which have lines of their own."""

_OVERFLOWING = """([sideways, lists]) => {
  const ROUNDED = 1;
  const name = (element) => element.outerHTML.replace(/\\s+/g, " ").slice(0, 160);

  /** Width of a control that is as wide as what is chosen in it, or what stands in it while it is empty. */
  const needed = (control) => {
    const copy = control.cloneNode(true);
    copy.value = control.value;
    Object.assign(copy.style, { position: "absolute", fieldSizing: "content", width: "max-content", maxWidth: "none" });
    control.after(copy);
    const { width } = copy.getBoundingClientRect();
    copy.remove();
    return width;
  };
  /** Whether all that it says is told on hovering, too. */
  const titled = (element) => {
    const title = element.closest("[title]")?.title ?? "";
    const text = element.localName === "select" ? element.selectedOptions[0]?.text : element.textContent;
    return title.includes(text.trim());
  };
  const cut = (element, style) => {
    if (element.matches("select, input[placeholder]")) {
      const says = element.localName === "select" ? lists : !element.value;
      return says && needed(element) > element.getBoundingClientRect().width + ROUNDED;
    }
    if (element.matches("input, svg, svg *, math *") || style.display === "inline" || element.matches(sideways)) {
      return false;
    }
    if (element.scrollWidth > element.clientWidth + ROUNDED) return true;
    const hides = ["hidden", "clip"].includes(style.overflowY);
    return hides && element.scrollHeight > element.clientHeight + ROUNDED;
  };
  const found = [];
  for (const element of document.querySelectorAll("html, body, body *")) {
    if (!element.checkVisibility({ visibilityProperty: true })) continue;
    const style = getComputedStyle(element);
    const hidden = element.closest(".visually-hidden") || style.clipPath !== "none";
    if (!hidden && cut(element, style) && !titled(element)) found.push(name(element));
  }
  return found;
}"""


def overflowing(page: Page, *, lists: bool = True) -> list[str]:
    """Elements whose text does not fit, as HTML, but for those that tell all of it on hovering, too.

    Args:
        lists: whether that counts what is chosen of a list, which is whole again where the list is opened.
    """
    found: list[str] = page.evaluate(_OVERFLOWING, [_SIDEWAYS, lists])
    return found
