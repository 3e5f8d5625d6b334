"""The OpenAPI description: valid, complete, and true for whatever a client sends."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import negative_data_rejection

from gateway import errors
from gateway.admin.app import API
from gateway.admin.kit.openapi import description
from tests.gateway.admin.conftest import OPERATOR, Shop

DOCUMENT = description(API)
OPERATIONS = {
    operation["operationId"]: operation for item in DOCUMENT["paths"].values() for method, operation in item.items()
}


def test_it_is_valid() -> None:
    """OpenAPI 3.1, by somebody else's validator."""
    assert list(OpenAPIV31SpecValidator(DOCUMENT).iter_errors()) == []


def test_every_endpoint_is_in_it() -> None:
    """Under a name of its own, with a summary."""
    assert len(OPERATIONS) == len(API.endpoints)
    assert set(OPERATIONS) == {endpoint.name for endpoint in API.endpoints}
    assert all(operation["summary"] for operation in OPERATIONS.values())
    assert all(parameter["description"] for each in OPERATIONS.values() for parameter in each["parameters"])


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "components": DOCUMENT["components"]}


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_examples_are_what_they_show(name: str) -> None:
    """Of bodies and of errors; every body has one unless it may be empty."""
    operation = OPERATIONS[name]
    contents = [operation.get("requestBody", {"content": {}}), *operation["responses"].values()]
    for content in (each for part in contents for each in part.get("content", {}).values()):
        if "example" in content:
            jsonschema.validate(content["example"], resolved(content["schema"]))
    for media_type, content in operation.get("requestBody", {"content": {}})["content"].items():
        assert "example" in content or media_type == "multipart/form-data"


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_error_says_its_codes(name: str) -> None:
    """And has the media type of a problem."""
    known = {value.code for value in vars(errors).values() if isinstance(value, type) and hasattr(value, "code")}
    for status, response in OPERATIONS[name]["responses"].items():
        if int(status) >= 400:
            assert list(response["content"]) == ["application/problem+json"]
            assert any(f"`{code}`" in response["description"] for code in known)


CONFIG = SchemathesisConfig.from_dict(
    {
        "request-timeout": 120,  # a slow machine is no failure
        "checks": {
            # If-Match of another state is valid, and refused.
            "positive_data_acceptance": {"expected-statuses": ["2xx", 401, 403, 404, 409, 412, 429]},
            "missing_required_header": {"expected-statuses": [428]},
        },
    }
)
# A stream goes on for as long as it is asked to.
schema = schemathesis.openapi.from_dict(DOCUMENT, config=CONFIG).exclude(path="/admin/v1/live")


@schema.parametrize()
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_it_tells_the_truth(case: schemathesis.Case, shop: Shop) -> None:
    """Schemathesis' checks for whatever it makes up, valid and invalid: no 5xx, no answer that is not described, no
    valid request refused and no invalid one accepted."""
    if case.meta is not None and case.meta.generation.mode.is_positive:
        lead_somewhere(case, shop.names)
    # A part of a form is text: on its way `true` becomes "true", which is as good as any other.
    untyped = [negative_data_rejection] if case.media_type == "multipart/form-data" else []
    case.call_and_validate(base_url=shop.url, headers={"Authorization": f"Bearer {OPERATOR}"}, excluded_checks=untyped)


def lead_somewhere(case: schemathesis.Case, names: dict[str, str]) -> None:
    """Have a valid case be about what exists, and leave out references that a schema cannot describe."""
    if case.path_parameters and len(str(case.path_parameters)) % 4:
        case.path_parameters |= {name: names[name] for name in case.path_parameters if name in names}
    if case.headers and "If-Match" in case.headers:
        case.headers["If-Match"] = "*"
    if case.query:
        for name in ("cursor", "from", "to"):
            case.query.pop(name, None)
    if isinstance(case.body, dict):
        for body in (case.body, case.body.get("request")):
            for name in ("user", "model", "version"):
                if isinstance(body, dict):
                    body.pop(name, None)
        if "targets" in case.body:
            case.body["targets"] = case.body["targets"][:1]
        for target in (*case.body.get("targets", ()), case.body.get("shadow") or {}):
            target["model"] = names["public_name"]
