"""Rules that cannot work are refused with the file, the field and the remedy; the command line makes lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli.root import main
from gateway.config.safety import read_phrases
from gateway.config.settings import SettingsError, load
from gateway.recognisers.blocked import Blocked, line, read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[safety.output]\nemial = "redact"', "no rule 'emial'; use one of private_key"),
        ('[safety.output]\nemail = "hide"', "email|Invalid enum value 'hide'"),
        ('[safety.input]\nblocked = "block"', "needs safety.blocked"),
        ('[safety]\nblocked = "missing"', "safety.blocked: missing: .*No such file"),
        ('[[safety.patterns]]\nname = "x"\npattern = "a+"', r"safety.patterns: x: .*\{0,20\}"),
        ('[[safety.patterns]]\nname = "email"\npattern = "a"', "two rules 'email'"),
        ('[safety.tenants.acme.input]\nnope = "flag"', "safety.tenants.acme: there is no rule 'nope'"),
        ("[safety]\nreplacement = '\"'", "replacement"),
        ("[safety]\nhold_seconds = 0", "hold_seconds"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "roundhouse.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=message):
        load(file, {})


def test_rules_come_from_the_environment_too() -> None:
    settings = load(environ={"ROUNDHOUSE_SAFETY_OUTPUT": "email=redact, card=block"})
    assert settings.safety.output == {"email": "redact", "card": "block"}


def test_a_line_that_is_none_of_a_list_is_named(tmp_path: Path) -> None:
    file = tmp_path / "list"
    file.write_text("# a list\n\nsome phrase in clear\n")
    config = tmp_path / "roundhouse.toml"
    config.write_text(f'[safety]\nblocked = "{file}"')
    with pytest.raises(SettingsError, match="line 3"):
        load(config, {})


def test_the_command_makes_a_list_that_discloses_nothing_and_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_SECRET", "ab" * 32)
    made = CliRunner().invoke(main, ["safety", "digest"], input="Project Nightingale\n\nblue door\n")
    assert made.exit_code == 0, made.output
    assert "night" not in made.output.lower()
    file = tmp_path / "list"
    file.write_text(made.output)
    config = tmp_path / "roundhouse.toml"
    config.write_text(f'[safety]\nblocked = "{file}"\ninput = {{ blocked = "block" }}')
    phrases = read_phrases(load(config, {}).safety)
    from gateway.access.identity.secret import derive
    from gateway.safety.guard import PHRASES

    blocked = Blocked(phrases, derive(bytes.fromhex("ab" * 32), PHRASES))
    match = blocked.find("the project  NIGHTINGALE!", 0)
    assert match is not None
    assert (match.start, match.end) == (4, 24)
    assert Blocked(phrases, b"another key").find("project nightingale", 0) is None


@pytest.mark.parametrize("phrase", ["", "...", "one two three four five six seven eight nine", "x" * 65])
def test_a_phrase_has_one_to_eight_words(phrase: str) -> None:
    with pytest.raises(ValueError, match="1 to 8 words"):
        line(phrase, b"key")


def test_a_phrase_may_begin_another() -> None:
    """The longest counts."""
    blocked = Blocked(read(line(phrase, b"k") for phrase in ("red", "red door opens")), b"k")
    found = blocked.find("a red door opens", 0)
    assert found is not None
    assert found.end == 16
    other = blocked.find("a red door closes", 0)
    assert other is not None
    assert other.end == 5


def test_presidio_that_is_not_installed_is_a_clear_error(tmp_path: Path) -> None:
    import importlib.util

    from gateway.config.safety import SafetySettings
    from gateway.safety.presidio import Presidio

    if importlib.util.find_spec("presidio_analyzer"):
        pytest.skip("it is installed")
    with pytest.raises(SettingsError, match="pip install presidio-analyzer"):
        Presidio(SafetySettings(presidio=["PERSON"]), str)


def test_keys_in_redis_are_documented() -> None:
    from gateway.safety.violations import KEY

    assert f"`{KEY.format(tenant='<tenant>')}`" in Path("docs/redis-keys.md").read_text("utf-8")


def test_an_installed_package_may_bring_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.safety.hook import recognisers
    from gateway.safety.stream import FilterRule, filter_text

    package = tmp_path / "stars-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: stars\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[roundhouse.recognisers]\nstar = stars:Star\n")
    (tmp_path / "stars.py").write_text(
        "from gateway.recognisers.recogniser import Match\n"
        "class Star:\n"
        "    reach = 1\n"
        "    def find(self, text, start):\n"
        "        at = text.find('*', start)\n"
        "        return Match(at, at + 1) if at >= 0 else None\n"
        "    def pending(self, text, start):\n"
        "        return len(text)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config = tmp_path / "roundhouse.toml"
    config.write_text('[safety.output]\nstar = "redact"')
    found = recognisers(load(config, {}).safety, {}, b"")
    assert filter_text("a*b", [FilterRule("star", found["star"], "-")], lambda rule, text: None) == ("a-b", False)


def test_the_documented_examples_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand in docs/safety.md; the file of digests is made as it says there."""
    blocks = re.findall(r"^```toml\n(.*?)^```", Path("docs/safety.md").read_text("utf-8"), flags=re.M | re.S)
    assert len(blocks) == 3
    (tmp_path / "blocked.digests").write_text(line("project nightingale", b"k"))
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        (tmp_path / "roundhouse.toml").write_text(block)
        settings = load(environ={}).safety
        assert settings.input or settings.output
