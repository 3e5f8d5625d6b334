"""Routes in the console: shares, and what is on trial."""

from __future__ import annotations

import httpx2
import redis
from playwright.sync_api import expect

from gateway.pipeline.routing.canaries import KEY
from tests.e2e import keyboard
from tests.e2e.browser import Visit, needs_chromium
from tests.gateway.admin.conftest import ACME, OPERATOR
from tests.gateway.admin.console.pages import dialog, open_view, press, row, sign_in

pytestmark = needs_chromium


def test_a_route_is_made_and_its_trial_moves_without_a_reload(
    tab: Visit, operator: httpx2.Client, redis_url: str
) -> None:
    """The evidence grows while somebody looks."""
    page = tab.page
    sign_in(page, OPERATOR, "#/routes")
    keyboard.press(page.get_by_role("button", name="Make a route"))
    dialog(page).get_by_label("Name", exact=True).fill("team/assistant")
    dialog(page).get_by_label("Model or adapter 1").fill("tiny-small")
    dialog(page).get_by_label("Weight 1").fill("9")
    keyboard.press(dialog(page).get_by_role("button", name="One more"))
    dialog(page).get_by_label("Model or adapter 2").fill("small")
    press(page, "Make")
    expect(row(page, "team/assistant")).to_contain_text("tiny-small 90%, small 10%")
    open_view(page, "#/routes/team%2Fassistant", "Route team/assistant")
    trial = row(page, "small")
    expect(trial).to_contain_text("on trial")
    expect(trial).to_contain_text("0 of 0")
    revision = int(operator.get("/routes/team/assistant").headers["etag"].strip('"'))
    counts = {"turns:tiny-small": 900, "turns:small": 100, "error:tiny-small": 5, "error:small": 9}
    with redis.Redis.from_url(redis_url) as client:
        client.hset(KEY.format(route="team/assistant", revision=revision), mapping=counts)
    expect(trial).to_contain_text("9 of 100")
    expect(trial).to_contain_text("of 300")


def test_a_tenants_admin_makes_a_route_of_its_own(tab: Visit, operator: httpx2.Client) -> None:
    """Its name begins with the tenant's; what only operators may set is not there."""
    page = tab.page
    sign_in(page, ACME, "#/routes")
    keyboard.press(page.get_by_role("button", name="Make a route"))
    expect(dialog(page).get_by_label("Name", exact=True)).to_have_value("acme:")
    dialog(page).get_by_label("Name", exact=True).fill("acme:assistant")
    expect(dialog(page).get_by_label("Description")).to_be_visible()
    for label in ("Shadow", "Tenant"):
        expect(dialog(page).get_by_label(label)).to_have_count(0)
    dialog(page).get_by_label("Model or adapter 1").fill("tiny-small")
    press(page, "Make")
    expect(row(page, "acme:assistant")).to_contain_text("tiny-small 100%")
    keyboard.press(page.get_by_role("button", name="Change acme:assistant"))
    dialog(page).get_by_label("Description").fill("Our own")
    press(page, "Change")
    expect(row(page, "acme:assistant")).to_contain_text("Our own")
    assert operator.get("/routes/acme:assistant").json()["tenant"] == "acme"
    open_view(page, "#/routes/acme%3Aassistant", "Route acme:assistant")
