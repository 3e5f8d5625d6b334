"""Pools in the console: load, weight and drain of replicas."""

from __future__ import annotations

import httpx2
from playwright.sync_api import Request, Route, expect

from tests.e2e import keyboard
from tests.e2e.browser import Visit, needs_chromium
from tests.gateway.admin.conftest import OPERATOR
from tests.gateway.admin.console.pages import dialog, open_view, press, row, sign_in

pytestmark = needs_chromium

REPLICA = "/pools/small/replicas/small-0"


def test_the_last_replica_is_drained_by_its_name_and_taken_back(tab: Visit, operator: httpx2.Client) -> None:
    """The view follows by itself."""
    page = tab.page
    sign_in(page, OPERATOR)
    open_view(page, "#/pools", "Pools")
    replica = row(page, "small-0")
    expect(replica).to_contain_text("gets turns")
    expect(page.get_by_text("1 of 1 get turns")).to_be_visible()
    keyboard.press(replica.get_by_role("button", name="Drain"))
    expect(dialog(page)).to_contain_text("the last one of its pool")
    dialog(page).get_by_label("Move its turns").check()
    dialog(page).get_by_label("After so many seconds").fill("5")
    expect(dialog(page).get_by_role("button", name="Drain")).to_be_disabled()
    dialog(page).get_by_label("Type small-0 to confirm").fill("small-0")
    press(page, "Drain")
    expect(replica).to_contain_text("drained, turns move after 5.0 s")
    shown = operator.get(REPLICA).json()
    assert (shown["drained"], shown["move_after"], shown["weight"]) == (True, 5.0, 1.0)
    keyboard.press(replica.get_by_role("button", name="Take back"))
    press(page, "Take back")
    expect(replica).to_contain_text("gets turns")


def test_a_slow_answer_is_waited_for(tab: Visit) -> None:
    """However long the server takes: it is asked again after it has answered."""
    page = tab.page
    page.clock.install()
    sign_in(page, OPERATOR)
    open_view(page, "#/pools", "Pools")
    held: list[Route] = []
    given_up: list[Request] = []
    page.route("**/admin/v1/pools", lambda route: held.append(route))
    page.on("requestfailed", lambda request: given_up.append(request))
    with page.expect_request("**/admin/v1/pools"):
        page.clock.run_for(2_000)
    page.clock.run_for(10_000)
    assert (len(held), given_up) == (1, [])
    held[0].fulfill(json={"data": []})
    expect(page.get_by_text("There is no pool.")).to_be_visible()


def test_a_weight_that_somebody_else_has_changed_is_not_overwritten(tab: Visit, operator: httpx2.Client) -> None:
    page = tab.page
    sign_in(page, OPERATOR)
    open_view(page, "#/pools", "Pools")
    keyboard.press(row(page, "small-0").get_by_role("button", name="Weigh"))
    dialog(page).get_by_label("Weight").fill("3")
    operator.patch(REPLICA, json={"weight": 2}, headers={"if-match": "*"}).raise_for_status()
    press(page, "Set")
    expect(dialog(page).get_by_role("row").filter(has_text="weight")).to_contain_text("2")
    assert operator.get(REPLICA).json()["weight"] == 2
    press(page, "Replace theirs by mine")
    expect(dialog(page)).to_have_count(0)
    assert operator.get(REPLICA).json()["weight"] == 3
