"""docs/runbooks/: each alert has a page, whose commands, metrics and links exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gateway.cli.root import main
from gateway.scaling.metrics import ScalingMetrics
from gateway.telemetry.metrics.process import Metrics
from tests.deploy.test_monitoring import rules

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
PAGES = sorted(RUNBOOKS.glob("*.md"))
PARTS = ["What it means", "How to see it", "What to do", "When it is over"]
LINK = '{{ or $externalLabels.runbooks "docs/runbooks/" }}'
ALERTING = [rule for rule in rules() if "alert" in rule]
COMMAND = re.compile(r"^ *(roundhouse [^|]*)|`(roundhouse [^`]+)`", re.MULTILINE)


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each `roundhouse` command of a page."""
    for block, inline in COMMAND.findall(page.read_text("utf-8")):
        yield shlex.split(inline.replace("\n", " ") or block.splitlines()[0], comments=True)[1:]


def unknown(words: list[str]) -> Iterator[str]:
    """Words of a command that it does not have."""
    command: click.Command = main
    left = iter(words)
    for word in left:
        if word.startswith("--"):
            options = [each for each in command.params if word in (*each.opts, *each.secondary_opts)]
            if not options:
                yield word
            elif isinstance(options[0], click.Option) and not options[0].is_flag:
                next(left, None)  # its value
        elif isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            if found is None:
                yield word
                return
            command = found


def test_each_alert_has_a_page_and_each_page_an_alert() -> None:
    assert {page.stem for page in PAGES} == {rule["alert"] for rule in ALERTING}


@pytest.mark.parametrize("rule", ALERTING, ids=lambda rule: rule["alert"])
def test_an_alert_leads_to_its_page(rule: dict[str, dict[str, str]]) -> None:
    assert rule["annotations"]["runbook_url"] == f"{LINK}{rule['alert']}.md"
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert {"summary", "description"} <= rule["annotations"].keys()


def test_the_page_about_alerts_lists_them() -> None:
    page = (ROOT / "docs" / "observability.md").read_text("utf-8")
    assert re.findall(r"\(runbooks/(\w+)\.md\)", page) == [rule["alert"] for rule in ALERTING]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs" / "disaster-recovery.md"], ids=lambda page: page.stem)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    assert [(words, list(unknown(words))) for words in commands(page) if list(unknown(words))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
class TestPages:
    def test_it_says_what_when_and_how(self, page: Path) -> None:
        text = page.read_text("utf-8")
        assert text.startswith(f"# {page.stem}\n")
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == PARTS

    def test_its_metrics_exist(self, page: Path) -> None:
        text = page.read_text("utf-8")
        named = set(re.findall(r"\broundhouse_[a-z_]*[a-z]\b(?![_(])", text))
        registries = (Metrics().registry, ScalingMetrics().registry)
        declared = [each.name for registry in registries for each in registry.declared]
        assert {name for name in named if not any(each.startswith(name) for each in declared)} == set()
        recorded = set(re.findall(r"\broundhouse:[\w:]+\w", text))
        assert recorded <= {rule.get("record") for rule in rules()}

    def test_its_links_lead_somewhere(self, page: Path) -> None:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
            file, _, anchor = target.partition("#")
            linked = (page.parent / file).resolve()
            assert linked.exists(), target
            headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert not anchor or anchor in anchors, target
