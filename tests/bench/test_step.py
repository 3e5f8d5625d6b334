"""The measurement of a step's Python runs; nothing here looks at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.step import main


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_every_number_of_rows_has_a_line_of_figures(
    temperature: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(
        ["--model", "mini", "--rows", "1", "3", "--steps", "5", "--temperature", temperature, "--cache", str(tmp_path)]
    )
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["rows", "step", "Python"]
    assert [line.split()[0] for line in lines] == ["1", "3"]
    assert all(float(figure) > 0 for line in lines for figure in line.split()[1:])
