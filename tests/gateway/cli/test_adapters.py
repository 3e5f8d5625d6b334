"""`roundhouse adapter`, run as an operator runs it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from engine.adapters.registry import AdapterRegistry
from gateway.cli.root import main
from tests.engine.adapters.test_gguf import converted
from tests.engine.adapters.zoo import write_adapter
from tests.engine.checkpoints import write_checkpoint

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two base models of different sizes, two adapters of the first and one of the second."""
    place = tmp_path_factory.mktemp("place")
    write_checkpoint(place / "tiny")
    write_checkpoint(place / "wide", hidden_size=96)
    for seed in (1, 2):
        write_adapter(place / f"pirate-{seed}", place / "tiny", "dora", seed=seed)
    write_adapter(place / "formal", place / "wide", "patterns")
    return place


@pytest.fixture
def registry(tmp_path: Path) -> AdapterRegistry:
    return AdapterRegistry(str(tmp_path / "registry"))


@pytest.fixture
def run(place: Path, tmp_path: Path, registry: AdapterRegistry) -> Run:
    """`run("add", ...)`: exits with 0 unless `fails=True`."""
    config = tmp_path / "roundhouse.toml"
    config.write_text(f"""
        [adapters]
        registry = "{registry.url}"
        [[tenants]]
        name = "acme"
        [[pools]]
        tier = "small"
        name = "tiny"
        model = "{place}/tiny"
        [[pools]]
        tier = "large"
        name = "wide"
        model = "{place}/wide"
    """)

    def run(command: str, *arguments: object, fails: bool = False) -> Result:
        words = ["adapter", command, "--config", str(config), *map(str, arguments)]
        result = CliRunner().invoke(main, words, env={"COLUMNS": "200"})
        assert (result.exit_code != 0) == fails, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return run


def test_help_shows_the_first_steps() -> None:
    help = CliRunner().invoke(main, ["adapter", "--help"]).output
    for words in ("adapter check runs/pirate", "adapter add pirate", "adapter swap pirate", "prune"):
        assert words in help
    for command in ("add", "check", "list", "show", "swap", "pin", "unpin", "remove", "prune"):
        assert CliRunner().invoke(main, ["adapter", command, "--help"]).exit_code == 0


def test_check_shows_what_is_in_an_adapter_and_stores_nothing(run: Run, place: Path, registry: AdapterRegistry) -> None:
    said = run("check", place / "formal").output
    assert "can be served on wide" in said
    assert "float32" in said
    lines = [line.split() for line in said.splitlines()]
    assert ["q_proj", "0-2", "4", "1.25"] in lines
    assert ["up_proj", "0", "32", "0.5"] in lines
    assert ["v_proj", "1-2", "1", "16"] in lines
    assert "DoRA" in run("check", place / "pirate-1").output
    assert registry.versions() == {}


def test_add_gives_a_name_to_an_adapter(run: Run, place: Path, registry: AdapterRegistry) -> None:
    """The base model is the one that the adapter was trained on."""
    said = run("add", "pirate", place / "pirate-1", "--tenant", "acme", "--description", "Arr.", "--pin").output
    assert '"model": "pirate"' in said
    pointer = registry.resolve("pirate")
    assert (pointer.model, pointer.tenants, pointer.pinned, pointer.description) == ("tiny", ("acme",), True, "Arr.")
    assert pointer.version[:12] in said


def test_a_base_that_was_not_fetched_is_named_with_the_remedy(tmp_path: Path) -> None:
    words = ["adapter", "check", str(tmp_path), "--model", "smollm2-135m"]
    result = CliRunner().invoke(main, words, env={"XDG_DATA_HOME": str(tmp_path), "ROUNDHOUSE_MODELS_SERVE": "small"})
    assert "smollm2-135m is not here yet; fetch it: roundhouse models pull smollm2-135m" in result.output


def test_an_adapter_in_gguf_is_registered_and_swapped(run: Run, place: Path, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "plain", place / "tiny", "rank 8")
    file = converted(tmp_path / "plain.gguf", place / "tiny", folder)
    assert f"{file} can be served on tiny" in run("check", file, "--model", "tiny").output
    run("add", "plain", folder, "--model", "tiny")
    assert "plain leads to" in run("swap", "plain", file).output
    assert "peft's folder" in run("check", folder / "adapter_config.json", "--model", "tiny", fails=True).output


def test_an_adapter_of_another_model_is_refused_with_the_tensor(
    run: Run, place: Path, registry: AdapterRegistry
) -> None:
    said = run("add", "formal", place / "formal", "--model", "tiny", fails=True).output
    assert "has shape" in said
    assert "another base model" in said
    assert registry.names() == {}


def test_the_base_model_must_be_said_where_it_is_not_clear(run: Run, place: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(place / "pirate-1", tmp_path / "copy"))
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "org/other"}))
    said = run("check", folder, fails=True).output
    assert "--model: tiny, wide" in said
    assert "'org/other'" in said
    run("check", folder, "--model", "tiny")
    assert "there are: tiny, wide" in run("check", folder, "--model", "huge", fails=True).output


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("tiny", [], "name of a model"),
        ("auto", [], "name of a model or tier"),
        ("a/b", [], "cannot be a name"),
        ("pirate", ["--tenant", "nobody"], "no tenant is named 'nobody' in the configuration; others"),
    ],
)
def test_what_cannot_be_registered_is_explained(
    run: Run, place: Path, registry: AdapterRegistry, name: str, options: list[str], says: str
) -> None:
    assert says in run("add", name, place / "pirate-1", *options, fails=True).output
    assert registry.names() == {}


def test_a_name_is_given_once(run: Run, place: Path) -> None:
    run("add", "pirate", place / "pirate-1")
    said = run("add", "pirate", place / "pirate-2", fails=True).output
    assert f"roundhouse adapter swap pirate {place}/pirate-2" in said


def test_swap_leads_there_and_back(run: Run, place: Path, registry: AdapterRegistry) -> None:
    run("add", "pirate", place / "pirate-1", "--pin")
    first = registry.resolve("pirate").version
    said = run("swap", "pirate", place / "pirate-2").output
    assert registry.resolve("pirate").version != first
    assert registry.resolve("pirate").pinned
    back = said.rpartition("back: roundhouse adapter ")[2].split()
    run(*back)
    assert registry.resolve("pirate").version == first
    assert "already" in run(*back).output
    absent = next(each for each in "abcd" if not any(version.startswith(each) for version in registry.versions()))
    assert f"no adapter version begins with '{absent}'" in run("swap", "pirate", absent, fails=True).output
    assert "no adapter is named 'formal'" in run("swap", "formal", place / "formal", fails=True).output


def test_a_version_for_another_model_cannot_be_swapped_in(run: Run, place: Path, registry: AdapterRegistry) -> None:
    run("add", "pirate", place / "pirate-1")
    run("add", "formal", place / "formal")
    version = registry.resolve("formal").version
    assert "checked against another tiny" in run("swap", "pirate", version[:16], fails=True).output


def test_list_and_show_are_for_people_and_programs(run: Run, place: Path, registry: AdapterRegistry) -> None:
    assert "no adapter has a name in" in run("list").output
    run("add", "pirate", place / "pirate-1", "--description", "Arr.")
    run("add", "formal", place / "formal")
    run("remove", "formal")
    said = run("list").output
    version = registry.resolve("pirate").version
    for word in ("pirate", "tiny", version[:12], "all", "Arr.", "versions without a name: 1"):
        assert word in said
    listed = json.loads(run("list", "--json").output)
    assert listed["pirate"]["version"] == version
    assert "pirate, on tiny" in run("show", "pirate").output
    assert json.loads(run("show", version[:10], "--json").output)["version"] == version
    assert "no adapter version" in run("show", "nosuch", fails=True).output


def test_pin_and_unpin(run: Run, place: Path, registry: AdapterRegistry) -> None:
    run("add", "pirate", place / "pirate-1")
    run("pin", "pirate")
    assert registry.resolve("pirate").pinned
    run("unpin", "pirate")
    assert not registry.resolve("pirate").pinned
    assert "no adapter is named 'formal'" in run("pin", "formal", fails=True).output


def test_prune_deletes_what_has_no_name(run: Run, place: Path, registry: AdapterRegistry) -> None:
    run("add", "pirate", place / "pirate-1")
    run("add", "formal", place / "formal")
    version = registry.resolve("formal").version
    run("remove", "formal")
    assert "deleted versions: 0" in run("prune").output
    said = run("prune", "--older-than", "0s").output
    assert f"deleted {version[:12]}" in said
    assert list(registry.versions()) == [registry.resolve("pirate").version]
    assert "is no age" in run("prune", "--older-than", "soon", fails=True).output


def test_a_registry_that_cannot_be_used_is_explained(run: Run, place: Path, registry: AdapterRegistry) -> None:
    Path(registry.url).write_text("a file")
    assert "registry cannot be read: Not a directory" in run("add", "pirate", place / "pirate-1", fails=True).output
