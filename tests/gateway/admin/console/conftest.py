"""A browser in front of the console of a real gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx2
import pytest
from playwright.sync_api import Browser
from redis.asyncio import Redis

from gateway.access.sign_in_links import SignInLinks
from tests.e2e.browser import Visit, visit
from tests.e2e.pages import Pages
from tests.gateway.admin.conftest import OPERATOR, Administer, Shop


@pytest.fixture
def administer(administer: Administer, pages: Pages) -> Administer:
    """Gateways at the same address in all tests, whose visits share a context so."""
    return partial(administer, server={"port": pages.port})


@pytest.fixture
def tab(browser: Browser, shop: Shop) -> Iterator[Visit]:
    with visit(browser, shop.url) as tab:
        yield tab


@pytest.fixture
def operator(shop: Shop) -> Iterator[httpx2.Client]:
    """What an operator does beside the console."""
    headers = {"authorization": f"Bearer {OPERATOR}"}
    with httpx2.Client(base_url=f"{shop.url}/admin/v1", headers=headers, timeout=20) as client:
        yield client


@pytest.fixture
def signing_in(shop: Shop, redis_url: str) -> str:
    """An address that signs an operator in once."""

    async def make() -> str:
        async with Redis.from_url(redis_url) as redis:
            return await SignInLinks(redis).make()

    # Playwright has a loop of its own in this thread.
    with ThreadPoolExecutor() as threads:
        return f"/auth/link?secret={threads.submit(asyncio.run, make()).result()}"
