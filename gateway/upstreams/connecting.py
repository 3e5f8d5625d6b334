"""Connects a pool to its servers, whatever they speak."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from engine.client.engine_client import EngineClient
from engine.client.upstream import Upstream
from engine.text.processor import TextProcessor
from gateway.background import failure_reporter
from gateway.config.identity import EngineTlsSettings
from gateway.config.settings import PoolSettings
from gateway.upstreams.adapters import AdapterAccess
from gateway.upstreams.dialects import MESSAGE_DIALECTS, TOKEN_DIALECTS
from gateway.upstreams.http import HttpUpstream
from gateway.upstreams.messages.upstream import MessageUpstream
from gateway.upstreams.pages import ServerAccess

Connect = Callable[[str, str | None], Upstream]
"""Makes the client of a server, given its address and the name that its certificate is for."""


def connector(pool: PoolSettings, tls: EngineTlsSettings, text: Callable[[], TextProcessor]) -> Connect:
    """Return what makes the clients of a pool's servers.

    Args:
        text: returns the pool's tokenizer, which only servers that continue token ids need.

    Raises:
        SettingsError: a file of `tls` cannot be used.
    """
    files, on_fault = tls.files(), failure_reporter("engine connections")
    if pool.dialect == "roundhouse":
        return lambda address, name: EngineClient(address, tls=files, server_name=name, on_fault=on_fault)

    def access(name: str | None) -> ServerAccess:
        return ServerAccess(lambda: pool.api_key, files, name)

    if pool.takes_messages:
        assert pool.context is not None  # the configuration is checked for it
        of_messages = partial(MessageUpstream, model=pool.model, context=pool.context, on_fault=on_fault)
        spoken = MESSAGE_DIALECTS[pool.dialect]
        return lambda address, name: of_messages(address, spoken, access=access(name))
    dialect = msgspec.structs.replace(TOKEN_DIALECTS[pool.dialect], context=pool.context)
    adapters = AdapterAccess(pool.adapter_folder, pool.max_adapters)
    make = partial(HttpUpstream, dialect=dialect, text=text(), adapters=adapters, on_fault=on_fault)
    return lambda address, name: make(address, access=access(name))
