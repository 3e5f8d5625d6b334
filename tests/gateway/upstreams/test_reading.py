"""How the chunks of a server's stream become outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.processor import TextProcessor
from engine.wire import Generate, Output, SamplingParams, TokenIdLogprob
from gateway.upstreams.dialect import AnswerChunk, AnswerEvent
from gateway.upstreams.llama_cpp import LlamaCppEvent
from gateway.upstreams.pages import UNREADABLE
from gateway.upstreams.reading import ChunkReader
from gateway.upstreams.sglang import SglangEvent
from gateway.upstreams.tensorrt_llm import TensorrtLlmEvent
from gateway.upstreams.vllm import VllmEvent

EOS = 2


@pytest.fixture(scope="module")
def text(model: Path) -> TextProcessor:
    return TextProcessor.from_path(model)


NAMES = st.sampled_from(
    ["choices", "token_ids", "finish_reason", "logprobs", "output_ids", "meta_info", "tokens", "error", "message"]
)


def _json(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=4) | st.dictionaries(NAMES, values, max_size=4)


def reader(text: TextProcessor, max_tokens: int = 20, resumed: int = 0, **sampling: object) -> ChunkReader:
    params = SamplingParams(max_tokens=max_tokens, **sampling)  # type: ignore[arg-type]
    return ChunkReader(Generate("1", [5, 6, 7, 8], params, resumed=resumed), text)


def tokens(*outputs: Output | None) -> list[int]:
    return [token for output in outputs if output is not None for token in output.tokens]


def test_new_tokens_are_taken_as_they_come(text: TextProcessor) -> None:
    read = reader(text)
    assert tokens(read.read(AnswerChunk([70, 71])), read.read(AnswerChunk([72]))) == [70, 71, 72]


def test_of_all_tokens_so_far_the_new_ones_are_taken(text: TextProcessor) -> None:
    read = reader(text)
    chunks = [AnswerChunk([70], 1), AnswerChunk([70, 71, 72], 3), AnswerChunk([70, 71, 72], 3), AnswerChunk([73], 4)]
    assert tokens(*map(read.read, chunks)) == [70, 71, 72, 73]


@given(
    st.lists(st.integers(3, 300), min_size=1, max_size=30), st.sets(st.integers(1, 29)), st.booleans(), st.booleans()
)
def test_however_an_answer_is_cut_it_is_the_same(
    text: TextProcessor, answer: list[int], cuts: set[int], cumulative: bool, counted: bool
) -> None:
    read = reader(text, max_tokens=30)
    outputs, start = [], 0
    for end in sorted({cut for cut in cuts if cut < len(answer)} | {len(answer)}):
        shown = answer[:end] if cumulative else answer[start:end]
        outputs.append(read.read(AnswerChunk(shown, end if cumulative or counted else None)))
        start = end
    read.read(AnswerChunk(finish="length"))
    assert tokens(*outputs, read.end()) == answer


@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), _json).map(msgspec.json.encode))
@pytest.mark.parametrize("event", [LlamaCppEvent, VllmEvent, SglangEvent, TensorrtLlmEvent])
def test_whatever_a_server_sends_is_read_or_refused(event: type[AnswerEvent], message: bytes) -> None:
    try:
        chunk = msgspec.json.decode(message, type=event).chunk()
    except UNREADABLE:
        return
    assert all(0 <= token < 2**31 for token in chunk.tokens)


def test_tokens_that_were_not_sent_are_restored_from_their_text(text: TextProcessor) -> None:
    """As llama.cpp leaves out those that end inside a character."""
    ids = text.encode("🎉", special=False)
    assert len(ids) > 1
    output = reader(text, logprobs=0).read(AnswerChunk(ids[-1:], len(ids), "🎉", [TokenIdLogprob(ids[-1], -0.5)]))
    assert output is not None
    assert output.tokens == ids
    assert [each.logprob for each in output.logprobs or ()] == [-0.5] * len(ids)


def test_the_token_that_ends_an_answer_is_in_its_last_output(text: TextProcessor) -> None:
    """Also if the server sends it before it says that the answer has ended."""
    read = reader(text)
    assert tokens(read.read(AnswerChunk([70]))) == [70]
    assert read.read(AnswerChunk([EOS])) is None
    assert read.read(AnswerChunk(finish="stop")) is None
    last = read.end()
    assert last is not None
    assert (last.tokens, last.finish) == ([EOS], "stop")


def test_a_control_token_amidst_an_answer_belongs_to_it(text: TextProcessor) -> None:
    read = reader(text, ignore_eos=True)
    assert tokens(read.read(AnswerChunk([70, EOS])), read.read(AnswerChunk([71])), read.read(AnswerChunk([EOS]))) == [
        70,
        EOS,
        71,
    ]
    assert read.read(AnswerChunk(finish="length")) is None
    last = read.end()
    assert last is not None and (last.tokens, last.finish) == ([EOS], "length")


def test_a_stream_that_ends_without_a_reason_has_no_end(text: TextProcessor) -> None:
    read = reader(text)
    read.read(AnswerChunk([70]))
    assert read.end() is None


def test_stop_tokens_end_an_answer_once_it_has_its_least_tokens(text: TextProcessor) -> None:
    output = reader(text, stop_token_ids=(71,), min_tokens=2).read(AnswerChunk([71, 70, 71, 72]))
    assert output is not None
    assert (output.tokens, output.finish) == ([71, 70, 71], "stop")


def test_more_tokens_than_were_asked_for_are_cut_off(text: TextProcessor) -> None:
    output = reader(text, max_tokens=3, resumed=1).read(AnswerChunk([70, 71, 72, 73]))
    assert output is not None
    assert (output.tokens, output.finish) == ([70, 71], "length")


def test_usage_counts_the_whole_answer_and_never_more_cached_tokens_than_there_are(text: TextProcessor) -> None:
    output = reader(text, resumed=1).read(AnswerChunk([70, 71], cached=1000))
    assert output is not None and output.usage is not None
    usage = output.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens) == (3, 3, 3)


def test_nonsense_is_an_error(text: TextProcessor) -> None:
    read = reader(text)
    read.read(AnswerChunk([70, 71], 2))
    with pytest.raises(ValueError, match="takes back"):
        read.read(AnswerChunk([70], 1))
    with pytest.raises(ValueError, match="log-probabilities"):
        reader(text, logprobs=0).read(AnswerChunk([70, 71], logprobs=[TokenIdLogprob(70, -0.5)]))


def test_only_as_many_likely_tokens_come_as_were_asked_for(text: TextProcessor) -> None:
    found = TokenIdLogprob(70, -1.0, [(71, -2.0), (70, -1.0), (72, -0.5)])
    output = reader(text, logprobs=2).read(AnswerChunk([70], logprobs=[found]))
    assert output is not None
    assert output.logprobs == [TokenIdLogprob(70, -1.0, [(72, -0.5), (70, -1.0)])]


def test_an_event_of_llama_cpp() -> None:
    event = (
        b'{"index":0,"content":" a","tokens":[264],"stop":false,"id_slot":-1,"tokens_predicted":3,"tokens_evaluated":5,'
        b'"completion_probabilities":[{"id":264,"token":" a","bytes":[32,97],"logprob":-0.25,'
        b'"top_logprobs":[{"id":264,"token":" a","bytes":[32,97],"logprob":-0.25}]}]}'
    )
    found = msgspec.json.decode(event, type=LlamaCppEvent).chunk()
    assert (found.tokens, found.count, found.text, found.finish) == ([264], 3, " a", None)
    assert found.logprobs == [TokenIdLogprob(264, -0.25, [(264, -0.25)])]
    last = (
        b'{"index":0,"content":"","tokens":[],"stop":true,"tokens_predicted":4,"stop_type":"eos",'
        b'"timings":{"cache_n":2,"prompt_n":3}}'
    )
    found = msgspec.json.decode(last, type=LlamaCppEvent).chunk()
    assert (found.tokens, found.count, found.finish, found.cached) == ([], 4, "stop", 2)
    wrong = b'{"error":{"code":500,"message":"context shift is disabled","type":"server_error"}}'
    error = msgspec.json.decode(wrong, type=LlamaCppEvent).chunk().error
    assert error is not None and (error.status, error.message) == (500, "context shift is disabled")


def test_an_event_of_vllm() -> None:
    event = (
        b'{"id":"cmpl-1","object":"text_completion","model":"m","choices":[{"index":0,"text":" a","token_ids":[264],'
        b'"logprobs":{"text_offset":[0],"token_logprobs":[-0.25],"tokens":["token_id:264"],'
        b'"top_logprobs":[{"token_id:264":-0.25,"token_id:7":-2.0}]},"finish_reason":null,"stop_reason":null}]}'
    )
    found = msgspec.json.decode(event, type=VllmEvent).chunk()
    assert (found.tokens, found.count, found.finish) == ([264], None, None)
    assert found.logprobs == [TokenIdLogprob(264, -0.25, [(264, -0.25), (7, -2.0)])]
    usage = (
        b'{"choices":[],"usage":{"prompt_tokens":9,"total_tokens":12,"completion_tokens":3,'
        b'"prompt_tokens_details":{"cached_tokens":8}}}'
    )
    assert msgspec.json.decode(usage, type=VllmEvent).chunk().cached == 8
    aborted = b'{"choices":[{"index":0,"text":"","finish_reason":"abort","token_ids":[]}]}'
    assert msgspec.json.decode(aborted, type=VllmEvent).chunk().finish == "error"


def test_an_event_of_sglang() -> None:
    event = (
        b'{"text":null,"output_ids":[264,7],"meta_info":{"id":"1","finish_reason":{"type":"stop","matched":7},'
        b'"prompt_tokens":9,"completion_tokens":2,"cached_tokens":8,"output_token_logprobs":[[-0.25,264,null],'
        b'[-1.0,7,null]],"output_top_logprobs":[[[-0.25,264,null]],null]}}'
    )
    found = msgspec.json.decode(event, type=SglangEvent).chunk()
    assert (found.tokens, found.count, found.finish, found.cached) == ([264, 7], 2, "stop", 8)
    assert found.logprobs == [TokenIdLogprob(264, -0.25, [(264, -0.25)]), TokenIdLogprob(7, -1.0)]
    aborted = (
        b'{"output_ids":[],"meta_info":{"finish_reason":{"type":"abort","message":"the queue is full",'
        b'"status_code":503}}}'
    )
    error = msgspec.json.decode(aborted, type=SglangEvent).chunk().error
    assert error is not None and (error.status, error.message) == (503, "the queue is full")


def test_an_event_of_tensorrt_llm() -> None:
    event = (
        b'{"id":"cmpl-1","object":"text_completion","created":1764000000,"model":"m","choices":[{"index":0,"text":"",'
        b'"token_ids":[264,7],"logprobs":{"text_offset":[0,2],"token_logprobs":[-0.25,-9999.0],"tokens":[" a"," c"],'
        b'"top_logprobs":[{" a":-0.25},{" c":-9999.0," b":-0.5}]},"finish_reason":"stop","stop_reason":7,'
        b'"avg_decoded_tokens_per_iter":null}],"usage":null}'
    )
    found = msgspec.json.decode(event, type=TensorrtLlmEvent).chunk()
    assert (found.tokens, found.count, found.finish) == ([264, 7], None, "stop")
    assert found.logprobs == [TokenIdLogprob(264, -0.25), TokenIdLogprob(7, -9999.0)]
    usage = (
        b'{"id":"cmpl-1","choices":[],"usage":{"prompt_tokens":9,"total_tokens":12,"completion_tokens":3,'
        b'"prompt_tokens_details":{"cached_tokens":8}}}'
    )
    assert msgspec.json.decode(usage, type=TensorrtLlmEvent).chunk().cached == 8
    failed = b'{"error":{"message":"the request has failed","type":"server_error","code":null,"param":null}}'
    error = msgspec.json.decode(failed, type=TensorrtLlmEvent).chunk().error
    assert error is not None and (error.status, error.message) == (0, "the request has failed")
    other = b'{"choices":[{"index":0,"text":"","token_ids":[264],"logprobs":{"token_logprobs":[-0.25,-0.5]}}]}'
    with pytest.raises(ValueError, match="longer"):
        msgspec.json.decode(other, type=TensorrtLlmEvent).chunk()
