"""Types of requests and answers about adapters."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.admin.endpoints.shapes import Name
from gateway.admin.kit.endpoints import Input
from gateway.config.adapter_sources import MAX_LENGTH, PATTERN

AdapterName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$")]
Version = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Text = Annotated[str, Meta(max_length=500)]
Tenants = Annotated[list[Name], Meta(max_length=1000)]


class AdapterPath(Input, frozen=True):
    adapter: Annotated[AdapterName, Meta(description="Its public name.")]


class AdapterUpload(Input, frozen=True):
    """An adapter whose files are sent along."""

    name: Annotated[AdapterName, Meta(description="What clients will give as `model`.")]
    model: Annotated[
        Annotated[str, Meta(max_length=256)] | None,
        Meta(description="Public name of the base model; needed if there are several."),
    ] = None
    tenants: Annotated[Tenants | None, Meta(description="Who may use it; null: everybody. Operators only.")] = None
    pinned: Annotated[bool, Meta(description="Have engines keep it loaded. Operators only.")] = False
    description: Annotated[Text, Meta(description="For people.")] = ""
    replace: Annotated[
        bool, Meta(description="If the name exists, have it lead here; tenants, pin and description stay.")
    ] = False


class AdapterRegistration(AdapterUpload, frozen=True, kw_only=True):
    """An adapter that is to be fetched."""

    source: Annotated[
        str,
        Meta(
            pattern=PATTERN,
            max_length=MAX_LENGTH,
            description="Address of its folder, below one of `adapters.sources`. Operators only.",
        ),
    ]


class AdapterForm(Struct, frozen=True, forbid_unknown_fields=True):
    """The parts of an upload."""

    request: AdapterUpload
    """As application/json."""
    config: Annotated[str, Meta(extra_json_schema={"contentMediaType": "application/json"})]
    """adapter_config.json"""
    weights: Annotated[str, Meta(extra_json_schema={"contentMediaType": "application/octet-stream"})]
    """adapter_model.safetensors"""


class AdapterChange(Input, frozen=True):
    """A change of an adapter; fields that are left out stay."""

    version: Annotated[Version | UnsetType, Meta(description="Swap: the version that the name is to lead to.")] = UNSET
    pinned: Annotated[bool | UnsetType, Meta(description="Have engines keep it loaded. Operators only.")] = UNSET
    drained: Annotated[bool | UnsetType, Meta(description="Take no new requests; running ones finish.")] = UNSET
    description: Annotated[Text | UnsetType, Meta(description="For people.")] = UNSET
    tenants: Annotated[
        Tenants | UnsetType | None, Meta(description="Who may use it; null: everybody. Operators only.")
    ] = UNSET


class AdapterState(Struct, frozen=True):
    """The public name of an adapter, and the version that it leads to."""

    name: str
    model: str
    version: str
    tenants: list[str] | None
    pinned: bool
    drained: bool
    description: str
    updated_at: int
    resident_on: list[str]
    """Replicas that have it on their device, as far as their engines name them."""


class AdapterContent(Struct, frozen=True):
    """What a version of an adapter contains."""

    size: int
    max_rank: int
    dtypes: list[str]
    architecture: str
    modules: list[str]


class AdapterDetails(AdapterState, frozen=True):
    """The public name of an adapter, its version, and what that contains."""

    content: AdapterContent
    running_turns: Annotated[
        int | None,
        Meta(
            description="Turns that run with it under this name: of this gateway now, of others a second ago. Null for "
            "those who may not change it, and while a gateway does not tell."
        ),
    ]


class AdapterList(Struct, frozen=True):
    data: list[AdapterState]
    next: str | None


class AdapterVersion(Struct, frozen=True):
    """A version that a name leads to, or has led to."""

    version: str
    current: bool
    until: Annotated[int | None, Meta(description="When the name was pointed elsewhere; null: it leads there now.")]
    present: Annotated[bool, Meta(description="Whether its files are still in the registry.")]


class AdapterVersions(Struct, frozen=True):
    data: list[AdapterVersion]
