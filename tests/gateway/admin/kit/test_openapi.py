"""The OpenAPI description: valid, complete, and true for whatever a client sends."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from gateway import errors
from gateway.admin.app import API
from gateway.admin.kit.openapi import description
from tests.gateway.admin.conftest import OPERATOR, Shop

DOCUMENT = description(API)
OPERATIONS = {
    operation["operationId"]: operation for item in DOCUMENT["paths"].values() for method, operation in item.items()
}
ENDLESS = set(operation["operationId"] for operation in DOCUMENT["paths"]["/admin/v1/live"].values())
"""Streams that go on for as long as they are asked to."""


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


@pytest.fixture(scope="module")
def schema() -> Any:
    from tests.gateway.schemathesis_cases import loaded

    # If-Match of another state is valid, and refused.
    accepted = {"expected-statuses": ["2xx", 401, 403, 404, 409, 412, 429]}
    checks = {"positive_data_acceptance": accepted, "missing_required_header": {"expected-statuses": [428]}}
    checks["negative_data_rejection"] = {"expected-statuses": [400, 401, 403, 404, 405, 409, 413, 415, 428, 429]}
    return loaded(DOCUMENT, checks=checks)


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - ENDLESS))
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")  # the engine's thread does
def test_it_tells_the_truth(schema: Any, name: str, shop: Shop) -> None:
    """Schemathesis' checks for whatever it makes up, valid and invalid: no 5xx, no answer that is not described, no
    valid request refused and no invalid one accepted."""
    from schemathesis.specs.openapi.checks import negative_data_rejection

    from tests.gateway.schemathesis_cases import run_cases

    def check(case: Any, session: Any) -> None:
        if case.meta is not None and case.meta.generation.mode.is_positive:
            lead_somewhere(case, shop.names)
        untyped = [negative_data_rejection] if nothing_wrong_is_sent(case) else []
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        case.call_and_validate(base_url=shop.url, session=session, headers=headers, excluded_checks=untyped)

    run_cases(schema, name, check)


def nothing_wrong_is_sent(case: Any) -> bool:
    """Whether what a schema forbids is lost on its way: a part of a form is text, `true` becomes "true", which is as
    good as any other, and an empty list is no parameter."""
    return case.media_type == "multipart/form-data" or [] in (case.query or {}).values()


def lead_somewhere(case: Any, names: dict[str, str]) -> None:
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
            for name in ("tenant", "user", "model", "version"):
                if isinstance(body, dict):
                    body.pop(name, None)
        if "targets" in case.body:
            case.body["targets"] = case.body["targets"][:1]
        for target in (*case.body.get("targets", ()), case.body.get("shadow") or {}):
            target["model"] = names["public_name"]
