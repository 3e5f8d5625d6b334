"""The state of a batch, without Redis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from openai.types import Batch

from gateway.access.identity import Principal
from gateway.batches.state import (
    WINDOW,
    BatchDocument,
    BatchProgress,
    BatchStatus,
    BatchStep,
    LineError,
    next_step,
)
from gateway.protocol.codec import JsonCodec

BATCH = BatchDocument(
    id="batch_1",
    principal=Principal("acme", "ci"),
    endpoint="/v1/responses",
    input_file_id="file-1",
    created_at=1000,
    metadata={"run": "1"},
)
ENDED = (BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)


@given(st.lists(st.sampled_from(BatchStatus), max_size=8), st.integers(1000, 10_000))
def test_whatever_happens_it_is_valid_in_openais_types_and_ends_once(path: list[BatchStatus], now: int) -> None:
    """Illegal transitions raise; a batch that has ended enters no other status."""
    batch = BATCH
    for status in path:
        try:
            moved = batch.enter(status, now, total=2, lines=3, errors=(LineError("code", "message", 1, "url"),))
        except RuntimeError:
            continue
        assert not batch.ended
        batch = moved
        assert batch.times[status] == now
    assert batch.ended == (batch.status in ENDED)
    shown = replace(batch, progress=BatchProgress(1, 1, 5, 2, 3)).shown()
    valid = Batch.model_validate_json(JsonCodec().encode(shown), strict=True)
    assert valid.model_extra == {}
    assert (valid.status, valid.metadata, valid.created_at) == (batch.status.value, {"run": "1"}, 1000)
    assert (valid.output_file_id is not None) == (valid.error_file_id is not None) == batch.ended
    assert valid.usage and valid.usage.total_tokens == 8


@pytest.mark.parametrize("status", BatchStatus)
def test_a_batch_that_has_not_ended_always_has_something_to_do(status: BatchStatus) -> None:
    """Before its end of time and after."""
    for now in (1000, 1000 + WINDOW):
        step = next_step(replace(BATCH, status=status), now)
        assert (step is BatchStep.NOTHING) == (status in ENDED)


def test_an_expired_batch_answers_no_more_but_a_finished_one_is_completed() -> None:
    late = 1000 + WINDOW
    assert next_step(replace(BATCH, status=BatchStatus.IN_PROGRESS), late - 1) is BatchStep.ANSWER
    assert next_step(replace(BATCH, status=BatchStatus.IN_PROGRESS), late) is BatchStep.ABANDON
    assert next_step(replace(BATCH, status=BatchStatus.FINALIZING), late) is BatchStep.FINISH
    assert next_step(replace(BATCH, status=BatchStatus.CANCELLING), 1000) is BatchStep.ABANDON
