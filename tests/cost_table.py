"""What a whole run of the tests spends its time on, for the table of docs/testing.md: `pytest --cost-table FILE`.

Each process counts its fixtures' processor seconds, the processes that it starts, and the seconds in `time.sleep`; the
first process sums up.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path

import pytest

from tests.costs import Costs, Meter

_MODULE = re.compile(r"-m\s+([\w.]+)(?:\s+(?!-)(\w+))?")


class CostTable:
    """Plugin of all processes.

    Args:
        costs: what each test took.
        file: where the first process writes everything as JSON.
    """

    def __init__(self, costs: Costs, file: Path) -> None:
        self._costs, self._file = costs, file
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._within = 0.0
        self._meter = Meter()
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "subprocess.Popen":
            command = arguments[1]
            words = command if isinstance(command, list | tuple) else [command]
            self._counts["processes"][_program([str(word) for word in words])] += 1
        elif event == "time.sleep":
            self._counts["sleeps"]["count"] += 1
            self._counts["sleeps"]["milliseconds"] += int(1000 * float(str(arguments[0])))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        before, others, self._within = self._meter.seconds(), self._within, 0.0
        try:
            return (yield)
        finally:
            took = self._meter.seconds() - before
            milliseconds = int(1000 * (took - self._within))
            self._counts["fixtures"][f"{fixturedef.baseid}::{fixturedef.argname}"] += milliseconds
            self._counts["fixture calls"][f"{fixturedef.baseid}::{fixturedef.argname}"] += 1
            self._within = others + took

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self._add(getattr(node, "workeroutput", {}).get("cost_table", {}))

    def _add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        for kind, found in counts.items():
            self._counts[kind].update(found)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            session.config.workeroutput["cost_table"] = {  # type: ignore[attr-defined]
                kind: dict(found) for kind, found in self._counts.items()
            }

    def pytest_terminal_summary(self) -> None:
        tests = {name: round(seconds, 3) for name, seconds in self._costs.tests.items()}
        self._file.write_text(json.dumps({"tests": tests, **self._counts}, indent=1))


def _program(words: Iterable[str]) -> str:
    """What a process runs: a module of ours and its command, or a program."""
    line = " ".join(words)
    if found := _MODULE.search(line):
        return " ".join(filter(None, found.groups()))
    return Path(line.split(" ")[0]).name
