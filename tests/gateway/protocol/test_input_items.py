"""Conversations as lists of items, in pages."""

from __future__ import annotations

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st
from openai.types.conversations import ConversationItemList

from gateway.protocol.input_items import ItemsPage, item_messages, items_page
from gateway.protocol.messages import join_calls
from gateway.protocol.requests import Message, ToolCall

SAID = st.text(min_size=1, max_size=3)
CALLS = st.lists(st.builds(ToolCall, id=st.text(max_size=3), name=st.just("f"), arguments=st.just("{}")), max_size=2)
MESSAGES = st.lists(
    st.one_of(
        st.builds(Message, role=st.sampled_from(["user", "system", "assistant"]), content=SAID),
        st.builds(Message, role=st.just("assistant"), content=SAID, calls=CALLS.map(tuple)),
        st.builds(Message, role=st.just("tool"), content=st.text(max_size=3), answers=st.text(max_size=3)),
        st.builds(Message, role=st.just("user"), content=st.just(""), compacted=st.text(max_size=3)),
    ),
    max_size=12,
)


@given(messages=MESSAGES, limit=st.integers(1, 9), order=st.sampled_from(["asc", "desc"]))
def test_pages_are_openais_and_show_every_item_once(
    messages: list[Message], limit: int, order: Literal["asc", "desc"]
) -> None:
    items = item_messages("resp_1", messages)
    seen: list[str] = []
    more = True
    while more:
        page = items_page(items, ItemsPage(after=seen[-1] if seen else None, limit=limit, order=order))
        listed = ConversationItemList.model_validate(page, strict=True)
        assert len(listed.data) <= limit
        if listed.data:
            assert (listed.first_id, listed.last_id) == (listed.data[0].id, listed.data[-1].id)
        seen += [str(item.id) for item in listed.data]
        more = listed.has_more
    assert seen == (list(items) if order == "asc" else list(items)[::-1])


@given(messages=MESSAGES)
def test_items_are_the_conversation(messages: list[Message]) -> None:
    """Put together again they are the items of what they make."""
    items = item_messages("resp_1", messages)
    assert list(item_messages("resp_1", join_calls(items.values())).items()) == list(items.items())
