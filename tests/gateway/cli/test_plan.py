"""`roundhouse plan` as a user runs it, also with an engine that it has timed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.root import main

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "deploy" / "demo" / "model"
GPU = ("--model", "llama-3.1-8b", "--hardware", "h100", "--traffic", "rate=20,input=800,output=100")


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["plan", *words], env={"COLUMNS": "200"})


def test_a_plan_says_what_binds_and_why() -> None:
    done = run(*GPU, "--slo", "ttft=1,itl=0.05", "--bounds-only")
    assert done.exit_code == 0, done.output
    assert "llama-3.1-8b on 1 x h100" in done.output
    assert "2 x 32 layers x 8 KV heads x 128 in bf16" in done.output
    assert "What binds one:" in done.output
    assert "the same device with other types" in done.output


def test_large_and_small_numbers_are_written_out() -> None:
    done = run(*GPU[:4], "--traffic", "rate=500000,input=800,output=100", "--price", "2000000", "--bounds-only")
    assert done.exit_code == 0, done.output
    assert "500,000 requests/s" in done.output and "replicas at 2,000,000" in done.output
    assert re.search(r"\d,\d{3} busy: /0.85", done.output)
    assert not re.search(r"\de[+-]\d", done.output)


def test_json_has_every_figure_and_the_simulation() -> None:
    done = run(*GPU, "--json", "--price", "4", "--spare", "0", "--max-running", "32", "--step-tokens", "512")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    figures = {figure["name"]: figure["value"] for figure in found["plan"]["figures"]}
    assert figures["per_hour"] == 4 * found["plan"]["replicas"]
    assert found["plan"]["simulated"]["within"] >= 0.95
    assert figures["simulated_ttft_p95"] == found["plan"]["simulated"]["ttft"]["p95"] * 1000
    assert {"fp8", "int4"} <= {each["hardware"].split("weights ")[1].split(",")[0] for each in found["alternatives"]}


def test_a_trace_is_planned_for(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = "".join(f"2023-11-16 18:17:{at:02}.0000000,500,40\n" for at in range(60))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    done = run("--model", "llama-3.1-8b", "--hardware", "l4", "--weights", "int8", "--trace", str(trace), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["plan"]["simulated"]["requests"] == 48


def test_the_shape_of_a_checkpoint_is_read() -> None:
    done = run("--model", str(DEMO), "--hardware", "l4", "--traffic", "rate=1,input=20,output=20", "--bounds-only")
    assert done.exit_code == 0, done.output
    assert "model on 1 x l4" in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--hardware", "h100", "--traffic", "rate=1,input=1,output=1"), "name --model"),
        (("--model", "llama-3.1-8b", "--traffic", "rate=1,input=1,output=1"), "name --hardware"),
        (("--model", "no-such", "--hardware", "h100", "--traffic", "rate=1,input=1,output=1"), "no-such is no check"),
        (("--model", "llama-3.1-8b", "--hardware", "abacus", "--traffic", "rate=1,input=1,output=1"), "no known dev"),
        (("--model", "llama-3.1-8b", "--hardware", "h100"), "give --traffic or --trace"),
        (("--model", "llama-3.1-8b", "--hardware", "h100", "--traffic", "rate=1"), "input"),
        (("--model", "llama-3.1-70b", "--hardware", "h100", "--traffic", "rate=1,input=1,output=1"), "needs 14"),
    ],
)
def test_what_cannot_be_planned_is_an_error_message(words: tuple[str, ...], message: str) -> None:
    done = run(*words)
    assert done.exit_code == 1
    assert message in done.output
    assert "Traceback" not in done.output


def test_known_devices_and_shapes_are_listed_with_their_origin() -> None:
    done = run("--list")
    assert done.exit_code == 0
    assert "h100" in done.output and "data sheet" in done.output and "llama-3.1-70b (70.6 B)" in done.output


def test_an_engine_of_this_machine_is_timed_and_planned_with(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "probe.json"
    options = ("--seconds", "1", "--threads", "1", "--step-tokens", "64", "--max-running", "4", "--kv-tokens", "4096")
    done = run("probe", "--model", str(DEMO), "--output", str(file), *options)
    assert done.exit_code == 0, capfd.readouterr().err
    assert "median distance from the timed steps" in done.output
    probed = json.loads(file.read_bytes())
    assert probed["limits"] == {"kv_tokens": 4096, "max_running": 4, "step_tokens": 64}
    made = run(
        "--hardware", str(file), "--traffic", "rate=0.001,input=50,output=10", "--slo", "ttft=600,itl=100", "--json"
    )
    assert made.exit_code == 0, made.output
    assert json.loads(made.output)["plan"]["replicas"] == 2


@pytest.mark.parametrize("simulated", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_the_engines_of_the_page_about_scale_are_those_that_its_commands_print(simulated: bool) -> None:
    page = (ROOT / "docs" / "scale.md").read_text("utf-8")
    commands = re.findall(r"^roundhouse plan (.*)$", page, flags=re.MULTILINE)
    row = re.compile(r"^\| a [mb]illion \|.*\| ([\d,]+) \| ([\d,]+) \| ([\d,.]+) \| ([\d.]+) \|$", flags=re.MULTILINE)
    rows = row.findall(page)
    assert len(commands) == len(rows) >= 4
    for command, (by_bounds, replicas, per_hour, per_million) in zip(commands, rows, strict=True):
        made = json.loads(run(*command.split(), "--simulate" if simulated else "--bounds-only", "--json").output)[
            "plan"
        ]
        assert f"{made['replicas']:,}" == (replicas if simulated else by_bounds)
        figures = {figure["name"]: figure["value"] for figure in made["figures"]}
        if simulated or replicas == by_bounds:
            assert f"{figures['per_hour']:,.2f}" == per_hour
            assert f"{figures['per_million']:.3f}" == per_million


def test_a_file_of_an_earlier_probe_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "cpu.json").write_text('{"model": "m", "cost": {}}')
    done = run("--hardware", str(tmp_path / "cpu.json"), "--traffic", "rate=1,input=10,output=5")
    assert done.exit_code == 1
    assert re.search(r"cpu\.json is not what .* writes \(.+\); run it again", done.output)
