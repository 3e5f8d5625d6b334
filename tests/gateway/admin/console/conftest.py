"""A browser in front of the console of a real gateway."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from playwright.sync_api import Browser

from tests.e2e.browser import Visit, chromium, visit
from tests.gateway.admin.conftest import OPERATOR, Shop


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


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
