"""When an answer ends."""

from __future__ import annotations

from typing import Any

import pytest

from engine.plan import Sampled
from engine.request import Request
from tests.engine.ledger_runner import EOS
from tests.engine.scheduler_bench import Bench


def _outputs(sampled: list[int], **sampling: Any) -> Request:
    """A request whose tokens are dictated."""
    bench = Bench()
    request = bench.add("a", 4, max_tokens=sampling.pop("max_tokens", 10), **sampling)
    for token in sampled:
        plan = bench.scheduler.schedule(0.0)
        bench.scheduler.commit(plan, [Sampled([token])])
    return request


@pytest.mark.parametrize(
    ("sampling", "sampled", "finish"),
    [
        ({"ignore_eos": False}, [1, EOS], "stop"),
        ({"ignore_eos": True}, [1, EOS], None),
        ({"stop_token_ids": (5,)}, [1, 5], "stop"),
        ({"ignore_eos": False, "stop_token_ids": (5,)}, [1, EOS], "stop"),
        ({"ignore_eos": False, "min_tokens": 2}, [1, EOS], None),
        ({"ignore_eos": False, "min_tokens": 2}, [1, 2, EOS], "stop"),
        ({"max_tokens": 2}, [1, 2], "length"),
        ({"ignore_eos": False, "max_tokens": 2}, [1, EOS], "stop"),
    ],
)
def test_when_an_answer_ends(sampling: dict[str, Any], sampled: list[int], finish: str | None) -> None:
    assert _outputs(sampled, **sampling).finish == finish


def test_an_answer_ends_at_the_model_s_context() -> None:
    bench = Bench(context=20)
    request = bench.add("a", 15, max_tokens=100)
    bench.run()
    assert (request.finish, len(request.output)) == ("length", 5)
