"""How the chat page shows answers: markdown, formulas and colours, whole and while they grow."""

from __future__ import annotations

import random
import re

import pytest
from playwright.sync_api import Page

from tests.e2e.browser import needs_chromium

pytestmark = needs_chromium

OWN = "(name => import(new URL(name, document.querySelector('script[type=module]').src)))"
"""Imports a module that the page has loaded itself: there is one that makes workers."""

BLOCKS = (
    "A paragraph with **bold**, *italics*, `code`, ~~gone~~ and a [link](https://a.example/).",
    "Two lines\nof one paragraph",
    "# Heading",
    "#tag is no heading",
    "Text\n# heading right after it",
    "Text\n---",
    "- one\n- two\n  - nested\n- three",
    "- loose\n\n- list\n\n  with a paragraph",
    "1. first\n2. second\n\n   ```python\n   print(1)\n   ```\n3. third",
    "7) starts at seven",
    "> quoted\nlazily continued\n\n> > deeper",
    "```python\ndef f():\n\n    return 1\n```",
    "````\n```\nnot the end\n````",
    "~~~\nunclosed",
    "    indented code\n\n    goes on",
    "| a | b |\n|:--|--:|\n| 1 | 2 |\n| `x|y` | ![i](https://i.example/p.png) |",
    "Not a table\na | b",
    "***",
    "<div>no html</div>\n<script>alert(1)</script>",
    "https://auto.example/path?x=1&y=2 and README.md",
    "[reference][r] and [r]\n\n[r]: https://r.example/ 'title'",
    "[r]: https://first.example/\n[r2]:\nhttps://second.example/",
    "a  \nhard break\\\nanother",
    "&amp; &copy; \\* \u00e9\u4e16\U0001f600",
    "windows\r\nline\r\nends\r\n\r\n- a\r\n- b",
    "inline $x^2$ and \\(y\\), $5 and $10",
    "\\[\na\n+ b\n\\]",
    "$$\nnot closed",
    "- item with $x$\n\n  $$\n  y\n  $$\n- other",
    "",
    "\n\n",
)
CHARACTERS = "#-*_`>|~=+<&!\\ \t\n\n\n 1.)[](): a\r$"

STREAM_EQUALS_WHOLE = """async (documents) => {
  const { StreamRenderer } = await import("/static/js/stream.js");
  const differences = [];
  for (const chunks of documents) {
    const streamed = document.createElement("div");
    const sealed = [];
    const renderer = new StreamRenderer(streamed, (node) => sealed.push([node, node.outerHTML]));
    let text = "";
    for (const chunk of chunks) {
      text += chunk;
      renderer.update(text);
      renderer.flush();
    }
    const early = [...sealed];
    renderer.finish(text);
    renderer.finish(text);
    const whole = document.createElement("div");
    new StreamRenderer(whole).finish(text);
    if (streamed.innerHTML !== whole.innerHTML) {
      differences.push({ chunks, streamed: streamed.innerHTML, whole: whole.innerHTML });
    }
    const definitions = /^ {0,3}\\[[^\\]]+\\]:/m.test(text);
    if (!definitions && early.some(([node, html]) => !streamed.contains(node) || node.outerHTML !== html)) {
      differences.push({ chunks, streamed: "a sealed element was changed" });
    }
  }
  return differences.slice(0, 3);
}"""


def cut(text: str, rng: random.Random) -> list[str]:
    """A text in random pieces."""
    chunks = []
    while text:
        size = rng.choice((1, 2, 3, 5, 8, 40))
        chunks.append(text[:size])
        text = text[size:]
    return chunks


@pytest.mark.parametrize("seed", range(2))
def test_a_document_in_any_pieces_looks_as_if_rendered_whole(page: Page, seed: int) -> None:
    """Blocks in random order; what was sealed is never touched again, nor is anything by finishing twice."""
    rng = random.Random(seed)
    documents = []
    for _ in range(25):
        blocks = rng.choices(BLOCKS, k=rng.randrange(1, 8))
        documents.append(cut("".join(block + rng.choice(("\n", "\n\n", "\n\n")) for block in blocks), rng))
    assert page.evaluate(STREAM_EQUALS_WHOLE, documents) == []


@pytest.mark.parametrize("seed", range(2))
def test_any_characters_in_any_pieces_look_as_if_rendered_whole(page: Page, seed: int) -> None:
    """No markdown at all, but every character that means something to it."""
    rng = random.Random(100 + seed)
    documents = [cut("".join(rng.choices(CHARACTERS, k=rng.randrange(1, 80))), rng) for _ in range(40)]
    assert page.evaluate(STREAM_EQUALS_WHOLE, documents) == []


def numbered(line: str, count: int, last: str = "\n") -> str:
    return last.join(line.format(number) for number in range(count))


LONG = {
    "list": numbered("- item {} with **bold** and `code`", 900),
    "nested list": "\n".join(f"{'  ' * (number % 3)}- item {number} with **bold** text" for number in range(900)),
    "list in an item": "1. first\n2. second\n\n" + numbered("   - item {} goes on *here*", 900),
    "table": "| a | b |\n|---|--:|\n" + numbered("| row {} | text **b** |", 1200),
    "code": "```python\n" + numbered("x{0} = f({0})\t# a comment", 1200) + "\n```",
    "code in an item": "- one\n- two\n\n  ```js\n" + numbered("  let a{0} = {0};", 1500) + "\n  ```\n- three",
    "code after a long text in an item": "- "
    + numbered("word{}", 180, " ")
    + "\n\n  ```py\n"
    + numbered("  first = {}", 80)
    + "\n  ```\n- end",
    "code in a quote": "> " + numbered("word{}", 180, " ") + "\n>\n> ```py\n" + numbered("> first = {}", 80),
    "code of long lines": "```json\n" + numbered("[{}" + 300 * ", 1" + "]", 60) + "\n```\n\nend",
    "paragraph": numbered("word{} **and** more", 1500, " "),
    "one word": "a" * 32_000,
    "lines": numbered("a line with number {}", 1400),
    "long paragraphs": numbered(numbered("word{{}} **and** more", 300, " ").replace("{}", "{0}"), 6, "\n\n"),
    "long items": numbered("- " + numbered("word{{}} and `more`", 250, " ").replace("{}", "{0}"), 6),
    "quote": numbered("> - quoted item {} **text**", 1100),
    "formulas": numbered("Formula {0}: $x^{{{0}}}$\n\n\\[\ny_{{{0}}}\n+ 1\n\\]\n", 500),
}
LONG["mixed"] = "\n\n".join(text[:3000] for name, text in LONG.items() if name != "one word")

FEW = ("paragraph", "one word", "lines", "long paragraphs", "long items", *(name for name in LONG if "code" in name))
"""Those that have no elements inside, or few."""

LONG_STREAM = """async (text) => {
  const { StreamRenderer } = await import("/static/js/stream.js");
  const streamed = document.createElement("div");
  const sealed = new Map();
  const renderer = new StreamRenderer(streamed, (node) => sealed.has(node) || sealed.set(node, node.outerHTML));
  let longest = 0;
  const parse = renderer.parse;
  renderer.parse = (source) => {
    longest = Math.max(longest, source.length);
    return parse(source);
  };
  for (let end = 0; end < text.length; end += text.length < 4000 ? 1 : 97) {
    renderer.update(text.slice(0, end));
    renderer.flush();
  }
  const early = [...sealed];
  renderer.finish(text);
  const whole = document.createElement("div");
  new StreamRenderer(whole).finish(text);
  const { parse: plain } = await import("/static/js/markdown/parser.js");
  const { patch } = await import("/static/js/dom.js");
  const unsealed = document.createElement("div");
  patch(unsealed, plain(text));
  const shown = (element) => {
    element.normalize();
    return element.innerHTML;
  };
  return {
    longest,
    sealed: early.length,
    kept: early.every(([node, html]) => streamed.contains(node) && node.outerHTML === html),
    whole: streamed.innerHTML === whole.innerHTML,
    plain: shown(streamed) === shown(unsealed),
  };
}"""


@pytest.mark.parametrize("name", LONG)
def test_a_long_block_is_sealed_inside(page: Page, name: str) -> None:
    """No more than 4,096 characters are parsed at once, what is sealed stays the same element, and the page looks as
    if nothing had been."""
    text = LONG[name][:32_000]
    found = page.evaluate(LONG_STREAM, text)
    assert found.pop("longest") <= 4096
    assert found.pop("sealed") > 20 or name in FEW
    assert found == {"kept": True, "whole": True, "plain": True}


FORMULAS = {
    "Euler: $e^{i\\pi} = -1$.": ["e^{i\\pi} = -1"],
    "It costs $5 and $10.": [],
    "Between \\(a\\) and \\[b\\]": ["a", "b"],
    "$$\nx\n+ y\n$$": ["x\n+ y"],
    "`$x$` and\n\n```\n$y$\n```": [],
    "\\$x$ and a$ b$": [],
    "- $\\frac{1}{2}$\n- **$z$**": ["\\frac{1}{2}", "z"],
    "| $a$ | b |\n|---|---|\n| 1 | \\(c\\) |": ["a", "c"],
    "$\\nosuchmacro{x}$": ["\\nosuchmacro{x}"],
    "\\[ not closed": [],
}


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_are_drawn_and_other_dollars_are_not(page: Page, text: str) -> None:
    """As MathML; one that is no TeX stays as it was written."""
    drawn, plain = page.evaluate(
        """async (text) => {
          const { StreamRenderer } = await import("/static/js/stream.js");
          const { drawWithin } = await import("/static/js/sealed.js");
          const answer = document.createElement("div");
          answer.className = "markdown";
          document.body.append(answer);
          new StreamRenderer(answer).finish(text);
          await drawWithin(answer);
          const formulas = [...answer.querySelectorAll("[data-tex]")];
          const drawn = formulas.map((one) => [one.dataset.tex, one.querySelector("math") !== null]);
          for (const one of formulas) one.replaceChildren(one.dataset.source);
          const plain = answer.innerText;
          answer.remove();
          return [drawn, plain];
        }""",
        text,
    )
    assert drawn == [[tex, "nosuchmacro" not in tex] for tex in FORMULAS[text]]
    if FORMULAS[text] and "|" not in text and "*" not in text:
        assert plain.split() == text.split()


def test_highlighting_changes_colours_only(page: Page) -> None:
    """The code's text stays as it was, with markup that only names classes; a comment that goes on in the next part of
    a long block has its colour there too."""
    source = "<b>&amp;</b>\nlet x = `a<${1}>`; // <script>\n/*" + "\n" * 40 + "*/\nreturn\n"
    text, html, parts = page.evaluate(
        f"""async (source) => {{
          const {{ StreamRenderer }} = await import("/static/js/stream.js");
          const {{ highlight }} = await {OWN}("sealed.js");
          const answer = document.createElement("div");
          new StreamRenderer(answer).finish("```js\\n" + source + "```");
          const code = answer.querySelector("code");
          await highlight(code);
          await highlight(code);
          return [code.textContent, code.innerHTML, code.querySelectorAll(".part > .hljs-comment").length];
        }}""",
        source,
    )
    assert text == source
    assert '<span class="hljs-keyword">let</span>' in html
    assert '<span class="hljs-keyword">return</span>' in html
    assert parts == 3


ATTACKS = (
    "<script>hit()</script>",
    "<img src=x onerror=hit()>",
    "<svg onload=hit()><animate onbegin=hit() attributeName=x></svg>",
    "<iframe srcdoc='<script>hit()</script>'></iframe><object data=x></object><embed src=x>",
    "<math><mtext><table><mglyph><style><img src=x onerror=hit()>",
    "<form action=javascript:hit()><button formaction=javascript:hit()>x</button></form>",
    "<style>@import 'https://evil.example/';</style><link rel=stylesheet href=x><base href=x><meta http-equiv=refresh>",
    "<details open ontoggle=hit()><summary>x</summary></details><video src=x onerror=hit()><audio src=x>",
    "<a href=javascript:hit() style='color:red' id=log name=body>x</a>",
    "<noscript><p title='</noscript><img src=x onerror=hit()>'>",
    "<!--><img src=x onerror=hit()>--> <![CDATA[<img src=x onerror=hit()>]]> <?php hit() ?>",
    "&lt;img src=x onerror=hit()&gt; &#60;script&#62;hit()&#60;/script&#62;",
    "[x](javascript:hit()) [x](JaVaScRiPt:hit()) [x](java\tscript:hit()) [x](&#106;avascript:hit())",
    "[x](data:text/html,<script>hit()</script>) [x](vbscript:hit()) [x](file:///etc/passwd) [x](blob:x)",
    "[x](<javascript:hit()>) [x](\x01javascript:hit()) [x](//evil.example) [x](javascript&colon;hit())",
    '[x](https://evil.example \'a" onmouseover="hit()\') [x](https://evil.example/"onclick=hit()//)',
    "[x][j]\n\n[j]: javascript:hit() 'title'",
    '![x](javascript:hit()) ![x" onerror="hit()](https://evil.example/p.png \'a" onload="hit()\')',
    '<javascript:hit()> <data:text/html,x> <https://evil.example/"onclick=hit()>',
    '```x" onload="hit()\n<img src=x onerror=hit()>\n```',
    "```html\n<script>hit()</script>\n```",
    '~~~"><img src=x onerror=hit()>\n</code></pre><img src=x onerror=hit()>',
    "| <img src=x onerror=hit()> | b |\n|:--|--:|\n| [x](javascript:hit()) | <script>hit()</script> |",
    "$\\href{javascript:hit()}{x}$ $\\url{javascript:hit()}$ $\\includegraphics{https://evil.example/p.png}$",
    "$\\class{hit}{x}$ $\\id{log}{x}$ $\\style{color:red}{x}$ $\\data{x=1}{x}$ $\\htmlId{log}{x}$",
    "$\\text{<img src=x onerror=hit()>}$ \\(</math><img src=x onerror=hit()>\\) $$\\unicode{x3c}script>$$",
    "$\\color{red}{x}$ $\\def\\x{\\x\\x}\\x$ $\\rule{1000em}{1000em}$ $\\frac{1}{2}$",
    "# <b>x</b>\n\n> <i>x</i>\n\n- <u>x</u>\n\n1. <s onclick=hit()>x</s>",
    "[<img src=x onerror=hit()>](https://evil.example) `<img src=x onerror=hit()>` **<script>hit()</script>**",
)
MARKDOWN = (
    "a blockquote br button code del div em h1 h2 h3 h4 h5 h6 hr li ol p pre s span strong table"
    " tbody td th thead tr ul"
)
FORMULA = (
    "annotation math menclose merror mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms"
    " mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover semantics"
)
ATTRIBUTES = "aria-level class data-action data-coloured data-source data-tex href rel start tabindex target title type"
"""All that an answer's elements may have outside of formulas."""

DRAWN = """async (texts) => {
  const { StreamRenderer } = await import("/static/js/stream.js");
  const { drawWithin, highlight } = await OWN("sealed.js");
  const found = [];
  for (const text of texts) {
    const answer = document.createElement("div");
    answer.className = "markdown";
    document.body.append(answer);
    const renderer = new StreamRenderer(answer);
    const collect = () => {
      for (const { localName, attributes, namespaceURI } of answer.querySelectorAll("*")) {
        const given = [...attributes].map(({ name, value }) => [name, value]);
        found.push([localName, namespaceURI.endsWith("MathML"), given]);
      }
    };
    for (let end = 1; end < text.length; end += 1) {
      renderer.update(text.slice(0, end));
      renderer.flush();
      collect();
    }
    renderer.finish(text);
    await drawWithin(answer);
    for (const code of answer.querySelectorAll("pre > code")) await highlight(code);
    collect();
    answer.remove();
  }
  return [typeof hit, [...new Set(found.map((one) => JSON.stringify(one)))].map((one) => JSON.parse(one))];
}""".replace("OWN", OWN)


def test_no_attack_draws_more_than_answers_may_have(page: Page) -> None:
    """Whole, and at each moment while it comes: elements, attributes and schemes of links are those allowed."""
    hit, elements = page.evaluate(f"(texts) => {{ window.hit = undefined; return ({DRAWN})(texts); }}", ATTACKS)
    assert hit == "undefined"
    assert len(elements) > 50
    for name, formula, given in elements:
        attributes = dict(given)
        assert name in (FORMULA if formula else MARKDOWN).split(), (name, given)
        if formula:
            assert not {each for each in attributes if each.startswith("on") or each in {"href", "src", "id"}}, given
        else:
            assert attributes.keys() <= set(ATTRIBUTES.split()), (name, given)
            assert re.match("https?:|mailto:", attributes.get("href", "https:")), given
