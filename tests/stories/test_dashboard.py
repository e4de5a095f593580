"""The dashboard of a live job, in a real browser: looked at, and its buttons pressed."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from place import Place
from playwright import sync_api

# A job on a busy machine takes its time.
sync_api.expect.set_options(timeout=60_000)


@contextmanager
def dashboard(place: Place) -> Iterator[str]:
    process = place.background("ui", "--port", "0", "--json")
    assert process.stdout is not None
    try:
        text = ""
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, text
            text += line
        yield json.loads(text)["address"]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130)


def test_a_live_job_is_seen_saved_and_cancelled_from_the_dashboard(
    place: Place, chromium: sync_api.Browser
) -> None:
    place.feed()
    place.run("-D", "spark.ui.enabled=true", "-D", "spark.ui.port=0")
    place.await_complete()
    with (
        dashboard(place) as address,
        chromium.new_context(viewport={"width": 1280, "height": 900}) as context,
    ):
        page = context.new_page()
        page.set_default_timeout(60_000)
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        page.get_by_role("link", name="counts").first.click()
        sync_api.expect(page.get_by_text("RUNNING").first).to_be_visible()
        for uid in ("events", "users", "user counts"):
            sync_api.expect(page.get_by_text(uid).first).to_be_visible()
        with context.expect_page() as opened:
            page.get_by_role("link", name="Spark UI").click()
        sync_api.expect(opened.value).to_have_title(re.compile("Spark"))
        opened.value.close()

        page.get_by_role("button", name="Take savepoint").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Label").fill("from-the-page")
        dialog.get_by_role("button", name="Take savepoint").click()
        sync_api.expect(page.locator(".request")).to_contain_text("Savepoint done")
        (taken,) = place.ask("savepoints", "counts")
        assert (taken["label"], taken["exists"]) == ("from-the-page", True)

        place.feed()
        place.await_complete()
        origin = address.partition("/?")[0]
        metrics = httpx.get(f"{origin}/metrics").text
        done = 'flink_jobmanager_job_numberOfCompletedCheckpoints{job_id="'
        assert done in metrics
        page.get_by_role("tab", name="State").click()
        sync_api.expect(page.get_by_role("cell", name="ann").first).to_be_visible()

        page.get_by_role("button", name="Cancel").first.click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Cancel counts").click()
        sync_api.expect(page.get_by_text("CANCELED").first).to_be_visible()
        assert place.ask("status", "counts")["summary"]["state"] == "CANCELED"
        sync_api.expect(page.get_by_role("link", name="Spark UI")).to_have_count(0)

        page.get_by_role("tab", name="Log").click()
        page.get_by_label("Find in the log").fill("IS CANCELED")
        sync_api.expect(page.get_by_text("1 line matches")).to_be_visible()
        page.get_by_role("button", name="Delete", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Delete job").click()
        sync_api.expect(page.get_by_role("dialog", name="counts is deleted")).to_contain_text(
            taken["path"]
        )
        assert place.ask("list") == []
        assert complaints == []
