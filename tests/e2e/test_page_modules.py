"""The chat page's modules by themselves, inside the browser they are written for."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

from tests.e2e.browser import needs_chromium

pytestmark = needs_chromium


RESUME = """async (seeds) => {
  const { Conversation } = await import("/static/js/conversation.js");
  const wrong = [];
  for (let seed of seeds) {
    const random = () => ((seed = (seed * 48271) % 2147483647) / 2147483647);
    const below = (limit) => Math.floor(random() * limit);

    // The server's record of one turn: numbered events, whose deltas are merged for whoever comes late.
    const deltas = Array.from({ length: 1 + below(60) }, (_, index) => `<${index}>`);
    const log = [
      { type: "response.created", response: { id: "resp_1" } },
      { type: "response.in_progress" },
      { type: "roundhouse.route", tier: "small", cache: "miss" },
      ...deltas.map((delta) => ({ type: "response.output_text.delta", delta })),
      { type: "response.completed", response: { status: "completed", usage: { output_tokens: deltas.length } } },
    ].map((event, sequence_number) => ({ ...event, sequence_number, stream_id: "" }));
    const after = (sequence) => {
      const events = [];
      for (const event of log.slice(sequence + 1)) {
        const last = events.at(-1);
        if (event.delta && last?.delta && random() < 0.5) {
          events[events.length - 1] = { ...event, delta: last.delta + event.delta };
        } else {
          events.push(event);
        }
      }
      return events;
    };

    let waiting = [];
    const asked = [];
    const connection = {
      isOpen: false,
      connect() {},
      send(event) {
        if (!this.isOpen) return false;
        asked.push(event.type);
        const sequence = event.type === "response.resume" ? event.starting_after : -1;
        // The protocol allows a server to repeat what was seen: every other answer starts too early.
        const start = Math.max(-1, sequence - (random() < 0.5 ? below(4) : 0));
        waiting = after(start).map((one) => ({ ...one, stream_id: event.stream_id }));
        return true;
      },
    };
    const parts = { connection, onchange() {}, onlist() {}, save() {}, now: () => 0 };
    const conversation = new Conversation(parts);
    conversation.ask("question", "auto");
    for (let round = 0; conversation.active && round < 200; round += 1) {
      connection.isOpen = true;
      conversation.connected();
      // At least the first event of a connection arrives; the rest until it is cut.
      for (const event of waiting.slice(0, 1 + below(25))) conversation.receive(event);
      connection.isOpen = false;
      waiting = [];
      conversation.disconnected();
    }
    const [turn] = conversation.turns;
    if (turn.status !== "completed" || turn.text !== deltas.join("")) wrong.push([turn.status, turn.text, asked]);
  }
  return wrong;
}"""


def test_an_answer_cut_anywhere_is_resumed_to_the_character(page: Page) -> None:
    """200 answers, cut at random events, continued with merged and with repeated ones."""
    assert page.evaluate(RESUME, list(range(1, 201))) == []


def test_a_stop_before_the_answer_began_is_not_forgotten(page: Page) -> None:
    """The cancel follows as soon as the response has a name."""
    sent: list[str] = page.evaluate(
        """async () => {
          const { Conversation } = await import("/static/js/conversation.js");
          const sent = [];
          const connection = { isOpen: true, connect() {}, send: (event) => sent.push(event) > 0 };
          const parts = { connection, onchange() {}, onlist() {}, save() {}, now: () => 0 };
          const conversation = new Conversation(parts);
          conversation.ask("question", "auto");
          conversation.stop();
          const stream_id = sent[0].stream_id;
          const response = { id: "resp_1" };
          conversation.receive({ type: "response.created", sequence_number: 0, stream_id, response });
          return sent.map((event) => event.type + " " + (event.response_id ?? ""));
        }"""
    )
    assert sent == ["response.create ", "response.cancel resp_1"]


def test_a_turn_stopped_without_a_connection_is_not_continued(page: Page) -> None:
    """The server may still be writing that answer, so the next question brings the whole conversation."""
    events: list[dict[str, Any]] = page.evaluate(
        """async () => {
          const { Conversation } = await import("/static/js/conversation.js");
          const sent = [];
          const connection = {
            isOpen: true,
            connect() {},
            send(event) { return this.isOpen && sent.push(event) > 0; },
          };
          const conversation = new Conversation({ connection, onchange() {}, onlist() {}, save() {}, now: () => 0 });
          conversation.ask("one", "auto");
          const stream_id = sent[0].stream_id;
          const events = [
            { type: "response.created", response: { id: "resp_1" } },
            { type: "response.output_text.delta", delta: "half" },
          ];
          events.forEach((event, index) => conversation.receive({ ...event, sequence_number: index, stream_id }));
          connection.isOpen = false;
          conversation.stop();
          connection.isOpen = true;
          conversation.ask("two", "auto");
          return sent;
        }"""
    )
    last = events[-1]
    assert "previous_response_id" not in last
    assert [entry["content"] for entry in last["input"]] == ["one", "half", "two"]


def test_pauses_between_attempts_grow_and_stay_bounded(page: Page) -> None:
    """Exponential with full jitter, at most 15 seconds."""
    shortest, longest = page.evaluate(
        """async () => {
          const { pause } = await import("/static/js/connection.js");
          const attempts = [...Array(12).keys()];
          return [0, 1].map((random) => attempts.map((attempt) => pause(attempt, () => random)));
        }"""
    )
    assert shortest == [100] * 12
    assert longest == [500, 1000, 2000, 4000, 8000, *[15000] * 7]


KEPT = """async () => {
  const { kept, requested, oldestHalf } = await import("/static/js/tree.js");
  const { newTurn } = await import("/static/js/turn.js");
  const turn = (id, more = {}) => ({
    ...newTurn({ id, parent: null, question: id, model: "auto", now: 0 }), status: "completed", text: "text", ...more,
  });
  const ids = (turns) => turns.map(({ id }) => id).join("");
  const first = turn("S", { summary: true, omits: ["a", "b"] });
  const second = turn("T", { summary: true, omits: ["S", "c"] });
  const branch = [turn("a"), turn("b"), turn("c"), first, turn("d"), second, turn("e")];
  const failed = { ...first, text: "", status: "failed" };
  return [
    ids(kept(branch)),
    ids(requested(branch.slice(0, 6))),
    ids(requested(branch.slice(0, 4))),
    ids(kept([...branch.slice(0, 3), failed, turn("d")])),
    ids(oldestHalf(branch.slice(0, 5))),
    ids(oldestHalf([turn("a", { status: "failed" })])),
    ids(oldestHalf([turn("a"), turn("b", { text: "long ".repeat(100) }), turn("c")])),
  ];
}"""


def test_summaries_are_summarised(page: Page) -> None:
    """A summary comes first, stands for what it was made of, and is itself left out by the next one."""
    assert page.evaluate(KEPT) == ["Tde", "ScT", "abS", "abcd", "Sc", "", "ab"]


FORMATS = """async (given) => {
  const { formatOf, definitionOf } = await import("/static/js/settings.js");
  return given.map(([type, definition]) => {
    const format = formatOf(type, definition);
    return [format, definitionOf(format)];
  });
}"""


def test_each_form_of_an_answer_is_what_the_api_takes(page: Page) -> None:
    """And can be changed later: its definition is found again."""
    formats: dict[str, tuple[str, dict[str, Any]]] = {
        "json_object": ("", {}),
        "choice": ("yes\nno", {"choices": ["yes", "no"]}),
        "regex": ("[0-9]+", {"pattern": "[0-9]+"}),
        "grammar": ('start: "a"', {"syntax": "lark", "definition": 'start: "a"'}),
    }
    made = page.evaluate(FORMATS, [[type, text] for type, (text, _) in formats.items()])
    assert made == [[{"type": type, **rest}, text] for type, (text, rest) in formats.items()]
    [[gbnf, _]] = page.evaluate(FORMATS, [["grammar", 'root ::= "a"']])
    assert gbnf == {"type": "grammar", "syntax": "gbnf", "definition": 'root ::= "a"'}


OPENED = """async () => {
  const { Chats } = await import("/static/js/chats.js");
  const read = {};
  const kept = { saved: { turns: [], leaf: null } };
  const get = (id) => new Promise((resolve) => (read[id] = () => resolve(kept)));
  const connection = { isOpen: false, connect() {}, send: () => false };
  const chats = new Chats({ connection, history: { place: "browser", get, save() {} }, onchange() {}, onlist() {} });
  const shown = [];
  const opening = ["a", "b"].map((id) => chats.open(id));
  read.b();
  await opening[1];
  shown.push(chats.id);
  read.a();
  await opening[0];
  shown.push(chats.id);
  opening.push(chats.open("c"));
  chats.begin();
  const { id } = chats;
  read.c();
  await opening[2];
  return [...shown, chats.id === id];
}"""


def test_the_conversation_that_was_wanted_last_is_shown(page: Page) -> None:
    """Whichever is read first."""
    assert page.evaluate(OPENED) == ["b", "b", True]


SEALED = """async (given) => {
  const { decrypted } = await import("/static/js/sharing.js");
  const key = crypto.getRandomValues(new Uint8Array(32));
  const iv = crypto.getRandomValues(new Uint8Array(12));
  const packed = new Blob(given).stream().pipeThrough(new CompressionStream("gzip"));
  const plain = await new Response(packed).arrayBuffer();
  const imported = await crypto.subtle.importKey("raw", key, "AES-GCM", false, ["encrypt"]);
  const sealed = await crypto.subtle.encrypt({ name: "AES-GCM", iv }, imported, plain);
  const text = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  const named = text(key).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return decrypted(text([...iv, ...new Uint8Array(sealed)]), named).then(() => "", (error) => error.message);
}"""
"""Shares any text -> why it is refused."""


@pytest.mark.parametrize(
    "given",
    [
        "null",
        '{"conversations": []}',
        '{"conversations": [{"id": "a", "title": "t", "updated": 0, "leaf": null, "turns": [{"id": 1}]}]}',
        '{"conversations": [{"id": "a", "title": "t", "updated": 0, "leaf": null, "turns": [{"id": "a", "parent": null,'
        ' "question": "q", "model": "m", "text": {"a": "b"}}]}]}',
        '{"conversations": [{"id": "a", "title": "t", "updated": 0, "leaf": null, "turns": [{"id": "a", "parent": null,'
        ' "question": "", "model": "m", "text": "t", "status": "completed", "continuable": false, "responseId": null,'
        ' "sequence": 0, "route": null, "usage": null, "failure": null, "rating": null}]}]}',
    ],
)
def test_what_others_have_shared_is_checked(page: Page, given: str) -> None:
    """Whoever shares may encrypt anything."""
    assert page.evaluate(SEALED, [given])


def test_what_others_have_shared_does_not_fill_the_memory(page: Page) -> None:
    """A few bytes may unpack to any number: no more of them are unpacked than a conversation has."""
    refused = page.evaluate(f"(count) => ({SEALED})(Array(count).fill(' '.repeat(1_000_000)))", 33)
    assert refused == "it is too large"
