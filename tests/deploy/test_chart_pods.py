"""What must hold of every pod and every reference, in each rendering of the Helm chart."""

from __future__ import annotations

import pytest

from tests.deploy.kubernetes import (
    EXAMPLES,
    WORKLOADS,
    Object,
    component,
    containers,
    environment,
    example,
    first_containers,
    of_kind,
    probes,
    selects,
)

pytest.importorskip("helm_python", reason="Helm's library is not here: pip install helm-python-sdk")


@pytest.fixture(params=EXAMPLES)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return example(request.param)


@pytest.fixture
def workloads(objects: list[Object]) -> list[Object]:
    return of_kind(objects, *WORKLOADS)


def test_every_container_has_probes_and_limits(workloads: list[Object]) -> None:
    for workload in workloads:
        for container in containers(workload):
            where = f"{workload['metadata']['name']}: {container['name']}"
            assert {"startupProbe", "livenessProbe"} <= container.keys(), where
            assert container["resources"]["limits"].keys() >= {"cpu", "memory"}, where
        assert all("readinessProbe" in each for each in workload["spec"]["template"]["spec"]["containers"])
        for container in first_containers(workload):
            assert container["resources"]["limits"].keys() >= {"cpu", "memory"}


def test_no_pod_may_do_more_than_compute(workloads: list[Object]) -> None:
    for workload in workloads:
        spec = workload["spec"]["template"]["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] >= 10000
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        for container in (*first_containers(workload), *containers(workload)):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_names_of_services_become_no_settings(workloads: list[Object]) -> None:
    """Kubernetes would tell pods of a service `roundhouse-server` as ROUNDHOUSE_SERVER_PORT=tcp://..."""
    for workload in workloads:
        assert workload["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_a_pod_has_time_to_drain(workloads: list[Object]) -> None:
    for workload in workloads:
        spec = workload["spec"]["template"]["spec"]
        container = spec["containers"][0]
        drain = float(environment(container).get("ROUNDHOUSE_SERVER_DRAIN_TIMEOUT", 0))
        drain += sum(
            float(arg.partition("=")[2]) for arg in container.get("args", []) if arg.startswith("--drain-timeout=")
        )
        assert (drain > 0) == (component(workload).startswith(("gateway", "engine")))
        stop = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        if drain:
            assert spec["terminationGracePeriodSeconds"] >= stop + drain + 10


def test_probes_ask_ports_that_are_there(workloads: list[Object]) -> None:
    for workload in workloads:
        for container in containers(workload):
            ports = {port["name"] for port in container.get("ports", [])}
            for probe in probes(container):
                [(how, asked)] = [(how, probe[how]) for how in ("httpGet", "tcpSocket", "exec") if how in probe]
                assert how == "exec" or asked["port"] in ports


def test_mounts_and_volumes_belong_together(objects: list[Object], workloads: list[Object]) -> None:
    maps = {each["metadata"]["name"] for each in of_kind(objects, "ConfigMap")}
    for workload in workloads:
        spec = workload["spec"]["template"]["spec"]
        claimed = {each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])}
        volumes = {volume["name"] for volume in spec.get("volumes", [])} | claimed
        mounted = {mount["name"] for container in containers(workload) for mount in container["volumeMounts"]}
        assert mounted == volumes
        assert all(mount["name"] in volumes for each in first_containers(workload) for mount in each["volumeMounts"])
        assert {each["configMap"]["name"] for each in spec.get("volumes", []) if "configMap" in each} <= maps


def test_selectors_find_pods(objects: list[Object], workloads: list[Object]) -> None:
    templates = [workload["spec"]["template"] for workload in workloads]

    def found(selector: Object) -> list[Object]:
        return [each for each in templates if selects(selector, each["metadata"]["labels"])]

    for workload in workloads:
        assert found(workload["spec"]["selector"]) == [workload["spec"]["template"]]
    for budget in of_kind(objects, "PodDisruptionBudget"):
        assert len(found(budget["spec"]["selector"])) == 1
    for service in of_kind(objects, "Service"):
        [template] = found(service["spec"]["selector"])
        ports = {port["name"] for each in template["spec"]["containers"] for port in each["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for policy in of_kind(objects, "NetworkPolicy"):
        templates_found = found(policy["spec"]["podSelector"])
        ports = {
            port["name"] for one in templates_found for each in one["spec"]["containers"] for port in each["ports"]
        }
        assert {port["port"] for rule in policy["spec"].get("ingress", []) for port in rule["ports"]} <= ports
        for rule in policy["spec"].get("ingress", []):
            for peer in rule.get("from", []):
                assert "podSelector" not in peer or found(peer["podSelector"])


def test_every_engine_has_a_disruption_budget_and_only_gateways_reach_it(objects: list[Object]) -> None:
    engines = [each for each in of_kind(objects, "Deployment") if component(each).startswith("engine")]
    budgets = of_kind(objects, "PodDisruptionBudget")
    for engine in engines:
        labels = engine["spec"]["template"]["metadata"]["labels"]
        assert any(selects(each["spec"]["selector"], labels) for each in budgets)
        policies = [each for each in of_kind(objects, "NetworkPolicy") if selects(each["spec"]["podSelector"], labels)]
        admitted = [
            peer
            for policy in policies
            for rule in policy["spec"]["ingress"]
            if {"port": "engine"} in rule["ports"]
            for peer in rule["from"]
        ]
        gateway = {**labels, "app.kubernetes.io/component": "gateway"}
        assert all(selects(peer["podSelector"], gateway) for peer in admitted)
        assert not any(selects(peer["podSelector"], labels) for peer in admitted)


def test_what_is_scaled_by_others_names_no_number_itself(objects: list[Object]) -> None:
    """Every change of the release would set it back."""
    deployments = {each["metadata"]["name"]: each for each in of_kind(objects, "Deployment")}
    for scaler in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        assert "replicas" not in deployments[scaler["spec"]["scaleTargetRef"]["name"]]["spec"]
    for each in of_kind(objects, "ScaledObject"):
        assert each["spec"]["minReplicaCount"] <= each["spec"]["maxReplicaCount"]
        assert each["spec"]["fallback"]["behavior"] == "currentReplicas"
        [trigger] = each["spec"]["triggers"]
        assert trigger["metadata"]["ignoreNullValues"] == "false"


def test_routes_and_monitors_reach_services(objects: list[Object]) -> None:
    services = of_kind(objects, "Service")
    for route in of_kind(objects, "HTTPRoute"):
        for backend in (each for rule in route["spec"]["rules"] for each in rule["backendRefs"]):
            [service] = [each for each in services if each["metadata"]["name"] == backend["name"]]
            assert backend["port"] in {port["port"] for port in service["spec"]["ports"]}
    for monitor in of_kind(objects, "ServiceMonitor"):
        scraped = [each for each in services if selects(monitor["spec"]["selector"], each["metadata"]["labels"])]
        ports = {port["name"] for each in scraped for port in each["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports
        assert {component(each) for each in scraped} <= {"gateway", "controller"}


def test_metrics_and_administration_are_not_routed_to_clients(objects: list[Object]) -> None:
    for route in of_kind(objects, "HTTPRoute"):
        paths = {
            match["path"]["value"]: match["path"]["type"]
            for each in route["spec"]["rules"]
            for match in each["matches"]
        }
        assert paths.pop("/") == "Exact"
        for inside in ("/metrics", "/healthz", "/readyz", "/admin"):
            assert not any(inside.startswith(path) for path in paths)
