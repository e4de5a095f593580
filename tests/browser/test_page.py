"""The page itself: keyboard, colours, order, staying up to date, and what fits on a screen."""

from __future__ import annotations

import re
import time

import pytest
from page_support import EVIL, LONG, PHONE, World
from playwright.sync_api import expect

from turnback.job.catalog import Replays, SavepointReplay
from turnback.job.status import Lag, RestoreProgress, WatchLimits
from unit.web.web_support import TOKEN, served


def test_tabs_are_walked_with_arrow_keys(look):
    page = look().job("likes")
    page.get_by_role("tab", name="Overview").focus()
    for key, name in [
        ("ArrowRight", "Checkpoints"),
        ("ArrowLeft", "Overview"),
        ("ArrowLeft", "Log"),
        ("Home", "Overview"),
        ("End", "Log"),
    ]:
        page.keyboard.press(key)
        expect(page.get_by_role("tab", selected=True)).to_have_text(name)
        expect(page.get_by_role("tab", name=name)).to_be_focused()
    page.go_back()
    expect(page.get_by_role("tab", selected=True)).to_have_text("Overview")


def test_the_first_tab_stop_skips_to_the_content(look):
    page = look().open()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_colours_follow_the_system_until_they_are_chosen(look):
    page = look(color_scheme="dark").open()

    def brightness() -> int:
        colour = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    assert brightness() < 150
    page.get_by_role("button", name="Colours").click()
    assert brightness() > 600
    page.reload()
    assert brightness() > 600
    page.get_by_role("button", name="Colours").click()
    assert brightness() < 150


def test_numbers_change_without_a_reload_and_nothing_is_lost(look, tmp_path):
    world = World(tmp_path)
    with served(world.jobs, runs_dir=world.runs) as port:
        page = look(f"http://127.0.0.1:{port}").job("likes")
        tile = page.locator(".tile").first
        expect(tile).to_contain_text("1,000 in this attempt")
        node = page.get_by_role("button", name="count")
        node.click()
        node.evaluate("node => { node.kept = true; }")
        world.say(world.likes, world.likes.number, read=4_321)
        expect(tile).to_contain_text("4,321 in this attempt")
        expect(page.locator(".graph-detail")).to_contain_text("4,321")
        expect(node).to_be_focused()
        assert node.evaluate("node => node.kept")


def test_elements_that_were_left_out_are_counted_where_the_function_failed(look):
    page = look().job("likes")
    node = page.get_by_role("button", name="count")
    expect(node).to_contain_text("left out3")
    others = page.locator(".node[data-kind=source] .node-number").filter(has_text="left out")
    expect(others).to_be_hidden()
    node.click()
    detail = page.locator(".graph-detail")
    expect(detail).to_contain_text("Skipped or dead-lettered: function failed3")
    source = page.get_by_role("button", name="events")
    expect(source).to_contain_text("malformed5")
    source.click()
    expect(page.locator(".graph-detail")).to_contain_text(
        "Skipped or dead-lettered: schema mismatch5"
    )


def test_lag_is_told_with_when_it_will_be_gone(look, tmp_path):
    world = World(tmp_path)
    with served(world.jobs, runs_dir=world.runs) as port:
        looker = look(f"http://127.0.0.1:{port}")
        expect(looker.open().locator("tbody tr").filter(has_text="likes")).to_contain_text("12.3 k")
        page = looker.job("likes")
        tile = page.locator(".tile").filter(has_text="Lag")
        expect(tile).to_have_text("Lag12.3 koldest 4 min, caught up in 2 min")
        node = page.locator(".node[data-kind=source]")
        expect(node).to_contain_text("lag12.3 k (4 min)")
        node.click()
        expect(page.locator(".graph-detail")).to_contain_text("shrinking by 100/s")
        for lag, shown in [
            (Lag(records=0, seconds=0.0, catch_up_s=0.0, measured_ms=1), "0caught up"),
            (Lag(records=9, seconds=2.0, change_per_s=1.0, measured_ms=1), "9oldest 2 s"),
            (Lag(records=None, seconds=None, measured_ms=1), "\N{EN DASH}currently unknown"),
            (
                Lag(records=20_000, seconds=7300, change_per_s=3.0, measured_ms=1),
                "20.0 koldest 2 h, not catching up",
            ),
        ]:
            world.say(world.likes, world.likes.number, lag=lag)
            expect(tile).to_have_text(f"Lag{shown}")
        expect(tile).to_have_class("tile is-alarm")
        # a long restore, and one that does not get on
        restore = RestoreProgress(
            what="filling stores", done=0.456, entries=9_000, since_ms=1, moved_ms=1, left_s=200
        )
        world.say(world.likes, world.likes.number, restore=restore)
        tile = page.locator(".tile").filter(has_text="Restoring")
        expect(tile).to_have_text("Restoring45 %about 3 min 20 s left")
        expect(tile).to_have_attribute("title", "filling stores: about 9,000 entries")
        limits = WatchLimits(epoch_ms=1_000)
        world.say(world.likes, world.likes.number, restore=restore, limits=limits)
        expect(page.locator(".job-name .badge")).to_have_text("stalled")
        expect(page.locator(".cause")).to_contain_text("Why: filling stores has been stuck at 45 %")


def test_savepoints_that_cannot_be_replayed_for_long_are_marked(look, tmp_path):
    world, hour = World(tmp_path), 3_600_000
    now = int(time.time() * 1000)
    with served(world.jobs, runs_dir=world.runs) as port:
        page = look(f"http://127.0.0.1:{port}").job("likes", "savepoints")
        row = page.locator("tbody tr").filter(has_text="before-upgrade")
        expect(row).not_to_contain_text("replayable")
        for gone, until, shown in [
            (True, None, "no longer replayable"),
            (False, now + hour, "replayable until about"),
            (False, now - hour, "may not be replayable"),
        ]:
            replay = SavepointReplay(gone=gone, until_ms=until, as_of_ms=now)
            world.likes.directory.record_replays(Replays({"sp1": replay}))
            expect(row.locator(".chip")).to_contain_text(shown)
        later = SavepointReplay(gone=False, until_ms=now + 1000 * hour, as_of_ms=now)
        world.likes.directory.record_replays(Replays({"sp1": later}))
        expect(row.locator(".chip")).to_have_count(0)


def test_a_server_that_goes_away_is_noticed_and_found_again(look):
    looker = look()
    page = looker.open()
    page.context.set_offline(True)
    expect(page.locator(".away")).to_contain_text("Disconnected")
    expect(page.locator("tbody tr")).to_have_count(8)
    page.context.set_offline(False)
    page.get_by_role("button", name="Retry now").click()
    expect(page.locator(".away")).to_be_hidden()
    assert all("DISCONNECTED" in complaint for complaint in looker.complaints)
    looker.complaints.clear()


def test_a_hidden_page_asks_for_nothing(look):
    page = look().open()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_event("request")
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true});"
        "window.away = true"
    )
    for _ in range(20):  # what was under way may take a while to end on a busy machine
        asked.clear()
        page.wait_for_timeout(2_500)
        if not asked:
            break
    assert not asked
    with page.expect_request("**"):
        page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")


def test_paths_are_copied(look):
    looker = look(permissions=["clipboard-read", "clipboard-write"])
    page = looker.open("savepoints")
    page.get_by_role("button", name="Copy the restore command").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "turnback run" in copied
    expect(page.get_by_role("status").filter(has_text="Copied")).to_be_attached()


def test_a_file_that_leads_to_it_logs_in(look, world, tmp_path):
    """As `turnback ui --open` hands it to a browser, also where looking needs the token."""
    with served(world.jobs, runs_dir=world.runs, allowed_hosts=("jobs.example.org",)) as port:
        file = tmp_path / "turnback.html"
        address = f"http://127.0.0.1:{port}/?token={TOKEN}"
        file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
        page = look(token=False).page
        page.goto(file.as_uri())
        expect(page.get_by_role("link", name="likes").first).to_be_visible()
        assert page.url == f"http://127.0.0.1:{port}/"


def test_tables_are_sorted_by_click_and_by_key_and_stay_so(look):
    page = look().open()
    links = page.locator("tbody .job-link")
    head = page.get_by_role("columnheader", name="Job", exact=True)
    as_it_came = links.all_inner_texts()
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    by_name = links.all_inner_texts()
    assert by_name != as_it_came
    assert by_name == sorted(as_it_came, key=str.lower)
    with page.expect_response("**/api/v1/jobs"):  # the page updates itself
        pass
    assert links.all_inner_texts() == by_name
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "descending")
    assert links.all_inner_texts() == by_name[::-1]
    page.keyboard.press("Enter")
    expect(head).not_to_have_attribute("aria-sort", re.compile("."))
    assert links.all_inner_texts() == as_it_came


def test_numbers_are_sorted_as_numbers_and_what_has_none_comes_last(look):
    page = look().open("jobs", "likes", "state", query="?snapshot=chk-2&uid=count&state=total")
    rows = page.get_by_role("table", name="Rows of the state").locator("tbody tr td:last-child")
    expect(rows).to_have_count(50)
    page.get_by_role("columnheader", name="value").get_by_role("button").click()
    values = [int(value.strip('"')) for value in rows.all_inner_texts()]
    assert values == sorted(values) and values[0] < 10 < values[-1]
    page = look(**PHONE).job("likes", "checkpoints")
    last = page.locator(".card", has_text="History").locator("tbody tr").last
    for order in ("Full ↓", "Full ↑"):  # of what has failed there is none
        page.get_by_label("Sort by").last.select_option(label=order)
        expect(last).to_contain_text("disk full")


# Draws tiles with the longest values there are, and tells which of them do not fit.
TILES = """async () => {
  const { showTiles } = await import("/static/parts.js");
  const tiles = document.querySelector(".tiles");
  tiles.replaceChildren();
  const values = ["1", "12.3 k", "23 h 59 min", "59 min ago", "59 min 59 s", "99 KiB", "83 %", "2"];
  const more = "oldest 59 min, gone in 23 h";
  showTiles(tiles, values.map((value, at) => (
    { label: `Tile ${at}`, value, more, picture: at === 0 && document.createElement("p") })));
  return [...tiles.children].filter(tile => {
    const box = tile.getBoundingClientRect();
    return [...tile.querySelectorAll(".tile-value, .tile-more span")].some(part =>
      part.scrollWidth > part.clientWidth + 1 && part.clientWidth > 0
      || part.getBoundingClientRect().right > box.right || part.getClientRects().length > 1);
  }).map(tile => tile.textContent);
}"""
# Paths whose last part is not to be seen.
PATHS = """() => [...document.querySelectorAll(".is-path .cut-end")].filter(end => {
  const [inner, outer] = [end.getBoundingClientRect(), end.parentNode.getBoundingClientRect()];
  return inner.right > outer.right + 1 || inner.height > 30;
}).map(end => end.parentNode.title)"""


def test_nothing_is_cut_off_on_a_laptop(look, world):
    looker = look(viewport={"width": 1366, "height": 768})
    page = looker.job("likes")
    expect(page.locator(".tile").first).to_be_visible()
    link = page.get_by_role("link", name="Spark UI")
    expect(link).to_have_attribute("href", "http://127.0.0.1:4040")
    expect(link).to_have_attribute("target", "_blank")
    expect(link).to_have_attribute("rel", "noopener noreferrer")
    assert page.evaluate(TILES) == []
    for path in ("", "savepoints", f"jobs/{LONG}", "jobs/failing", "jobs/likes/log"):
        page = looker.open(*path.split("/"))
        expect(page.locator(".is-path").first).to_be_visible()
        assert page.evaluate(PATHS) == []
        assert looker.sideways() <= 0
    expect(page.locator(".log-path code")).to_have_attribute("title", str(world.runs / "likes.log"))
    page = looker.job("empty")
    expect(page.get_by_text("-D spark.ui.enabled=true")).to_be_visible()


@pytest.mark.parametrize("name", [EVIL, LONG])
def test_hostile_names_are_text(look, name):
    page = look().open()
    page.get_by_role("link", name=name).click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    assert page.locator("img").count() == 0
