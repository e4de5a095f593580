"""Savepoint, stop and cancel, pressed in a browser; the test plays the driver."""

from __future__ import annotations

import shutil
import time

import httpx
import pytest
from page_support import EVIL, Driving, World
from playwright.sync_api import expect

from turnback.job.request import RequestKind, RequestOutcome, RequestProgress, RequestState
from turnback.job.status import JobState
from unit.web.web_support import TOKEN, served


@pytest.fixture
def own(tmp_path):
    return World(tmp_path)


@pytest.fixture
def driver(own):
    return Driving(own.likes)


@pytest.fixture
def base(own):
    with served(own.jobs, runs_dir=own.runs) as port:
        yield f"http://127.0.0.1:{port}"


def test_a_savepoint_is_asked_for_followed_and_found(look, base, driver):
    page = look(base).job("likes")
    page.get_by_role("button", name="Take savepoint").click()
    dialog = page.get_by_role("dialog")
    label = EVIL.replace(" ", "/")
    dialog.get_by_label("Label").fill(label)
    dialog.get_by_label("Note").fill(EVIL)
    dialog.get_by_role("button", name="Take savepoint").click()
    request = driver.asked()
    assert (request.kind, request.label, request.note) == (
        RequestKind.SAVEPOINT,
        label,
        EVIL,
    )
    row = page.locator(".request")
    expect(row).to_contain_text("requested")
    driver.requests.report(request.id, RequestProgress(3, 8, 5_000_000, int(time.time() * 1000)))
    expect(row).to_contain_text("3 of 8 parts")
    expect(row).to_contain_text("4.77 MiB")
    assert row.locator("progress").evaluate("bar => bar.value") == 3 / 8
    page.get_by_role("tab", name="Savepoints").click()
    expect(row).to_contain_text("3 of 8 parts")
    driver.requests.finish(
        request.id, RequestOutcome(RequestState.COMPLETED, path="/saved/here", checkpoint=3)
    )
    expect(row).to_contain_text("Savepoint done")
    expect(row.locator("code")).to_have_text("/saved/here")
    row.get_by_role("button", name="Dismiss").click()
    expect(row).to_have_count(0)


def test_a_failed_savepoint_says_why(look, base, driver):
    page = look(base).job("likes")
    page.get_by_role("button", name="Take savepoint").click()
    page.get_by_role("dialog").get_by_role("button", name="Take savepoint").click()
    driver.requests.finish(
        driver.asked().id, RequestOutcome(RequestState.FAILED, error=f"disk full {EVIL}")
    )
    expect(page.locator(".request")).to_contain_text(f"disk full {EVIL}")


def test_stop_takes_a_savepoint_and_drains_if_asked(look, base, driver):
    page = look(base).job("likes")
    page.get_by_role("button", name="Stop with savepoint").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Drain first").check()
    dialog.get_by_role("button", name="Stop with savepoint").click()
    request = driver.asked()
    assert (request.kind, request.savepoint, request.drain) == (RequestKind.STOP, True, True)


def test_cancel_is_only_asked_for_when_it_is_confirmed(look, base, driver):
    page = look(base).job("likes")
    button = page.get_by_role("button", name="Cancel", exact=True)
    button.click()
    dialog = page.get_by_role("dialog", name="Cancel likes?")
    expect(dialog).to_be_visible()
    expect(dialog.get_by_role("button", name="Keep it running")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(button).to_be_focused()
    button.click()
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    assert driver.nothing()
    button.click()
    dialog.get_by_label("Take a savepoint first").check()
    dialog.get_by_role("button", name="Cancel likes").click()
    request = driver.asked()
    assert (request.kind, request.savepoint) == (RequestKind.CANCEL, True)


def test_focus_stays_in_a_dialog(look, base):
    page = look(base).job("likes")
    page.get_by_role("button", name="Take savepoint").click()
    # Past the last field comes the browser itself, for the page its body.
    inside = "document.activeElement.tagName === 'BODY'"
    inside += " || document.activeElement.closest('dialog') !== null"
    for _ in range(12):
        page.keyboard.press("Tab")
        assert page.evaluate(inside)


def test_what_the_server_refuses_is_said_in_the_dialog(look, base, driver):
    looker = look(base)
    page = looker.job("likes")
    page.get_by_role("button", name="Take savepoint").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Label").fill("a\u2028b")
    dialog.get_by_role("button", name="Take savepoint").click()
    expect(dialog.get_by_role("alert")).to_contain_text("not printable")
    assert driver.nothing()
    assert all("400" in complaint for complaint in looker.complaints), looker.complaints
    looker.complaints.clear()


def test_without_a_token_the_buttons_wait_for_one(look, base, driver):
    page = look(base, token=False).job("likes")
    button = page.get_by_role("button", name="Take savepoint")
    expect(button).to_have_attribute("aria-disabled", "true")
    expect(page.locator(".reason")).to_contain_text("token")
    button.click(force=True)
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Enter token").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Token").fill("wrong")
    dialog.get_by_role("button", name="Use token").click()
    expect(dialog.get_by_role("alert")).to_contain_text("is not valid")
    dialog.get_by_label("Token").fill(TOKEN)
    dialog.get_by_role("button", name="Use token").click()
    expect(button).not_to_have_attribute("aria-disabled", "true")
    button.click()
    dialog.get_by_role("button", name="Take savepoint").click()
    assert driver.asked().kind is RequestKind.SAVEPOINT


def test_a_read_only_dashboard_has_no_working_buttons(look, own, driver):
    with served(own.jobs, read_only=True) as port:
        page = look(f"http://127.0.0.1:{port}").job("likes")
        for name in ("Take savepoint", "Stop with savepoint", "Cancel"):
            button = page.get_by_role("button", name=name, exact=True)
            expect(button).to_have_attribute("aria-disabled", "true")
            button.click(force=True)
        expect(page.locator(".reason")).to_have_text("This dashboard is read-only.")
        expect(page.get_by_role("button", name="Enter token")).to_be_hidden()
        expect(page.get_by_role("dialog")).to_have_count(0)
    assert driver.nothing()


def test_a_job_that_is_over_has_no_working_buttons(look, base):
    page = look(base).job("failing")
    expect(page.get_by_role("button", name="Cancel")).to_have_attribute("aria-disabled", "true")
    expect(page.locator(".reason")).to_contain_text("takes no requests")


def test_a_job_that_is_over_is_deleted_when_that_is_confirmed(look, base, own):
    shutil.rmtree(own.root / "broken")
    looker = look(base)
    page = looker.job("likes")
    expect(page.get_by_role("button", name="Delete", exact=True)).to_be_hidden()
    own.likes.directory.write_status(JobState.CANCELED, own.likes.info.job_id)
    button = page.get_by_role("button", name="Delete", exact=True)
    button.click()
    dialog = page.get_by_role("dialog", name="Permanently delete likes?")
    expect(dialog).to_contain_text("its 1 savepoint too")
    page.keyboard.press("Enter")  # on the button that keeps it
    expect(dialog).to_have_count(0)
    assert (own.root / "likes").is_dir()
    button.click()
    dialog.get_by_role("button", name="Delete job").click()
    kept = page.get_by_role("dialog", name="likes is deleted")
    expect(kept.locator("code")).to_have_text(str(own.saved / "one"))
    kept.get_by_role("button", name="Close").click()
    expect(page.get_by_role("link", name="failing")).to_be_visible()
    expect(page.get_by_role("link", name="likes", exact=True)).to_have_count(0)
    assert not (own.root / "likes").exists() and (own.saved / "one").is_dir()
    # The page may have asked for the job once more before it was told.
    assert all("404" in complaint for complaint in looker.complaints), looker.complaints
    looker.complaints.clear()


def test_a_savepoint_is_deleted_unless_a_job_needs_it(look, base, own):
    looker = look(base)
    page = looker.open("savepoints")
    page.get_by_role("button", name="Delete savepoint before-upgrade").click()
    dialog = page.get_by_role("dialog", name="Permanently delete savepoint before-upgrade?")
    dialog.get_by_role("button", name="Delete savepoint").click()
    expect(dialog.get_by_role("alert")).to_contain_text("unknown whether job 'broken' needs")
    assert any("400" in complaint for complaint in looker.complaints)
    looker.complaints.clear()
    shutil.rmtree(own.root / "broken")
    shutil.rmtree(own.root / "fork")
    dialog.get_by_role("button", name="Delete savepoint").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_text("No savepoint yet.")).to_be_visible()
    assert not (own.saved / "one" / "_metadata.json").exists()


def test_below_a_path_of_a_proxy_the_page_finds_its_files(own):
    """The proxy strips the path; what the page asks for must carry it."""
    with served(own.jobs, root_path="/turnback") as port:
        index = httpx.get(f"http://127.0.0.1:{port}/jobs/likes").text
    assert "/turnback/static/app.js" in index
    assert '"/static/' not in index
