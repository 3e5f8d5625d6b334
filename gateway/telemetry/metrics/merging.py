"""One page of metrics from those of several processes, told apart by a label. Pure."""

from __future__ import annotations

from collections.abc import Mapping

LABEL = "process"
_EOF = "# EOF"


def merged(pages: Mapping[int, bytes]) -> bytes:
    """Merge pages of one format (Prometheus' text or OpenMetrics), given by the number of their process.

    Each sample gets the label `process`; those of a metric stay together, as both formats demand.
    """
    families: dict[str, list[str]] = {}
    end: list[str] = []
    for number, page in pages.items():
        heads: list[str] = []
        for line in page.decode().split("\n")[:-1]:  # labels may hold other separators of lines
            if line == _EOF:
                end = [_EOF]
            elif line.startswith("#"):
                # A metric begins with its HELP; TYPE, and UNIT in OpenMetrics, follow.
                heads = [line] if line.startswith("# HELP ") else [*heads, line]
                family = families.setdefault(heads[0], [])
                if line not in family[: len(heads)]:
                    family.insert(len(heads) - 1, line)
            else:
                families[heads[0]].append(_labelled(line, number))
    lines = [*(line for family in families.values() for line in family), *end]
    return "".join(f"{line}\n" for line in lines).encode()


def _labelled(sample: str, number: int) -> str:
    """Add the label to a sample: `name{a="b"} 1` or `name 1`."""
    name, space, rest = sample.partition(" ")
    if "{" in name:
        name, _, labels = sample.partition("{")
        return f'{name}{{{LABEL}="{number}",{labels}'
    return f'{name}{{{LABEL}="{number}"}}{space}{rest}'
