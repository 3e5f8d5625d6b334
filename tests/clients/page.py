"""The table of docs/clients.md: a row for each client, with how many of its checks passed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.clients.client import Client, clients
from tests.clients.running import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
_BEGIN, _END = "<!-- begin: clients -->", "<!-- end: clients -->"
_HEAD = ["| client | version | checks passed | what is checked |", "|---|---|--:|---|"]


def row(name: str, client: Client, outcome: Outcome) -> str:
    """Return a client's row."""
    told = [f"`{check}` fails: {why}" for check, why in client.differs.items()]
    return f"{_left(name, client)} {outcome.passed} of {len(outcome.checks)} | {'. '.join([client.covers, *told])} |"


def _left(name: str, client: Client) -> str:
    """The cells that say what was run."""
    return f"| {name} | {', '.join(f'{package} {version}' for package, version in client.pins)} |"


def rows() -> list[str]:
    """Return the rows that the page has."""
    return PAGE.read_text("utf-8").split(_BEGIN)[1].split(_END)[0].strip().splitlines()[len(_HEAD) :]


def stale() -> list[str]:
    """Return the names of clients without a row for the version that clients.toml pins."""
    written = rows()
    return [
        name for name, client in clients().items() if not any(each.startswith(_left(name, client)) for each in written)
    ]


def write(outcomes: Mapping[str, Outcome]) -> None:
    """Write the table; a client that was not run keeps the row of its version, if there is one."""
    before, written = PAGE.read_text("utf-8"), rows()
    lines = [*_HEAD]
    for name, client in clients().items():
        outcome = outcomes.get(name)
        if outcome is not None and not outcome.skipped:
            lines.append(row(name, client, outcome))
        else:
            lines += [each for each in written if each.startswith(_left(name, client))]
    start, rest = before.split(_BEGIN)
    PAGE.write_text(f"{start}{_BEGIN}\n{chr(10).join(lines)}\n{_END}{rest.split(_END)[1]}", "utf-8")
