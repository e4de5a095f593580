"""Every view, as people see it."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
from page_support import BIG, DRAWN, EVIL, LONG, PHONE, TABS
from playwright.sync_api import expect

from fake_job import FakeJob, done, schema
from tiers import with_examples
from turnback.job.history import History
from turnback.values.typeinfo import Types
from turnback.views.jobs import Jobs
from unit.web.web_support import served

SHOWN = {
    "overview": ".node[data-kind=sink]",
    "checkpoints": ".chart canvas",
    "savepoints": "text=before-upgrade",
    "state": ".value",
    "diff": ".diff-count.is-added",
    "timeline": ".bar.is-good",
    "configuration": "text=state.backend.type",
    "exceptions": ".failure-item",
    "log": ".log",
}


def test_jobs_are_listed_with_those_in_trouble_first(look):
    page = look().open()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(8)
    assert set(rows.locator(".job-link").all_inner_texts()[:3]) == {"broken", "failing", "gone"}
    failing = rows.filter(has_text="failing")
    expect(failing).to_contain_text("failed")
    expect(failing).to_contain_text("RuntimeError: boom")
    expect(rows.filter(has_text="gone")).to_contain_text("lost")
    expect(rows.filter(has_text="broken")).to_contain_text("unreadable")


def test_jobs_are_filtered_by_words_and_by_state(look):
    page = look().open()
    page.keyboard.press("/")
    page.keyboard.type("lik")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Filter jobs").fill("no such job")
    expect(page.get_by_text("No job matches.")).to_be_visible()
    page.get_by_label("Filter jobs").fill("")
    page.get_by_role("button", name="canceled 1").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="fork").click()
    expect(page.get_by_role("heading", name="fork")).to_be_visible()


@pytest.mark.parametrize("tab", with_examples(TABS, TABS[:3]))
def test_every_tab_shows_its_part_also_after_a_reload(look, tab):
    page = look().job("likes", tab)
    for _ in range(2):
        expect(page.locator(SHOWN[tab]).first).to_be_visible()
        expect(page.get_by_role("tab", selected=True)).to_have_text(tab.title())
        page.reload()


@pytest.mark.parametrize(
    "tab", with_examples([tab for tab in TABS if tab != "log"], ("checkpoints",))
)
def test_a_job_that_has_nothing_says_so(look, tab):
    page = look().job("empty", tab)
    expect(page.get_by_role("heading", name="empty")).to_be_visible()
    expect(page.locator(".panel .empty").first).to_be_visible()


def test_all_savepoints_are_on_one_page(look):
    page = look().open("savepoints")
    row = page.locator("tbody tr")
    expect(row).to_contain_text("turnback run")
    expect(row.get_by_role("link", name="likes")).to_be_visible()


def test_the_graph_tells_of_an_operator_when_it_is_chosen(look):
    page = look().job("likes")
    page.get_by_role("button", name="count").click()
    detail = page.locator(".graph-detail")
    expect(detail).to_contain_text("user")
    expect(detail).to_contain_text("2,048 bytes")
    expect(page.locator(".edge.is-keyed")).to_have_count(1)


def test_totals_say_how_many_checkpoints_are_listed(look, tmp_path):
    """A job that has taken more than its history lists; its lists count from 0."""
    seen = schema("seen", "list", Types.STRING())
    taken = FakeJob(str(tmp_path), "old")
    taken.attempt()
    taken.checkpoint((seen, {"ann": ["x", "y", "z"]}))
    history = History(taken.storage, taken.number, taken.clock)
    for number in range(1, 9_001):
        history.add(done(number, number))
        if number % 500 == 0:
            history.flush()
    with served(Jobs(str(tmp_path))) as port:
        looker = look(f"http://127.0.0.1:{port}")
        page = looker.job("old", "checkpoints")
        tile = page.locator(".tile").filter(has_text="Completed")
        expect(tile).to_contain_text(re.compile(r"9,00\d"))
        expect(tile).to_contain_text("the newest 1,000 are listed below")
        page = looker.job("old", "state")
        expect(page.locator("tbody tr").first).to_contain_text("ann")
        positions = page.locator("tbody tr td:nth-child(2)").all_inner_texts()
        assert positions == ["0", "1", "2"]


def test_checkpoints_are_counted_drawn_and_listed(look):
    page = look().job("likes", "checkpoints")
    failed = page.locator("tr.has-failed")
    expect(failed).to_contain_text("disk full")
    expect(page.get_by_role("table", name="Summary of the completed checkpoints")).to_contain_text(
        "p99"
    )
    chart = page.locator(".chart").first
    tip = chart.locator(".tip")
    chart.focus()
    page.keyboard.press("Home")
    expect(tip).to_contain_text("chk-2")
    expect(tip).to_contain_text("sync40 ms")
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    page.mouse.move(0, 0)
    chart.locator(".u-over").hover(position={"x": 70, "y": 60})
    expect(tip).to_contain_text("disk full")
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()


def test_charts_are_drawn_in_the_colours_of_their_legends(look):
    page = look(color_scheme="light").job("likes", "checkpoints")
    expect(page.locator(".chart canvas")).to_have_count(3)
    for _ in ("as the system", "light", "dark"):
        for legend in page.locator(".legend").all():
            assert legend.evaluate(DRAWN)
        page.get_by_role("button", name="Colours").click()


# Draws a graph with edges past several operators, an unknown input and an odd uid.
GRAPH = """async () => {
  const inputs = {
    clicks: [], users: ["gone"], clean: ["clicks"], fraud: ["clean"], sessions: ["clean"],
    enrich: ["sessions", "users"], totals: ["enrich"], alerts: ["fraud"], constructor: ["clicks"],
    warehouse: ["totals", "clean"],
  };
  const operators = Object.entries(inputs).map(([uid, from]) => (
    { uid, inputs: from, name: uid, kind: "map", key: null, states: [], level: 0,
      parallelism: 1, records_in: 1, records_out: 1, state_bytes: null, watermark_ms: null,
      lag: null }));
  const { graph } = await import("/static/graph.js");
  const drawn = graph();
  document.querySelector("main").replaceChildren(drawn.node);
  drawn.show(operators);
  const box = node => { const { x, y, right, bottom } = node.getBoundingClientRect();
    return { x, y, right, bottom }; };
  return {
    nodes: [...drawn.node.querySelectorAll(".node")].map(box),
    edges: [...drawn.node.querySelectorAll(".edge")].map(box),
    picture: box(drawn.node.querySelector(".graph-lines")),
  };
}"""


@pytest.mark.parametrize("width", [1280, 400])
def test_a_graph_is_laid_out_without_overlaps_and_nothing_is_cut_off(look, width):
    page = look(viewport={"width": width, "height": 800}).open()
    drawn = page.evaluate(GRAPH)
    nodes, picture = drawn["nodes"], drawn["picture"]
    assert (len(nodes), len(drawn["edges"])) == (10, 10)
    for box in [*nodes, *drawn["edges"]]:
        assert box["x"] >= picture["x"] and box["right"] <= picture["right"]
        assert box["y"] >= picture["y"] and box["bottom"] <= picture["bottom"]
    for a, b in combinations(nodes, 2):
        beside = a["right"] < b["x"] or b["right"] < a["x"]
        assert beside or a["bottom"] < b["y"] or b["bottom"] < a["y"]


def test_state_is_paged_filtered_and_exact(look):
    looker = look()
    page = looker.open("jobs", "likes", "state", query="?snapshot=chk-2&uid=count&state=total")
    rows = page.get_by_role("table", name="Rows of the state").locator("tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="Load more").click()
    expect(rows).to_have_count(100)
    page.get_by_label("Key", exact=True).fill("big")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text(str(BIG))
    page.reload()
    expect(rows).to_contain_text(str(BIG))
    page.get_by_role("link", name="Compare with").click()
    expect(page).to_have_url(re.compile("/diff"))


def test_a_snapshot_that_is_gone_is_answered_in_words(look):
    looker = look()
    page = looker.open("jobs", "likes", "state", query="?snapshot=chk-999")
    expect(page.locator(".failure")).to_contain_text("chk-999")
    page.get_by_role("button", name="Try again").click()  # with the newest in its place
    expect(page.get_by_role("table", name="Rows of the state")).to_be_visible()
    looker.open("jobs", "likes", "diff", query="?from=chk-2&to=chk-999")
    expect(page.locator(".failure")).to_contain_text("chk-999")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".diff-counts")).to_contain_text("changed")
    assert all("404" in complaint for complaint in looker.complaints), looker.complaints
    looker.complaints.clear()


def test_differences_are_shown_side_by_side(look):
    page = look().open("jobs", "likes", "diff", query="?from=chk-2&to=chk-3&uid=count&state=total")
    changed = page.locator("tr.is-changed")
    expect(changed).to_contain_text("user-007")
    expect(changed).to_contain_text("700")
    expect(page.locator("tr.is-added")).to_contain_text("zoe")
    expect(page.locator(".diff-count.is-changed")).to_contain_text("± 1 changed")


def test_the_timeline_shows_where_a_fork_came_from(look):
    page = look().job("likes", "timeline")
    expect(page.locator(".lane")).to_have_count(2)
    expect(page.locator(".link-line.is-savepoint").first).to_be_attached()
    page.locator(".diamond").first.focus()
    expect(page.locator(".timeline .tip")).to_contain_text("before-upgrade")
    wide = page.locator(".bar rect").first.bounding_box()["width"]
    page.get_by_role("button", name="Zoom in").click()
    assert page.locator(".bar rect").first.bounding_box()["width"] > wide
    page.get_by_role("button", name="All", exact=True).click()


def test_configuration_is_filtered(look):
    page = look().job("likes", "configuration")
    page.get_by_label("Filter configuration").fill("spark.x")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("-D")


def test_a_failed_job_says_why_and_how_to_go_on(look):
    page = look().job("failing")
    expect(page.locator(".cause")).to_contain_text("RuntimeError: boom")
    expect(page.locator(".reason")).to_contain_text("failed")
    page.get_by_role("tab", name="Exceptions").click()
    page.locator(".failure-item summary").click()
    expect(page.locator(".cause-text")).to_contain_text("at frame 8")


def test_the_log_is_searched_and_downloaded(look, world):
    page = look().job("likes", "log")
    body, count = page.locator(".log"), page.get_by_role("status").filter(has_text="line")
    expect(count).to_contain_text("The last 3 lines")
    page.get_by_label("Find in the log").fill("LINE")
    expect(count).to_have_text("1 line matches")
    expect(body).to_have_text("a line")
    expect(body.locator("mark")).to_have_text("line")
    page.get_by_label("Level").select_option("ERROR")
    expect(count).to_have_text("No line matches")
    page.get_by_label("Find in the log").fill("")
    expect(body).to_have_text(re.compile(r"^2026.*no disk\s*$"))
    expect(body.locator(".log-line.is-bad")).to_have_count(1)
    log = world.runs / "likes.log"
    before = log.read_text()
    log.write_text(f"{before}ERROR: one more\n")  # found without asking again
    expect(count).to_have_text("2 lines match")
    log.write_text(before)  # begun anew
    expect(count).to_have_text("1 line matches")
    with page.expect_download() as loading:
        page.get_by_role("link", name="Download").click()
    assert loading.value.suggested_filename == "likes.log"
    assert loading.value.path().read_text() == before


def test_an_unknown_job_and_an_unknown_page_are_answered(look):
    looker = look()
    page = looker.open("jobs", "lykes")
    expect(page.get_by_role("alert")).to_contain_text("lykes")
    page = looker.open("jobs", "likes", "nonsense")
    expect(page.get_by_text("Page not found.")).to_be_visible()
    assert all("404" in complaint for complaint in looker.complaints), looker.complaints
    looker.complaints.clear()


@pytest.mark.parametrize("tab", TABS)
def test_hostile_values_are_text(look, tab):
    page = look().job("likes", tab)
    expect(page.locator(SHOWN[tab]).first).to_be_visible()
    if tab in ("overview", "checkpoints", "state", "configuration", "exceptions", "log"):
        expect(page.get_by_text(EVIL).first).to_be_attached()
    assert page.locator("img").count() == 0


@pytest.mark.parametrize("name", ["likes", LONG])
def test_nothing_is_wider_than_a_phone(look, name):
    looker = look(**PHONE)
    looker.open()
    assert looker.sideways() <= 0
    looker.open("savepoints")
    assert looker.sideways() <= 0
    for tab in TABS if name == "likes" else ("overview", "timeline"):
        page = looker.job(name, tab)
        if name == "likes":
            expect(page.locator(SHOWN[tab]).first).to_be_attached()
        assert looker.sideways() <= 0, tab
