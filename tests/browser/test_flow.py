"""How much goes through a job, and who holds it back, as people see it."""

from __future__ import annotations

import re
import time

from page_support import DRAWN, World
from playwright.sync_api import expect

from unit.web.web_support import served


def test_the_graph_shows_who_is_busy_uneven_and_holds_others_back(look):
    page = look(viewport={"width": 1366, "height": 768}).job("likes")
    tile = page.locator(".tile").filter(has_text="Busy")
    expect(tile).to_contain_text("83 %busiest: Count")
    node, detail = page.get_by_role("button", name="count"), page.locator(".graph-detail")
    expect(node).to_contain_text("keyed process · busiest")
    expect(node).to_contain_text("busy93 %")
    expect(node).to_contain_text("skew3.1 \N{MULTIPLICATION SIGN}")
    expect(page.locator(".node.is-overloaded")).to_have_count(1)
    assert node.locator(".node-busy > span").evaluate("bar => bar.style.width") == "93%"
    for numbers in page.locator(".node-numbers").all():  # nothing is cut off
        assert numbers.evaluate("node => node.scrollWidth <= node.clientWidth + 1")
        assert numbers.evaluate(
            "node => node.parentNode.scrollHeight <= node.parentNode.clientHeight"
        )
    node.click()
    expect(detail).to_contain_text("Busy93 % of the last minute in its busiest task, 36 % on avera")
    expect(detail).to_contain_text("Skewtask 2 has 3.1 times the mean")
    rows = detail.get_by_role("table", name="Tasks").locator("tbody tr")
    expect(rows).to_have_count(4)
    expect(detail.locator("tr.is-fullest")).to_contain_text("93 %800800")
    page.locator(".node[data-kind=sink]").click()
    expect(detail).to_contain_text("Busy< 1 % of the last minute")
    expect(detail).to_contain_text("Skewonly one task")
    page.locator(".node[data-kind=source]").click()
    expect(detail.get_by_role("table", name="Tasks")).to_be_hidden()
    expect(detail).to_contain_text("its busiest task is busy 93 % of the time")


def test_a_source_shows_its_watermark_beside_its_lag(look):
    page = look().job("likes")
    node, detail = page.locator(".node[data-kind=source]"), page.locator(".graph-detail")
    expect(node).to_contain_text(re.compile(r"watermark\d\d:\d\d:\d\dlag12.3 k \(4 min\)"))
    node.click()
    pairs = detail.locator("dt").all_inner_texts()
    assert pairs.index("Lag") == pairs.index("Watermark") + 1
    expect(detail).to_contain_text(re.compile(r"Watermark20.*\d+ min( \d+ s)? ago"))


def test_throughput_from_before_the_page_was_opened(look, world):
    page = look().job("likes")
    card = page.locator(".throughput")
    expect(card.locator("canvas")).to_have_count(2)  # the second is the lag
    assert card.locator(".legend").evaluate(DRAWN)
    chart, tip = card.locator(".chart"), card.locator(".tip")
    for words, minutes in [("30 min", 29), ("6 h", 299), ("7 d", 299)]:
        button = card.get_by_role("button", name=words)
        with page.expect_response(re.compile(r"throughput\?minutes")):
            button.click()
        expect(button).to_have_attribute("aria-pressed", "true")
        for _ in range(50):  # a chart that is drawn anew meanwhile forgets the key
            chart.focus()
            page.keyboard.press("Home")
            if re.search(r"in1[,.]\d+", tip.text_content() or ""):
                break
            page.wait_for_timeout(100)
        expect(tip).to_contain_text(re.compile(r"in1[,.]\d+"))
        age = page.evaluate(
            "(now) => now - new Date(document.querySelector('.tip-title').textContent)",
            time.time() * 1000,
        )
        assert age >= minutes * 60_000
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    spark = page.locator(".tile .spark-line").get_attribute("d")
    assert spark.count("L") > 20  # the tile's line begins before the page, too
    expect(look().job("empty").locator(".throughput")).to_contain_text("No data yet")


def test_throughput_that_cannot_be_read_hides_nothing_else(look, tmp_path):
    world = World(tmp_path)
    (world.root / "likes" / "throughput.json").write_bytes(b"{")
    with served(world.jobs, runs_dir=world.runs) as port:
        looker = look(f"http://127.0.0.1:{port}")
        page = looker.job("likes")
        expect(page.locator(".throughput")).to_contain_text("throughput.json is damaged")
        expect(page.get_by_role("button", name="count")).to_be_visible()
        assert all("500" in complaint for complaint in looker.complaints), looker.complaints
        looker.complaints.clear()
