"""The command line, run as a user runs it."""

from __future__ import annotations

import csv
import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import trustme
from click.testing import CliRunner, Result

from gateway.cli.root import main
from load.command import KEYS_VARIABLE, command
from load.report.document import LoadReport
from tests.load.answering import KEYS, AnsweringServer, answering_server

ROOT = Path(__file__).parents[2]
SHORT = ("--rate", "50", "--requests", "10", "--duration", "5", "--seed", "1")


def run(*arguments: object, keys: str = ",".join(KEYS)) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)), env={KEYS_VARIABLE: keys})


def test_it_is_a_command_of_roundhouse_whose_help_teaches() -> None:
    result = CliRunner().invoke(main, ["load", "--help"])
    assert result.exit_code == 0
    for words in ("--search --slo ttft=1,tpot=50ms", "Exit status: 0", KEYS_VARIABLE, "--trace"):
        assert words in result.output


def examples() -> list[str]:
    """The commands in the help and in the documentation."""
    text = (command.help or "") + (ROOT / "docs" / "load-testing.md").read_text("utf-8")
    return re.findall(r"roundhouse load (http(?:.*\\\n)*.*)", text)


@pytest.mark.parametrize("example", examples())
def test_examples_are_commands(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("conversation_trace.jsonl", "keys.txt"):
        (tmp_path / name).touch()
    command.make_context("load", shlex.split(example.replace("\\\n", " ")))


def test_objectives_that_are_met_end_with_0_and_a_report(
    answering: tuple[AnsweringServer, str], tmp_path: Path
) -> None:
    server, url = answering
    result = run(url, *SHORT, "--slo", "ttft=30", "--output", tmp_path / "report", "--seed", "3")
    assert result.exit_code == 0, result.output
    assert "objectives met: 99 % of turns with ttft <= 30 s" in result.output
    report = msgspec.json.decode((tmp_path / "report" / "report.json").read_bytes(), type=LoadReport)
    assert report.options["seed"] == 3 and report.options["models"] == [["first-model", 1.0]]
    assert {each["model"] for each in server.bodies} == {"first-model"}
    assert len(list(csv.reader((tmp_path / "report" / "turns.csv").read_text().splitlines()))) == 11


def test_objectives_that_are_missed_end_with_1(answering: tuple[AnsweringServer, str]) -> None:
    result = run(answering[1], *SHORT, "--slo", "ttft=0.0001ms")
    assert result.exit_code == 1
    assert "objectives missed" in result.output


def test_a_server_that_is_not_there_ends_with_3() -> None:
    result = run("http://127.0.0.1:1", *SHORT)
    assert result.exit_code == 3
    assert "no server answers at http://127.0.0.1:1/v1" in result.output


def test_keys_are_never_shown(answering: tuple[AnsweringServer, str], tmp_path: Path) -> None:
    server, url = answering
    keys = tmp_path / "keys"
    keys.write_text(f"{KEYS[0]}\n\n{KEYS[1]}\n")
    options = ("--model", "refused", "--model", "good", "--keys", keys, "--header", "X-Secret: hush-hush")
    result = run(url, *SHORT, *options, "--json", "--output", tmp_path / "report", keys="")
    files = [each.read_text("utf-8") for each in (tmp_path / "report").iterdir()]
    assert result.exit_code == 1 and len(files) == 3
    for text in (result.output, *files):
        assert "may not use it" in text
        assert not [secret for secret in (*KEYS, "hush-hush") if secret in text]
    assert set(server.keys) == set(KEYS)


def test_json_is_the_report(answering: tuple[AnsweringServer, str]) -> None:
    result = run(answering[1], *SHORT, "--json", "--protocol", "responses=2", "--protocol", "chat")
    report = msgspec.json.decode(result.stdout, type=LoadReport)
    assert report.run.summary.turns == 10
    assert set(report.groups["protocol"]) == {"chat", "responses"}
    assert set(report.groups["tenant"]) == {"tenant-1", "tenant-2"}


def test_a_server_behind_tls_needs_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    with answering_server(str(tmp_path / "server.pem")) as (server, url):
        arguments = [sys.executable, "-m", "load", url, *SHORT, "--protocol", "chat", "--protocol", "responses"]
        environment = {**os.environ, KEYS_VARIABLE: KEYS[0]}
        refused = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 3 and "certificate" in refused.stderr
        trusting = {**environment, "SSL_CERT_FILE": str(tmp_path / "authority.pem")}
        trusted = subprocess.run(arguments, env=trusting, capture_output=True, text=True, timeout=60)
        assert trusted.returncode == 0, trusted.stdout + trusted.stderr
        assert len(server.bodies) == 10


def test_a_search_tells_the_rate(answering: tuple[AnsweringServer, str]) -> None:
    result = run(answering[1], *SHORT, "--search", "--max-rate", "100", "--slo", "e2e=30", "--precision", "0.5")
    assert result.exit_code == 0, result.output
    assert "highest rate that keeps the objectives: 100 turns per second" in result.output


def test_a_trace_and_prompts_are_read(answering: tuple[AnsweringServer, str], tmp_path: Path) -> None:
    server, url = answering
    trace, prompts = tmp_path / "trace.jsonl", tmp_path / "prompts"
    trace.write_text('{"timestamp": 0, "input_length": 9, "output_length": 17}\n' * 4)
    prompts.write_text("Why?\n\n  How?\n")
    result = run(url, "--trace", trace, "--prompts", prompts, "--body", '{"max_tokens": null, "user": "u"}')
    assert result.exit_code == 0, result.output
    assert {each["messages"][0]["content"] for each in server.bodies} <= {"Why?", "How?"}
    assert [("max_tokens" in each, each["user"]) for each in server.bodies] == [(False, "u")] * 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--slo", "speed=1"], "is no bound"),
        (["--input-tokens", "9-3"], "write a number such as 64"),
        (["--protocol", "grpc"], "choose from chat, responses, responses-http"),
        (["--model", "a=0"], "must be above 0"),
        (["--body", "[]"], "no JSON object"),
        (["--header", "nothing"], "write 'Name: value'"),
        (["--cancel", "2"], "0<=x<=1"),
        (["--rate", "0"], "x>0"),
        (["--trace", __file__], "line 1"),
    ],
)
def test_wrong_options_end_with_2_and_say_what_is_right(arguments: list[str], says: str) -> None:
    result = run("http://127.0.0.1:1", "--model", "m", *arguments)
    assert result.exit_code == 2
    assert says in re.sub(r"\s+", " ", result.output)


def test_an_address_that_is_none_is_a_wrong_option() -> None:
    assert run("ftp://server").exit_code == 2


def test_a_server_that_lists_no_models_needs_one_named(answering: tuple[AnsweringServer, str]) -> None:
    result = run(answering[1] + "/elsewhere", *SHORT)
    assert result.exit_code == 2 and "name one with --model" in result.output


def test_it_may_open_as_many_files_as_it_has_sockets(answering: tuple[AnsweringServer, str]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = max(map(int, os.listdir("/proc/self/fd"))) + 64  # what this process has open already stays possible
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        assert run(answering[1], *SHORT, "--sockets", str(few)).exit_code == 0
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few + 64
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
