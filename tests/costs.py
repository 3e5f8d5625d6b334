"""What tests cost: processor seconds by test and file, the dearest files in the summary, and a budget that is checked.

Processor seconds of a test's process and of all processes that it started hardly depend on what else the machine does,
unlike the time that passes. A shared fixture is charged to the first test that asks for it.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import pytest

TEST_SECONDS, FILE_SECONDS = 5.0, 15.0
"""What a test and a file may cost that tests/budget.toml does not list."""
TOLERANCE = 2.0
"""What costs more than its limit times this fails the run: processors differ."""
SHOWN = 10
_TICKS = os.sysconf("SC_CLK_TCK")


class Budget(NamedTuple):
    """What may cost how many processor seconds.

    Attributes:
        listed: seconds of files that may cost more than others; each has a reason in tests/budget.toml.
        folders: seconds of all tests below a folder.
    """

    listed: Mapping[str, float]
    folders: Mapping[str, float]

    @classmethod
    def read(cls, file: Path) -> Budget:
        found = tomllib.loads(file.read_text("utf-8"))
        return cls({name: each["seconds"] for name, each in found["listed"].items()}, found["folders"])

    def limit(self, name: str) -> float:
        """What a test, or a file, may cost; a test of a listed file as much as that."""
        return self.listed.get(name.split("::")[0], TEST_SECONDS if "::" in name else FILE_SECONDS)

    def exceeded(self, tests: Mapping[str, float], tolerance: float = TOLERANCE) -> Iterator[str]:
        """A sentence for each test, file and folder that costs too much.

        Args:
            tests: seconds by the test's id.
        """
        costs = dict(tests) | by_file(tests)
        for name, seconds in sorted(costs.items(), key=lambda each: -each[1]):
            if seconds > self.limit(name) * tolerance:
                yield f"{name} took {seconds:.1f} processor seconds, {self.limit(name):.0f} are allowed"
        for folder, allowed in self.folders.items():
            seconds = sum(cost for name, cost in tests.items() if name.startswith(f"{folder}/"))
            if seconds > allowed * tolerance:
                yield f"{folder}/ took {seconds:.0f} processor seconds, its share is {allowed:.0f}"


def by_file(tests: Mapping[str, float]) -> dict[str, float]:
    """Sum up the seconds of each file's tests."""
    files: dict[str, float] = defaultdict(float)
    for name, seconds in tests.items():
        files[name.split("::")[0]] += seconds
    return dict(files)


class Meter:
    """Time that this process, its descendants and those that have ended took of all processors.

    To find descendants takes milliseconds where there is a browser with its hundred threads, which twelve thousand
    tests cannot afford each: it is done a few times a second at most. What a new process takes before is told then.
    """

    WALK_SECONDS = 0.3

    def __init__(self) -> None:
        self._known: list[int] = []
        self._walk_at = 0.0

    def seconds(self) -> float:
        if monotonic() >= self._walk_at:
            self._known = _descendants()
            self._walk_at = monotonic() + self.WALK_SECONDS
        own = os.times()
        total = own.user + own.system + own.children_user + own.children_system
        for pid in self._known:
            with contextlib.suppress(OSError):
                # The command's name, in brackets, may hold anything.
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:15])) / _TICKS
        return total


def _descendants() -> list[int]:
    found = [os.getpid()]
    for pid in found:
        found += _children(pid)
    return found[1:]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except OSError:
        pass
    return found


class Costs:
    """Plugin of all processes: those that run tests measure, the first one sums up and checks."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.tests: dict[str, float] = {}
        self._meter = Meter()
        self._begun = 0.0

    def pytest_collection_finish(self) -> None:
        """The first test begins here, each other one where the one before it ended."""
        self._begun = self._meter.seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            now = self._meter.seconds()
            # What a browser's processes took is lost when it ends: not all of them are waited for.
            report.user_properties.append(("processor_seconds", max(0.0, now - self._begun)))
            self._begun = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds = sum(float(str(value)) for name, value in report.user_properties if name == "processor_seconds")
        self.tests[report.nodeid] = self.tests.get(report.nodeid, 0.0) + seconds

    def exceeded(self, config: pytest.Config) -> list[str]:
        """What costs too much; nothing where coverage is measured or a debugger may be at work."""
        if config.getoption("cov_source", None) or config.getoption("usepdb"):
            return []
        return list(self.budget.exceeded(self.tests))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        first = not hasattr(session.config, "workerinput")
        if first and session.exitstatus == pytest.ExitCode.OK and self.exceeded(session.config):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        files = sorted(by_file(self.tests).items(), key=lambda each: -each[1])
        terminalreporter.section(f"dearest files, of {sum(self.tests.values()):.0f} processor seconds")
        for name, seconds in files[:SHOWN]:
            terminalreporter.line(f"{seconds:7.1f} {name}")
        if exceeded := self.exceeded(config):
            terminalreporter.section("too dear: make it cheaper, or say in tests/budget.toml why it is not", red=True)
            for sentence in exceeded:
                terminalreporter.line(sentence)
