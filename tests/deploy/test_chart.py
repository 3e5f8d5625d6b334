"""The Helm chart: every example renders, is what Kubernetes takes, and says what the programs in it understand."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import click
import httpx2
import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from redis.asyncio import Redis

from engine.server.command import main as engine_command
from engine.server.host import EngineServer
from engine.server.options import EngineOptions
from gateway.cli.root import main
from gateway.cli.scale import scale
from gateway.config.settings import Settings
from gateway.http import health
from gateway.models.catalogue import catalogue
from gateway.models.store import ModelStore
from gateway.scaling.controller import Controller
from gateway.scaling.listener import bind, listening
from tests.deploy.kubernetes import (
    CHART,
    DEPLOY,
    EXAMPLES,
    NEWEST,
    OLDEST,
    Object,
    component,
    containers,
    environment,
    example,
    first_containers,
    of_kind,
    probes,
    render,
    validate,
)
from tests.engine.peers import GatedRunner, make_core

helm = pytest.importorskip("helm_python", reason="Helm's library is not here: pip install helm-python-sdk")

every_example = pytest.mark.parametrize("name", EXAMPLES)
DOCS = DEPLOY.parent / "docs"
METRICS = set(re.findall(r"^\| `(roundhouse_\w+)`", (DOCS / "metrics.md").read_text("utf-8"), flags=re.MULTILINE))


@every_example
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_one_that_kubernetes_takes(name: str, version: str) -> None:
    for each in example(name):
        validate(each, version)


def test_a_misspelt_field_is_found() -> None:
    for kind, field in (("Deployment", "replica"), ("ScaledObject", "minReplicas")):
        each = of_kind(example("production"), kind)[0]
        with pytest.raises(jsonschema.ValidationError):
            validate({**each, "spec": {**each["spec"], field: 1}}, NEWEST)


def test_the_chart_is_one_that_helm_finds_no_fault_with() -> None:
    report = helm.lint(CHART, yaml.safe_load(EXAMPLES["production"].read_text("utf-8")), strict=True)
    assert [each for each in report["messages"] if each["severity"] > 1] == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gatway": {}}, "gatway"),
        ({"pools": []}, "pools"),
        ({"pools": [{"tier": "tiny", "name": "x", "model": "/models/x"}]}, "tier"),
        ({"pools": [{"tier": "small", "name": "x"}]}, "model"),
        ({"configuration": '[[pools]]\ntier = "small"'}, "configuration"),
        ({"redis": {"url": "redis://user:secret@redis:6379"}}, "url"),
        ({"poolDefaults": {"options": {"listen": "ws://0.0.0.0:1"}}}, "listen"),
    ],
)
def test_values_that_mean_nothing_are_refused_by_name(values: Object, message: str) -> None:
    with pytest.raises(helm.HelmValuesError, match=message):
        render(values)


def test_without_a_redis_the_chart_says_how_to_name_one() -> None:
    with pytest.raises(helm.HelmRenderError, match=r"redis\.url or redis\.existingSecret"):
        render({})


@every_example
def test_the_configuration_is_one_that_gateways_accept(name: str, tmp_path: Path) -> None:
    [text] = [each["data"]["roundhouse.toml"] for each in of_kind(example(name), "ConfigMap") if "configuration" in
              component(each)]  # fmt: skip
    for pool in tomllib.loads(text)["pools"]:
        assert pool["model"].startswith("/")
        text = text.replace(json.dumps(pool["model"]), json.dumps(str(DEPLOY / "demo" / "model")))
    file = tmp_path / "roundhouse.toml"
    file.write_text(text)
    for workload in of_kind(example(name), "Deployment"):
        if component(workload) in ("gateway", "controller"):
            given = {"ROUNDHOUSE_SECRET": "0" * 64, **environment(containers(workload)[-1])}
            result = CliRunner().invoke(main, ["config", "check", "--config", str(file)], env=given)
            assert "the configuration is valid" in result.output, result.output


@every_example
def test_the_options_of_engines_are_some_that_they_have(name: str, tmp_path: Path) -> None:
    """And what stands for a file is one that the pod has."""
    for workload in of_kind(example(name), "Deployment"):
        if not component(workload).startswith("engine"):
            continue
        [container] = containers(workload)
        assert container["command"] == ["python", "-m", "engine.server"]
        mounted = [each["mountPath"] for each in container["volumeMounts"]]
        words = []
        for word in container["args"]:
            option, _, value = word.partition("=")
            if value.startswith("/"):
                assert any(value.startswith(path) for path in (*mounted, "/usr/share/roundhouse")), word
                value = str(tmp_path) if option == "--model" else str(tmp_path / "file")
                (tmp_path / "file").touch()
            for variable in re.findall(r"\$\((\w+)\)", value):
                assert variable in {each["name"] for each in container["env"]}
                value = value.replace(f"$({variable})", "7")
            words.append(f"{option}={value}" if value or "=" in word else option)
        with click.Context(engine_command) as context:
            engine_command.parse_args(context, ["--register=redis://redis:6379", *words])
            EngineOptions(**context.params)


@pytest.mark.anyio
@every_example
async def test_engines_answer_the_probes_that_they_get(name: str) -> None:
    asked = {
        (workload["kind"], probe["httpGet"]["path"])
        for workload in of_kind(example(name), "Deployment")
        if component(workload).startswith("engine")
        for probe in probes(containers(workload)[0])
    }
    assert {path for _, path in asked} == {"/healthz", "/readyz"}
    server = EngineServer(make_core(GatedRunner(64)))
    async with server.listening("ws://127.0.0.1:0") as address, httpx2.AsyncClient() as client:
        for _, path in asked:
            assert (await client.get(address.replace("ws:", "http:") + path)).status_code == 200


@pytest.mark.anyio
async def test_controllers_answer_the_probes_that_they_get() -> None:
    """Without a Redis one is not ready, which is an answer too."""
    [workload] = [each for each in of_kind(example("production"), "Deployment") if component(each) == "controller"]
    assert containers(workload)[0]["command"] == ["roundhouse", "scale", "run"]
    assert scale.commands.keys() >= {"run"}
    with bind("127.0.0.1:0") as bound:
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        async with (
            Redis(port=1) as redis,
            listening(Controller(Settings, redis, b"0" * 32), bound),
            httpx2.AsyncClient(base_url=url) as client,
        ):
            for probe in probes(containers(workload)[0]):
                assert (await client.get(probe["httpGet"]["path"])).status_code in (200, 503)
            assert "roundhouse_scaling_leader" in (await client.get("/metrics")).text


@every_example
def test_gateways_have_the_pages_that_are_asked_for(name: str) -> None:
    served = {route.path for route in health.routes}
    for workload in of_kind(example(name), "Deployment"):
        if component(workload) == "gateway":
            assert {probe["httpGet"]["path"] for probe in probes(containers(workload)[-1])} <= served
    for monitor in of_kind(example(name), "ServiceMonitor"):
        assert {endpoint["path"] for endpoint in monitor["spec"]["endpoints"]} <= served


@every_example
def test_every_metric_that_is_asked_for_exists(name: str) -> None:
    for each in of_kind(example(name), "ScaledObject"):
        [trigger] = each["spec"]["triggers"]
        asked = set(re.findall(r"\broundhouse_\w+", trigger["metadata"]["query"]))
        assert asked and asked <= METRICS, trigger


def test_alerts_and_dashboards_are_those_of_the_repository() -> None:
    [rule] = of_kind(example("production"), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8"))
    [dashboards] = [each for each in of_kind(example("production"), "ConfigMap") if "dashboards" in
                    each["metadata"]["name"]]  # fmt: skip
    files = {file.name: json.loads(file.read_text("utf-8")) for file in (DEPLOY / "grafana").glob("*.json")}
    assert {name: json.loads(text) for name, text in dashboards["data"].items()} == files


def test_spot_machines_hold_what_follows_the_load_and_others_stay() -> None:
    objects = example("production")
    by_name: dict[str, Any] = {each["metadata"]["name"]: each["spec"] for each in of_kind(objects, "Deployment")}
    stay, spot = by_name["chat-roundhouse-engine-small"], by_name["chat-roundhouse-engine-small-spot"]
    assert stay["replicas"] == 1 and "replicas" not in spot
    assert "--spot" in spot["template"]["spec"]["containers"][0]["args"]
    assert "--spot" not in stay["template"]["spec"]["containers"][0]["args"]
    [scaled] = [each["spec"] for each in of_kind(objects, "ScaledObject") if "small" in each["metadata"]["name"]]
    assert scaled["scaleTargetRef"]["name"] == "chat-roundhouse-engine-small-spot"
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (1, 11)
    query = 'clamp_min(max(roundhouse_pool_desired_replicas{pool="small"}) - 1, 0)'
    assert scaled["triggers"][0]["metadata"]["query"] == query
    [text] = [each["data"]["roundhouse.toml"] for each in of_kind(objects, "ConfigMap") if "configuration" in
              component(each)]  # fmt: skip
    assert [pool.get("on_demand_replicas") for pool in tomllib.loads(text)["pools"]] == [1, None, None]


def test_models_are_fetched_where_their_pods_wait_for_them() -> None:
    """The pull stores them at the path that pools name, which gateways and engines may only read."""
    objects = example("without-controller")
    [fetching] = of_kind(objects, "DaemonSet")
    [container] = containers(fetching)
    [name] = container["args"]
    store = ModelStore(Path(environment(container)["ROUNDHOUSE_MODELS_STORE"]))
    [model] = [str(store.path(each)) for each in catalogue() if each.name == name]
    deployments = of_kind(objects, "Deployment")
    assert {component(each) for each in deployments} == {"gateway", "engine-small"}
    seconds = container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"]
    for each in deployments:
        [waiting] = first_containers(each)
        assert waiting["args"] == [model]
        assert all(mount.get("readOnly") for mount in waiting["volumeMounts"])
        assert each["spec"]["progressDeadlineSeconds"] >= seconds + 600
    assert not of_kind(example("production"), "DaemonSet")


def test_the_fetching_pod_pulls_each_model_and_stays(tmp_path: Path) -> None:
    """Its own command, where `roundhouse` and `sleep` only say what they are told."""
    [container] = containers(of_kind(example("without-controller"), "DaemonSet")[0])
    said = tmp_path / "said"
    for command in ("roundhouse", "sleep", "touch"):
        (tmp_path / command).write_text(f'#!/bin/sh\necho {command} "$@" >> {said}\n')
        (tmp_path / command).chmod(0o755)
    subprocess.run([*container["command"], "a", "b"], env={"PATH": f"{tmp_path}:/bin:/usr/bin"}, check=True)
    pulled = ["roundhouse models pull a", "roundhouse models pull b", "touch /tmp/fetched", "sleep infinity"]
    assert said.read_text().splitlines() == pulled
    failing = {"PATH": f"{tmp_path}:/bin:/usr/bin"}
    (tmp_path / "roundhouse").write_text("#!/bin/sh\nexit 1\n")
    assert subprocess.run([*container["command"], "a"], env=failing).returncode == 1
    assert said.read_text().splitlines() == pulled


def test_a_pod_says_for_which_model_it_waits(tmp_path: Path) -> None:
    """Its own command, where `sleep` has the model come."""
    [container] = first_containers(of_kind(example("without-controller"), "Deployment")[0])
    here, coming = tmp_path / "here", tmp_path / "coming model"
    here.touch()
    (tmp_path / "sleep").write_text(f'#!/bin/sh\ntouch "{coming}"\n')
    (tmp_path / "sleep").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/bin:/usr/bin"}
    done = subprocess.run(
        [*container["command"], str(here), str(coming)], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout == f"waits for {coming}\n" and coming.exists()


def test_fetching_needs_a_volume() -> None:
    with pytest.raises(helm.HelmRenderError, match=r"models\.volume"):
        render({"redis": {"url": "redis://redis:6379"}, "models": {"fetch": {"sources": ["smollm2-135m"]}}})


def test_without_a_controller_each_engine_counts_once() -> None:
    """Every gateway tells of every engine."""
    [scaled] = of_kind(example("without-controller"), "ScaledObject")
    busy = 'roundhouse_engine_running{replica=~"small-.*"} + roundhouse_engine_waiting{replica=~"small-.*"}'
    assert scaled["spec"]["triggers"][0]["metadata"]["query"] == f"ceil(sum(max by (replica) ({busy})) / 24)"
    assert not [
        each for each in of_kind(example("without-controller"), "Deployment") if "controller" in component(each)
    ]
