"""Connections that turns leave behind for the next ones, and a bound on all of them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping

from load.connections.address import Address
from load.connections.channels import CHANNELS, TurnChannel
from load.plan import Protocol


class ChannelPool:
    """Channels by protocol and tenant, of which at most `most` are open.

    Args:
        headers: of each tenant's requests.
    """

    def __init__(self, address: Address, headers: Mapping[str, dict[str, str]], most: int) -> None:
        self._address = address
        self._headers = headers
        self._most = most
        self._in_use = 0
        self._may_take = asyncio.Semaphore(most)
        self._idle: defaultdict[tuple[Protocol, str], list[TurnChannel]] = defaultdict(list)

    async def take(self, protocol: Protocol, tenant: str) -> TurnChannel:
        """Wait for a place below the bound; return a channel, a used one if there is one.

        Raises:
            OSError, RequestRefused: a new one cannot be opened.
        """
        await self._may_take.acquire()
        self._in_use += 1
        try:
            return self._taken(protocol, tenant) or await self._opened(protocol, tenant)
        except BaseException:
            self._leave()
            raise

    def give_back(self, protocol: Protocol, tenant: str, channel: TurnChannel) -> None:
        """Keep a channel for others, or cut it if its turn has not ended."""
        if channel.usable:
            self._idle[protocol, tenant].append(channel)
        else:
            channel.abort()
        self._leave()

    def close(self) -> None:
        """End idle channels."""
        for channels in self._idle.values():
            while channels:
                channels.pop().close()

    def _leave(self) -> None:
        self._in_use -= 1
        self._may_take.release()

    def _taken(self, protocol: Protocol, tenant: str) -> TurnChannel | None:
        channels = self._idle[protocol, tenant]
        while channels:
            channel = channels.pop()
            if channel.usable:
                return channel
        return None

    async def _opened(self, protocol: Protocol, tenant: str) -> TurnChannel:
        if self._in_use + sum(map(len, self._idle.values())) > self._most:
            next(channels for channels in self._idle.values() if channels).pop().close()
        return await CHANNELS[protocol].open(self._address, self._headers[tenant])
