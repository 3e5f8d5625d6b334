"""Identity of requests: an answer that was cached under one context is never given in another."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cache.keys import response_digest
from cache.policy import Scope
from engine.text.processor import SamplingDefaults
from engine.wire import Grammar
from gateway.access.identity import Principal
from gateway.pipeline.sources.cache_key import HARMLESS, owner, parts
from gateway.protocol.caching import Caching
from gateway.protocol.output_format import OutputFormat
from gateway.protocol.requests import Message, Sampling, ToolCall, TurnRequest
from gateway.protocol.tools import Tool, ToolUse

CI = Principal("acme", "ci")
WORDS = st.text("ab\x00 ä", max_size=3)
NUMBERS = st.integers(-(2**40), 2**40)
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
CALLS = st.lists(st.builds(ToolCall, id=WORDS, name=WORDS, arguments=WORDS), max_size=2).map(tuple)
MESSAGE = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=WORDS,
    calls=CALLS,
    answers=st.none() | WORDS,
)
SAMPLING = st.builds(
    Sampling,
    temperature=st.none() | FLOATS,
    top_p=st.none() | FLOATS,
    top_k=st.none() | NUMBERS,
    min_p=st.none() | FLOATS,
    repetition_penalty=st.none() | FLOATS,
    presence_penalty=FLOATS,
    frequency_penalty=FLOATS,
    logit_bias=st.dictionaries(st.integers(0, 9), FLOATS, max_size=2),
    seed=st.none() | NUMBERS,
    ignore_eos=st.booleans(),
    stop_token_ids=st.lists(st.integers(0, 9), max_size=2).map(tuple),
    min_tokens=st.integers(0, 5),
    logprobs=st.none() | st.integers(0, 5),
    prompt_logprobs=st.none() | st.integers(0, 5),
)
FORMAT = st.builds(
    OutputFormat,
    grammar=st.builds(Grammar, kind=st.sampled_from(["regex", "choice"]), source=WORDS, lenient=st.booleans()),
    param=st.just("text.format"),
    shown=st.just({}),
)
TOOL = st.builds(
    Tool,
    name=WORDS,
    description=st.none() | WORDS,
    parameters=st.none() | st.dictionaries(WORDS, WORDS, max_size=2),
    strict=st.booleans(),
)
TOOLS = st.builds(
    ToolUse,
    tools=st.lists(TOOL, max_size=2).map(tuple),
    mode=st.sampled_from(["auto", "none", "required"]),
    allowed=st.lists(WORDS, max_size=2).map(tuple),
    parallel=st.booleans(),
)
REQUEST = {
    "model": WORDS,
    "instructions": st.none() | WORDS,
    "prompt": st.none() | WORDS | st.lists(st.integers(0, 99), max_size=3).map(tuple),
    "add_special_tokens": st.booleans(),
    "sampling": SAMPLING,
    "max_output_tokens": st.none() | st.integers(1, 5000),
    "quality": st.none() | st.integers(0, 100),
    "format": st.none() | FORMAT,
    "tools": st.none() | TOOLS,
    "truncate": st.booleans(),
    "template": st.dictionaries(WORDS, WORDS | st.booleans(), max_size=2),
    "stop": st.lists(WORDS, max_size=2).map(tuple),
    "skip_special_tokens": st.booleans(),
}
"""Fields of a request that shape its answer, beside the conversation."""


class Pool:
    """What the identity of a request has of a pool."""

    def __init__(self, name: str, revision: str = "r", vocabulary: str = "v", temperature: float = 0.0) -> None:
        self.name, self.tier, self.vocabulary, self.revisions = name, "small", vocabulary, [revision]
        self.format, self.defaults = "json", SamplingDefaults(temperature=temperature)


def digest(
    asked: TurnRequest,
    conversation: tuple[Message, ...] = (),
    *,
    principal: Principal = CI,
    scope: Scope = Scope.USER,
    pools: tuple[Pool, ...] = (Pool("m"),),
    adapter: str | None = None,
    safety: str | None = None,
    policy: str = "p",
    secret: bytes = b"acme's",
) -> str:
    made = parts(
        asked,
        conversation,
        owner=owner(scope, principal),
        pools=[[pool.name, pool.tier, pool.vocabulary, pool.revisions, pool.format, pool.defaults] for pool in pools],
        adapter=adapter,
        safety=safety,
        policy=policy,
        default_max_output_tokens=2048,
    )
    return response_digest(made, secret)


BASE = TurnRequest(model="auto")
ASKED = (Message("user", "What is a cache?"),)


@pytest.mark.parametrize("field", sorted(REQUEST))
def test_requests_that_differ_in_one_field_have_different_keys(field: str) -> None:
    @given(REQUEST[field], REQUEST[field])
    def check(one: object, other: object) -> None:
        assume(repr(one) != repr(other))  # 1, 1.0 and True are equal for Python only
        if field == "max_output_tokens":
            assume({one, other} != {None, 2048})
        first, second = (msgspec.structs.replace(BASE, **{field: value}) for value in (one, other))
        assert digest(first, ASKED) != digest(second, ASKED)
        assert digest(first, ASKED) == digest(msgspec.structs.replace(first), ASKED)

    check()


@given(st.lists(MESSAGE, max_size=3), st.lists(MESSAGE, max_size=3))
def test_conversations_that_differ_have_different_keys(one: list[Message], other: list[Message]) -> None:
    """Also where a turn continues another one, whose messages are not its own."""
    assume(one != other)
    assert digest(BASE, tuple(one)) != digest(BASE, tuple(other))


def test_a_border_between_fields_is_part_of_the_key() -> None:
    """Text that moves from one message or field to another makes another request."""
    said = [
        digest(BASE, (Message("user", "ab"), Message("user", "c"))),
        digest(BASE, (Message("user", "a"), Message("user", "bc"))),
        digest(BASE, (Message("user", "abc"),)),
        digest(BASE, (Message("system", "ab"), Message("user", "c"))),
        digest(msgspec.structs.replace(BASE, instructions="ab"), (Message("user", "c"),)),
        digest(msgspec.structs.replace(BASE, stop=("ab",)), (Message("user", "c"),)),
        digest(msgspec.structs.replace(BASE, stop=("a", "b")), (Message("user", "c"),)),
    ]
    assert len(set(said)) == len(said)


CONTEXTS = {
    "key": {"principal": Principal("acme", "other")},
    "user": {"principal": Principal("acme", "ci", "bob")},
    "user of a token": {"principal": Principal("acme", "token:idp", "bob", expires_at=1.0)},
    "user of another issuer": {"principal": Principal("acme", "token:other", "bob", expires_at=1.0)},
    "shared": {"scope": Scope.TENANT},
    "tenant": {"secret": b"globex'"},
    "model behind the name": {"pools": (Pool("n"),)},
    "another model beside it": {"pools": (Pool("m"), Pool("n"))},
    "weights": {"pools": (Pool("m", revision="s"),)},
    "tokenizer or template": {"pools": (Pool("m", vocabulary="w"),)},
    "defaults": {"pools": (Pool("m", temperature=1.0),)},
    "adapter": {"adapter": "v1"},
    "adapter's version": {"adapter": "v2"},
    "safety rules": {"safety": "s"},
    "routing": {"policy": "q"},
}


def test_every_context_has_a_key_of_its_own() -> None:
    """Who asks, and what would answer."""
    keys = {name: digest(BASE, ASKED, **context) for name, context in CONTEXTS.items()}  # type: ignore[arg-type]
    keys["none of it"] = digest(BASE, ASKED)
    keys["tags"] = digest(msgspec.structs.replace(BASE, caching=Caching(tags=("faq",))), ASKED)
    assert len(set(keys.values())) == len(keys)


def test_a_user_is_known_by_all_of_their_keys() -> None:
    one, other = (digest(BASE, ASKED, principal=Principal("acme", key, "bob")) for key in ("a", "b"))
    assert one == other


def test_users_of_a_tenant_share_if_they_may() -> None:
    principals = (Principal("acme", "a", "bob"), Principal("acme", "b"))
    one, other = (digest(BASE, ASKED, scope=Scope.TENANT, principal=each) for each in principals)
    assert one == other


@pytest.mark.parametrize(
    "change",
    [
        {"caching": Caching(refresh=True, max_age=3)},
        {"store": False},
        {"metadata": {"a": "b"}},
        {"echo": {"user": "ann"}},
        {"service_tier": "flex"},
        {"max_output_tokens": 2048},
        {"previous_response_id": "resp_1"},
        {"messages": ASKED},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_does_not_shape_an_answer_is_no_part_of_the_key(change: dict[str, object]) -> None:
    assert digest(msgspec.structs.replace(BASE, **change), ASKED) == digest(BASE, ASKED)


def test_every_field_of_a_request_is_in_the_key_or_known_to_be_harmless() -> None:
    """A field that is added to requests is in the key until somebody says otherwise; then it belongs in these tests."""
    assert set(TurnRequest.__struct_fields__) == set(REQUEST) | HARMLESS


def test_every_field_of_sampling_is_drawn_above() -> None:
    drawn = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}
    drawn |= {"logit_bias", "seed", "ignore_eos", "stop_token_ids", "min_tokens", "logprobs", "prompt_logprobs"}
    assert set(Sampling.__struct_fields__) == drawn
