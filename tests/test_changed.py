"""Which tests a change asks for."""

from __future__ import annotations

import grimp
import pytest

from tests.changed import PACKAGES, ROOT, affected


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("load/statistics.py", {"tests/load/test_statistics.py": True, "tests/router/test_budget.py": False}),
        ("tests/load/test_statistics.py", {"tests/load/test_statistics.py": True, "tests/load/test_plan.py": False}),
        ("tests/load/conftest.py", {"tests/load/test_plan.py": True, "tests/router/test_budget.py": False}),
        ("gateway/http/static/js/history.js", {"tests/e2e/test_page.py": True, "tests/router/test_budget.py": False}),
        ("docs/testing.md", {"tests/test_changed.py": True, "tests/router/test_budget.py": False}),
        ("a/file/that/is/gone.py", {"tests/router/test_budget.py": False}),
    ],
)
def test_a_change_asks_for_the_tests_of_what_imports_it(
    changed: str, expected: dict[str, bool], graph: grimp.ImportGraph
) -> None:
    texts = {path: (ROOT / path).read_text("utf-8") for path in expected}
    found = affected([changed], texts, graph)
    assert {path: path in found for path in expected} == expected
