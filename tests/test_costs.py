"""What tests may cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.costs import Budget, Costs, Meter, by_file

pytest_plugins = ("pytester",)
FILE = Path(__file__).with_name("budget.toml")
WORK = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass\nprint()\ninput()"]
BUDGET = Budget({"tests/e2e/test_dear.py": 40.0}, {"tests/e2e": 60.0})


def told(tests: dict[str, float]) -> list[str]:
    return [sentence.split()[0] for sentence in BUDGET.exceeded(tests, tolerance=1.0)]


def test_what_is_not_listed_may_cost_little() -> None:
    assert told({"tests/a.py::one": 4.9, "tests/a.py::two": 4.9}) == []
    assert told({"tests/a.py::one": 5.1}) == ["tests/a.py::one"]
    assert told({f"tests/a.py::{number}": 4.0 for number in range(4)}) == ["tests/a.py"]


def test_what_is_listed_may_cost_what_stands_there() -> None:
    assert told({"tests/e2e/test_dear.py::one": 39.0}) == []
    assert (
        told({"tests/e2e/test_dear.py::one": 41.0}) == ["tests/e2e/test_dear.py", "tests/e2e/test_dear.py::one"][::-1]
    )


def test_a_folder_has_its_share() -> None:
    tests = {f"tests/e2e/test_{number}.py::one": 4.0 for number in range(16)}
    assert told(tests) == ["tests/e2e/"]
    assert by_file(tests)["tests/e2e/test_0.py"] == 4.0


def test_the_file_lists_files_that_exist() -> None:
    root = FILE.parents[1]
    budget = Budget.read(FILE)
    assert [name for name in (*budget.listed, *budget.folders) if not (root / name).exists()] == []


def test_processes_of_a_test_count() -> None:
    """Those that run and those that have ended."""
    meter = Meter()
    before = meter.seconds()
    with subprocess.Popen(WORK, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert meter.seconds() - before >= 0.25
        process.communicate(b"\n")
    assert meter.seconds() - before >= 0.25


def test_a_process_is_found_as_soon_as_others_are_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("tests.costs.monotonic", lambda: now)
    meter = Meter()
    meter.seconds()
    with subprocess.Popen(WORK, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = meter.seconds()
        now = Meter.WALK_SECONDS
        assert meter.seconds() - before >= 0.25
        process.communicate(b"\n")


@pytest.mark.parametrize(("allowed", "status"), [(0.01, pytest.ExitCode.TESTS_FAILED), (60.0, pytest.ExitCode.OK)])
def test_a_run_that_costs_too_much_fails(allowed: float, status: pytest.ExitCode, pytester: pytest.Pytester) -> None:
    file = pytester.makepyfile("def test_it():\n    import time\n    while time.process_time() < LATER: pass")
    file.write_text(f"import time\nLATER = time.process_time() + 0.2\n{file.read_text()}")
    costs = Costs(Budget({file.name: allowed}, {}))
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider", plugins=[costs])
    assert done.ret == status
    assert any("are allowed" in line for line in done.outlines) is (status != pytest.ExitCode.OK)
