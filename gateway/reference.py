"""Writes what is generated from code, pages of `docs/` and types of the console: `python -m gateway.reference docs`.

A test compares the files with what this module makes, so that they cannot fall behind.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from engine.server.options import EngineOptions
from gateway.admin.app import API
from gateway.admin.kit.endpoints import Endpoint
from gateway.admin.kit.openapi import description
from gateway.admin.kit.typescript import declarations
from gateway.config.configuration import ALL, CHANGEABLE
from gateway.config.identity import IssuerSettings
from gateway.config.safety import SafetyPattern, SafetyPolicy
from gateway.config.settings import (
    ApiKeySettings,
    PoolSettings,
    PriceSettings,
    QuotaSettings,
    Section,
    Settings,
    TenantSettings,
)
from gateway.config.windows import PoolWindow
from gateway.scaling.metrics import ScalingMetrics
from gateway.telemetry.metrics.process import Metrics
from gateway.telemetry.metrics.registry import MetricRegistry

_CONFIGURATION = """# Configuration

One typed configuration: defaults, then a TOML file (`--config`, else `ROUNDHOUSE_CONFIG`, else `roundhouse.toml` in the
working directory), then environment variables. A key that does not exist and a value that does not fit are errors that
name the field. `roundhouse config check` checks a file, `roundhouse config show` prints what is in force.

This page is generated from `gateway/config/settings.py` by `make docs`.

```toml
[server]
port = 9000

[[tenants]]
name = "acme"
keys = [{ id = "ci", sha256 = "<output of: printf %s KEY | sha256sum>" }]
limits = { requests_per_minute = 600, output_tokens_per_minute = 100000, spend_per_day = 5000000 }

[[pools]]
tier = "small"
name = "llama-7b"
model = "/models/llama-7b"
device = "cuda"
dtype = "bfloat16"

[[prices]]
name = "llama-7b"
input = 150000
cached_input = 75000
output = 600000
```

Without `[[tenants]]` and `[[pools]]` the embedded default applies: [three models](models.md#what-make-serve-fetches) of
the catalogue, and one tenant whose key is `roundhouse-demo`. With `[[tenants]]` only, these models stay; with
`[[pools]]` only, there are no tenants until somebody [makes the first](tenants.md#the-first-tenant). Everybody knows
the demo's key: where other machines can use it, because `server.host` is no loopback address, or `admin.listen` is none
and the key may administer, the gateway does not start. `REDIS_URL` is read as `redis.url` if the file names none.
"""

_METRICS = """# Metrics

This page lists what every gateway serves at `/metrics` in Prometheus' text format, as
`curl -s http://127.0.0.1:8080/metrics` shows it. No label names a tenant, key or user; numbers per tenant are in Redis,
see [redis-keys.md](redis-keys.md). Counters end in `_total`; histograms have `_bucket`, `_sum` and `_count`; both
have `_created`, the Unix time since which a series counts.

This page is generated from `gateway/telemetry/metrics/` by `make docs`.

"""

_CONTROLLER_METRICS = """
## Of a controller

What a [controller](operating.md#how-many-engines) serves at `scaling.listen`. Only the one that leads tells of pools.

"""

_ENGINE_OPTIONS = """# Options of an engine

`python -m engine.server` and `roundhouse engine serve` take these, for an [engine](engine.md) that runs by itself. An
engine that `roundhouse serve` starts gets them from [its pool](configuration.md#pools).

This page is generated from `engine/server/options.py` by `make docs`.

| option | default | meaning |
|---|---|---|
"""


def configuration() -> str:
    """docs/configuration.md"""
    parts = [_CONFIGURATION]
    parts += [
        f"\n## `[{field.name}]`\n\n{_sentence(field.type)}\n\n{_table(field.type, field.name)}"
        for field in msgspec.structs.fields(Settings)
        if isinstance(field.type, type) and issubclass(field.type, Section)
    ]
    parts.insert(1, _changeable())
    lists: dict[str, type[Section]] = {"[tenants]": TenantSettings, "[pools]": PoolSettings, "[prices]": PriceSettings}
    for name, section in lists.items():
        parts.append(f"\n## `[{name}]`\n\n{_sentence(section)} One table each.\n\n{_table(section)}")
    parts.append(f"\n## `[[safety.patterns]]`\n\n{_sentence(SafetyPattern)} One table each.\n\n{_table(SafetyPattern)}")
    parts.append(f"\n## `[safety.tenants.<name>]`\n\n{_sentence(SafetyPolicy)}\n\n{_table(SafetyPolicy)}")
    parts.append(
        f"\n## `[[identity.issuers]]`\n\n{_sentence(IssuerSettings)} One table each.\n\n{_table(IssuerSettings)}"
    )
    parts.append(f"\n### `keys` of a tenant\n\n{_sentence(ApiKeySettings)}\n\n{_table(ApiKeySettings)}")
    parts.append(f"\n### `windows` of a pool\n\n{_sentence(PoolWindow)}\n\n{_table(PoolWindow)}")
    limits = _names(QuotaSettings)
    parts.append(f"\n### `limits` of a tenant\n\nThe fields of `[limits]` but the last three: {limits}.\n")
    return "".join(parts)


def _changeable() -> str:
    rows = [
        f"- `{section}`: " + ("everything" if fields is ALL else ", ".join(f"`{field}`" for field in sorted(fields)))
        for section, fields in CHANGEABLE.items()
    ]
    return (
        "\n## Changing it while a gateway runs\n\n`roundhouse reload` takes over what has changed here, and nothing "
        "else may have, see [operating](operating.md#changing-the-configuration):\n\n" + "\n".join(rows) + "\n"
    )


def metrics() -> str:
    """docs/metrics.md"""
    return _METRICS + _declared(Metrics().registry) + _CONTROLLER_METRICS + _declared(ScalingMetrics().registry)


def _declared(registry: MetricRegistry) -> str:
    rows = ["| metric | type | labels | meaning |\n|---|---|---|---|\n"]
    for metric in sorted(registry.declared):
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        rows.append(f"| `{metric.name}` | {metric.type} | {labels} | {metric.meaning} |\n")
    return "".join(rows)


def engine_options() -> str:
    """docs/engine-options.md"""
    rows = []
    for field, text in _fields(EngineOptions):
        default = _default(field).replace('"', "")
        rows.append(f"| `--{field.name.replace('_', '-')}` | {default} | {text} |\n")
    return _ENGINE_OPTIONS + "".join(rows)


_ENDPOINTS = f"""# Endpoints of the admin API

Below `{API.prefix}`; how to use them stands in [admin-api.md](admin-api.md). Who may call what: *operators* are keys
with `operator = true`, *tenant* are the admins of the tenant in the path (and operators), *filtered* are all admins,
each of whom sees what belongs to its tenant. With `If-Match` means that the request needs the header.

This page is generated from the routes in `gateway/admin/` by `make docs`.
"""


def endpoints_page() -> str:
    """docs/admin-endpoints.md"""
    parts = [_ENDPOINTS]
    for group in API.groups:
        parts.append(f"\n## {group.tag}\n\n{group.description}\n\n")
        parts.append("| request | for | answers | what it does |\n|---|---|---|---|\n")
        parts += [_endpoint_row(endpoint) for endpoint in group.all]
    return "".join(parts)


def _endpoint_row(endpoint: Endpoint) -> str:
    notes = ["with `If-Match`"] if endpoint.conditional else []
    notes += ["`ETag`"] if endpoint.versioned and endpoint.answer_type is not None else []
    answers = ", ".join([str(endpoint.status), *notes])
    summary, _ = endpoint.documentation
    return f"| `{endpoint.method} {endpoint.path}` | {endpoint.access.value} | {answers} | {summary} |\n"


PAGES: dict[str, Callable[[], str]] = {
    "admin-endpoints.md": endpoints_page,
    "configuration.md": configuration,
    "engine-options.md": engine_options,
    "metrics.md": metrics,
    "../gateway/http/static/console/admin-api.d.ts": lambda: declarations(description(API)),
}
"""By path from `docs/`."""


def _sentence(section: type[Section]) -> str:
    return (section.__doc__ or "").strip()


def _names(section: type[Section]) -> str:
    return ", ".join(f"`{field.name}`" for field in msgspec.structs.fields(section))


def _table(section: type[Section], name: str | None = None) -> str:
    variable = " environment variable |" if name else ""
    rows = [f"| field | default | meaning |{variable}\n|---|---|---|{'---|' if name else ''}\n"]
    for field, text in _fields(section):
        cells = [f"`{field.name}`", _default(field), text]
        if name:
            cells.append("-" if "gateway." in str(field.type) else f"`ROUNDHOUSE_{name}_{field.name}`".upper())
        rows.append(f"| {' | '.join(cells)} |\n")
    return "".join(rows)


def _fields(struct: type[msgspec.Struct]) -> Iterator[tuple[msgspec.structs.FieldInfo, str]]:
    """Its fields, each with what it means and which values it may have."""
    hints = typing.get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        yield field, f"{_description(hints[field.name])}{_choices(field.type)}"


def _description(hint: Any) -> str:
    for part in get_args(hint)[1:]:
        if isinstance(part, msgspec.Meta) and part.description:
            return part.description
    raise TypeError(f"{hint} has no description")


def _choices(hint: Any) -> str:
    inner = get_args(hint)[0] if get_origin(hint) is typing.Annotated else hint
    if get_origin(inner) is Literal:
        return " One of " + ", ".join(f"`{choice}`" for choice in get_args(inner)) + "."
    return ""


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return "-" if value is None else f"`{msgspec.json.encode(value).decode()}`"


def main(folder: str) -> None:
    for name, page in PAGES.items():
        Path(folder, name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
