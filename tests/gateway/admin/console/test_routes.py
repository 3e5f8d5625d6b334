"""Routes in the console: shares, and what is on trial."""

from __future__ import annotations

import httpx2
import redis
from playwright.sync_api import expect

from gateway.pipeline.routing.canaries import KEY
from tests.e2e.browser import Visit, needs_chromium
from tests.gateway.admin.conftest import OPERATOR
from tests.gateway.admin.console.pages import dialog, open_view, press, row, sign_in

pytestmark = needs_chromium


def test_a_route_is_made_and_its_trial_moves_without_a_reload(
    tab: Visit, operator: httpx2.Client, redis_url: str
) -> None:
    """The evidence grows while somebody looks."""
    page = tab.page
    sign_in(page, OPERATOR, "#/routes")
    page.get_by_role("button", name="Make a route").click()
    dialog(page).get_by_label("Name", exact=True).fill("team/assistant")
    dialog(page).get_by_label("Model or adapter 1").fill("tiny-small")
    dialog(page).get_by_label("Weight 1").fill("9")
    dialog(page).get_by_role("button", name="One more").click()
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
