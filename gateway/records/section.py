"""The base of all sections of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(gt=0)]
Seconds = Annotated[float, Meta(gt=0)]


class SettingsError(Exception):
    """The configuration cannot be used; the message names the field and what it may hold."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections: unknown keys are errors, so that a typing mistake is not silently a default."""


def apply_environment(raw: dict[str, Any], settings: type[Section], environ: Mapping[str, str]) -> None:
    """Put the fields that are set in the environment, as `ROUNDHOUSE_<SECTION>_<FIELD>`, into what a file says.

    Raises:
        SettingsError: a section is no table, or a variable's value does not fit; the message names it.
    """
    sections = {
        field.name: field.type
        for field in msgspec.structs.fields(settings)
        if isinstance(field.type, type) and issubclass(field.type, Section)
    }
    for section, type_ in sections.items():
        if not isinstance(raw.get(section, {}), dict):
            raise SettingsError(f"{section}: it is no table; write [{section}] above its fields")
        for field in msgspec.structs.fields(type_):
            variable = f"ROUNDHOUSE_{section}_{field.name}".upper()
            value = environ.get(variable)
            if value is None:
                continue
            kind = get_origin(next(iter(get_args(field.type)), None))  # of Annotated[list[...], Meta]
            parsed: Any = [part.strip() for part in value.split(",") if part.strip()] if kind in (list, dict) else value
            if kind is dict:
                parsed = {name.strip(): part.strip() for name, _, part in (each.partition("=") for each in parsed)}
            try:
                # strict=False: "9000" and "true" become what the field wants.
                raw.setdefault(section, {})[field.name] = msgspec.convert(parsed, field.type, strict=False)
            except msgspec.ValidationError as error:
                raise SettingsError(f"{variable}: {error}") from error
