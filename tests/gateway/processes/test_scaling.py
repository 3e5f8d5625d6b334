"""Where a controller inside `serve` answers."""

from __future__ import annotations

import pytest

from gateway.processes.scaling import listener
from tests.gateway.scaling.conftest import settings
from tests.ports import free_port


@pytest.mark.parametrize(
    ("pool", "listens"),
    [({}, True), ({"registered": True}, False), ({"max_replicas": None}, False)],
    ids=["decides", "engines come from elsewhere", "one engine"],
)
def test_serve_listens_for_its_controller_only_where_it_decides(pool: dict[str, object], *, listens: bool) -> None:
    port = free_port()
    with listener(settings(scaling={"listen": f"127.0.0.1:{port}"}, **pool)) as bound:
        assert (bound is not None and bound.getsockname()[1] == port) is listens


def test_serve_listens_nowhere_unless_it_is_told_to() -> None:
    with listener(settings()) as bound:
        assert bound is None
