"""Settings that there were in an earlier version, and what takes their place."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.records.section import SettingsError

_CASCADE = (
    "giving up an answer for one of the next tier gained nothing that could be measured; remove it, and turn "
    "router.quality up where answers of the small tier are not good enough"
)
_REMOVED = {
    ("router", "escalate"): _CASCADE,
    ("router", "escalate_hold"): _CASCADE,
    ("router", "escalate_logprob"): _CASCADE,
    ("semantic_cache", "delta"): (
        "it bounded wrong answers per look-up; remove it and set semantic_cache.max_wrong_hits, the highest share of "
        "served answers that may be wrong, and semantic_cache.tenants likewise"
    ),
}


def refuse_removed(raw: Mapping[str, object], environ: Mapping[str, str]) -> None:
    """Refuse settings that would do nothing, or something else than they did.

    Raises:
        SettingsError: one is set; the message says what to do instead.
    """
    for (section, field), instead in _REMOVED.items():
        variable, found = f"ROUNDHOUSE_{section}_{field}".upper(), raw.get(section)
        if variable in environ or (isinstance(found, Mapping) and field in found):
            name = variable if variable in environ else f"{section}.{field}"
            raise SettingsError(f"{name}: there is no such setting any more: {instead}")
