"""Renders the Helm chart with Helm's own library, and looks into what Kubernetes would be given."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

Object = dict[str, Any]

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "roundhouse"
EXAMPLES = {file.stem: file for file in sorted((DEPLOY / "helm" / "examples").glob("*.yaml"))}
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")
OLDEST, NEWEST = "1.30", "1.37"
"""Versions of Kubernetes against whose schemas objects are checked: the oldest that the chart takes, and the newest."""
_CUSTOM = Path(__file__).with_name("custom_resources.yaml")


def render(values: Object | None = None) -> list[Object]:
    """Return the objects that the chart makes of values, as release `chat` in the namespace `prod`."""
    helm = pytest.importorskip("helm_python", reason="Helm's library is not here: pip install helm-python-sdk")
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(values or {})
        pages: dict[str, str] = chart.render(values or {}, name="chat", namespace="prod")
    texts = [page for path, page in sorted(pages.items()) if path.endswith(".yaml")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


@cache
def example(name: str) -> list[Object]:
    """Return the objects of an example's values."""
    return render(yaml.safe_load(EXAMPLES[name].read_text("utf-8")))


def of_kind(objects: Iterable[Object], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def component(each: Object) -> str:
    return str(each["metadata"]["labels"]["app.kubernetes.io/component"])


def containers(workload: Object) -> list[Object]:
    """Return all containers that live as long as the pod, sidecars included."""
    spec = workload["spec"]["template"]["spec"]
    return [*(each for each in spec.get("initContainers", []) if "restartPolicy" in each), *spec["containers"]]


def first_containers(workload: Object) -> list[Object]:
    """Return the containers that end before the others start."""
    return [
        each for each in workload["spec"]["template"]["spec"].get("initContainers", []) if "restartPolicy" not in each
    ]


def environment(container: Object) -> dict[str, str]:
    """Return the environment variables whose values the object holds itself."""
    return {each["name"]: each["value"] for each in container.get("env", []) if "value" in each}


def probes(container: Object) -> Iterator[Object]:
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        if kind in container:
            yield container[kind]


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a selector in either notation finds something with these labels."""
    if not selector.keys() & {"matchLabels", "matchExpressions"}:
        selector = {"matchLabels": selector}
    if any(each["operator"] != "In" for each in selector.get("matchExpressions", [])):
        raise NotImplementedError("only In is used")
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", [])
    )


def validate(each: Object, version: str) -> None:
    """
    Raises:
        ValidationError: a field is misspelt, missing or of another type, for this version of Kubernetes.
    """
    kubernetes = pytest.importorskip("kubernetes_validate", reason="not here: pip install kubernetes-validate")
    kind = f"{each['apiVersion']}/{each['kind']}"
    if kind in _custom_schemas():
        # Go's regular expressions in patterns, some of which Python does not read, are only read where they are used.
        jsonschema.Draft202012Validator(_custom_schemas()[kind]).validate({"spec": each["spec"]})
        return
    try:
        kubernetes.validate(each, version, strict=True)
    except kubernetes.ValidationError as error:
        raise jsonschema.ValidationError(f"{each['metadata']['name']}: {list(error.path)}: {error.message}") from None


@cache
def _custom_schemas() -> dict[str, Object]:
    """By apiVersion/kind: schemas of objects, of which `spec` alone is looked at."""
    folder = os.environ.get("ROUNDHOUSE_CRDS")
    if folder is None:
        kinds = yaml.safe_load(_CUSTOM.read_text("utf-8"))
        return {kind: {"required": ["spec"], "properties": {"spec": _closed(spec)}} for kind, spec in kinds.items()}
    found = {}
    for file in Path(folder).glob("*.yaml"):
        definition = yaml.safe_load(file.read_text("utf-8"))["spec"]
        for version in definition["versions"]:
            spec = version["schema"]["openAPIV3Schema"]["properties"].get("spec", {})
            kind = f"{definition['group']}/{version['name']}/{definition['names']['kind']}"
            found[kind] = {"required": ["spec"], "properties": {"spec": _closed(spec)}}
    return found


def _closed(schema: Any) -> Any:
    """Return a schema that admits no fields beyond those it names."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed["properties"] = {name: _closed(field) for name, field in schema["properties"].items()}
        closed.setdefault("additionalProperties", False)
        closed.setdefault("type", "object")
    return closed
