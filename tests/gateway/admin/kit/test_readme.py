"""The README's example runs, and does what the README says of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from gateway.admin import kit

pytestmark = pytest.mark.anyio

README = Path(kit.__file__).with_name("README.md")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example as a module, which is where annotations are looked up."""
    [code] = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), flags=re.S)
    module = ModuleType("lamps")
    monkeypatch.setitem(sys.modules, "lamps", module)
    exec(compile(code, str(README), "exec"), vars(module))
    return module


async def test_the_example_does_what_is_said_of_it(example: Any) -> None:
    transport = httpx2.ASGITransport(app=example.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://lamps/v1/lamps") as client:
        shown = await client.get("/desk")
        assert (shown.json()["bright"], shown.headers["etag"]) == (40, '"1"')
        assert (await client.get("/floor")).json() == {"code": "not_found", "param": None}
        assert (await client.patch("/desk", json={"bright": 50})).status_code == 401
        client.headers["authorization"] = "Bearer secret"
        assert (await client.patch("/desk", json={"bright": 50})).status_code == 428
        headers = {"if-match": shown.headers["etag"]}
        for body, field in (({"bright": 101}, "bright"), ({"colour": 1}, "colour"), ({}, "bright")):
            refused = await client.patch("/desk", json=body, headers=headers)
            assert (refused.status_code, refused.json()["param"]) == (400, field)
        assert (await client.patch("/desk", json={"bright": 50}, headers=headers)).json()["bright"] == 50
        assert (await client.patch("/desk", json={"bright": 60}, headers=headers)).status_code == 412
        wrong = await client.put("/desk", json={})
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, PATCH")


def test_the_example_is_described(example: Any) -> None:
    assert list(OpenAPIV31SpecValidator(example.document).iter_errors()) == []
    described = example.document["paths"]["/v1/lamps/{lamp}"]["patch"]
    assert described["description"] == "For whoever has a key."
    assert set(described["responses"]) == {"200", "400", "401", "404", "405", "412", "413", "415", "428", "500"}
