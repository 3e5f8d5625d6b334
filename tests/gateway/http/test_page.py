"""The chat page's files, headers and configuration."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from gateway.config.settings import Settings, TenantSettings, demo_settings
from gateway.engines.arrival import ArrivalState
from gateway.http import page
from router.route import ComingTier

VENDOR = page.STATIC / "vendor"
PAGES = sorted(path.relative_to(page.STATIC).as_posix() for path in page.STATIC.rglob("*.html"))

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def client(settings: Settings, arrivals: ArrivalState | None = None) -> AsyncIterator[httpx2.AsyncClient]:
    """Requests to an application that has the page's routes only."""
    app = Starlette(routes=page.routes)
    app.state.gateway = SimpleNamespace(settings=settings, arrivals=arrivals or ArrivalState(), caller=nobody)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


async def nobody(request: Request) -> None:
    """Nobody is known."""


def packages() -> list[dict[str, Any]]:
    manifest: dict[str, list[dict[str, Any]]] = json.loads((VENDOR / "manifest.json").read_text("utf-8"))
    return manifest["packages"]


async def test_every_file_of_the_page_carries_its_policy() -> None:
    """Nothing from other hosts, nothing inline, no frame around it, no file taken for another type."""
    async with client(demo_settings()) as http:
        for path, kind in (
            ("/", "text/html"),
            ("/static/js/main.js", "text/javascript"),
            ("/static/css/base.css", "text/css"),
            ("/static/icon.svg", "image/svg+xml"),
        ):
            response = await http.get(path)
            assert response.status_code == 200
            assert response.headers["content-type"].startswith(kind)
            policy = response.headers["content-security-policy"].split("; ")
            assert "default-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert not any(source in directive for directive in policy for source in ("unsafe", "http:", "https:", "*"))


async def test_files_are_kept_for_good_under_addresses_that_change_with_them() -> None:
    """All that the page names have such an address, which is the digest of all files; every module that its own
    imports is among them."""
    async with client(demo_settings()) as http:
        response = await http.get("/")
        assert response.headers["cache-control"] == "no-cache"
        named = re.findall(r'(?:src|href)="(static/[^"]+)"', response.text)
        assert {name.split("/")[1] for name in named} == {page.FILES.digest}
        for name in named:
            file = await http.get(f"/{name}")
            assert file.status_code == 200, name
            assert "immutable" in file.headers["cache-control"], name
        modules = {name.split("/", 2)[2] for name in named if name.endswith(".js")}
        for name in sorted(modules):
            text = (page.STATIC / name).read_text("utf-8")
            for relative in re.findall(r'^import [^"]*"([^"]+)";', text, re.MULTILINE):
                found = (page.STATIC / name).parent.joinpath(relative).resolve().relative_to(page.STATIC).as_posix()
                assert found in modules, f"{name} imports {found}, which is found late"


async def test_other_files_are_asked_for_each_time() -> None:
    """By their plain addresses, and by those of another release, and are not sent again unless they have changed."""
    async with client(demo_settings()) as http:
        for path in ("/static/css/base.css", "/static/0123456789abcdef/css/base.css"):
            first = await http.get(path)
            again = await http.get(path, headers={"if-none-match": first.headers["etag"]})
            assert first.text == (page.STATIC / "css" / "base.css").read_text("utf-8")
            assert first.headers["cache-control"] == "no-cache"
            assert again.status_code == 304
            assert again.headers["content-security-policy"] == page.CONTENT_SECURITY_POLICY


async def test_the_worker_names_its_release_and_all_that_the_page_may_load() -> None:
    """Dialogs and catalogues too, but no library that is loaded when it is needed, and nothing of the console."""
    async with client(demo_settings()) as http:
        response = await http.get("/service-worker.js")
        first, script = response.text.split("\n", 1)
        release = json.loads(first.removeprefix("self.RELEASE = ").removesuffix(";"))
        assert script == (await http.get("/static/js/service-worker.js")).text
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["content-security-policy"] == page.CONTENT_SECURITY_POLICY
        assert release["digest"] == page.FILES.digest
        files = set(release["files"])
        assert {"js/main.js", "js/settings-dialog.js", "css/comparison.css", "css/dialog-lists.css"} <= files
        assert {"js/prompts-dialog.js", "js/highlighter.js", "languages/de/answers.js"} <= files
        assert {name for name in files if name.startswith("vendor/")} == {"vendor/markdown-it/markdown-it.js"}
        assert not {name for name in files if name.startswith(("admin/", "console/"))}
        for name in files:
            file = await http.get(f"/static/{release['digest']}/{name}")
            assert file.status_code == 200 and "immutable" in file.headers["cache-control"], name


@pytest.mark.parametrize("name", ["index.html", "shared.html", "admin/index.html", "admin/api/index.html"])
def test_all_files_that_a_page_names_are_there(name: str) -> None:
    html = (page.STATIC / name).read_text("utf-8")
    assert [file for file in re.findall(r'"static/([^"]+)"', html) if not (page.STATIC / file).is_file()] == []


async def test_modules_come_without_their_documentation() -> None:
    """And with all of their code, in the lines that it has; those of others as they are."""
    left_out = 0
    async with client(demo_settings()) as http:
        for file in sorted(page.STATIC.rglob("*.js")):
            name = file.relative_to(page.STATIC).as_posix()
            written = file.read_text("utf-8").split("\n")
            sent = (await http.get(f"/static/{name}")).text.split("\n")
            assert len(sent) == len(written)
            different = [line for line, other in zip(written, sent, strict=True) if line != other]
            assert [line for line in different if not re.match(r"\s*(/\*\*|\*)", line)] == [], name
            assert not (different and name.startswith("vendor/"))
            assert {other for line, other in zip(written, sent, strict=True) if line != other} <= {""}, name
            left_out += len(different)
    assert left_out > 1000


@pytest.mark.parametrize(("accepted", "encoding"), [("gzip, br", "gzip"), ("br", None), ("", None)])
async def test_files_are_compressed_for_those_who_take_that(accepted: str, encoding: str | None) -> None:
    async with client(demo_settings()) as http:
        response = await http.get("/static/css/base.css", headers={"accept-encoding": accepted})
    assert response.headers.get("content-encoding") == encoding
    assert response.headers["vary"] == "accept-encoding"
    assert response.text == (page.STATIC / "css" / "base.css").read_text("utf-8")


@pytest.mark.parametrize(
    "path", ["/static/../settings.py", "/static/%2e%2e/settings.py", "/static/js", "/static/no.js"]
)
async def test_only_files_of_the_page_are_served(path: str) -> None:
    """Neither what lies beside them nor a folder."""
    async with client(demo_settings()) as http:
        assert (await http.get(path)).status_code == 404


async def test_the_embedded_default_tells_its_key() -> None:
    """The key that the page is told is the one that the server accepts."""
    settings = demo_settings()
    async with client(settings) as http:
        config = (await http.get("/ui/config.json")).json()
    assert hashlib.sha256(config["key"].encode()).hexdigest() == settings.tenants[0].keys[0].sha256
    assert config["tiers"] == {"medium_from": settings.router.medium_from, "large_from": settings.router.large_from}


async def test_the_page_is_told_what_is_coming_and_not_why_it_fails() -> None:
    """Reasons may name hosts and paths."""
    large = ComingTier(tier="large", model="l", size=100, here=43, failed=True)
    async with client(demo_settings(), ArrivalState({"large": large})) as http:
        config = (await http.get("/ui/config.json")).json()
    assert config["coming"] == [
        {"tier": "large", "model": "l", "size": 100, "here": 43, "failed": True, "unusable": False}
    ]
    assert config["none_fetched"] is False


async def test_an_own_installation_tells_no_key() -> None:
    """Tenants of one's own, or none yet: the page has to ask."""
    for tenants in ([TenantSettings(name="own")], []):
        async with client(Settings(tenants=tenants, pools=demo_settings().pools)) as http:
            assert (await http.get("/ui/config.json")).json()["key"] is None


def test_vendored_files_are_those_of_the_manifest() -> None:
    """Every file is listed with the digest it has, and every listed file exists."""
    listed = {path: digest for package in packages() for path, digest in package["files"].items()}
    found = {
        file.relative_to(VENDOR).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in VENDOR.rglob("*")
        if file.is_file() and file.name != "manifest.json"
    }
    assert found == listed


@pytest.mark.parametrize("package", packages(), ids=lambda package: package["name"])
def test_vendored_packages_name_version_source_and_licence(package: dict[str, Any]) -> None:
    """And bring the licence's text along."""
    assert package["version"] in package["source"]
    assert package["license"] in ("MIT", "Apache-2.0", "BSD-3-Clause")
    assert any(Path(path).name == "LICENSE" for path in package["files"])


@pytest.mark.parametrize("name", PAGES)
def test_a_page_names_files_that_are_there(name: str) -> None:
    """A style sheet that is missing would be seen by people only."""
    named = re.findall(r'(?:src|href)="static/([^"]+)"', (page.STATIC / name).read_text("utf-8"))
    assert named
    assert [each for each in named if not (page.STATIC / each).is_file()] == []


def test_pages_draw_the_same_symbols() -> None:
    """The page of shared conversations has some of those of the chat page: each page brings its own along."""
    chat, shared = ((page.STATIC / name).read_text("utf-8") for name in ("index.html", "shared.html"))
    symbols = re.findall(r"<symbol .*?</symbol>", shared, re.DOTALL)
    assert symbols
    assert [each for each in symbols if each not in chat] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_nothing_inline(name: str) -> None:
    """The policy would refuse it: scripts and styles are files, and no element has a style or a handler."""
    html = (page.STATIC / name).read_text("utf-8")
    assert " style=" not in html
    assert "<style" not in html
    assert re.search(r"\son\w+=", html) is None
    assert all("src=" in tag for tag in html.split("<script")[1:])
