"""The measurement of a step's Python runs; nothing here looks at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.step import main


@pytest.mark.parametrize(("temperature", "idle"), [("0", "sample"), ("0.8", "likeliest")])
def test_every_number_of_rows_has_a_line_of_figures(
    temperature: str, idle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Greedy rows have no need of the sampler, and all others only of it."""
    main(
        ["--model", "mini", "--rows", "1", "3", "--steps", "5", "--temperature", temperature, "--cache", str(tmp_path)]
    )
    header, *lines = capsys.readouterr().out.splitlines()
    names = header.split()[:8]
    assert names == ["rows", "step", "Python", "schedule", "write", "likeliest", "sample", "commit"]
    for rows, line in zip(("1", "3"), lines, strict=True):
        figures = dict(zip(names, line.split(), strict=True))
        assert figures.pop("rows") == rows
        assert {name for name, figure in figures.items() if float(figure) == 0} == {idle}
