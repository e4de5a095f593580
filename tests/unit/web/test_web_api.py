import asyncio
import logging
from urllib.parse import quote

import msgspec
import pytest
from web_support import BEARER, TOKEN, Browser

from turnback.job.request import (
    RequestKind,
    RequestOutcome,
    RequestProgress,
    RequestSpec,
    RequestState,
)
from turnback.job.requests import Requests
from turnback.job.throughput import ThroughputLog
from turnback.views.model import JobDetail, RequestRow
from turnback.web import api
from turnback.web.api import JSON, ErrorAnswer
from turnback.web.server import ENDPOINTS

TEAM = quote("team/a job", safe="")


def error(response) -> tuple[int, str]:
    return response.status_code, msgspec.json.decode(response.content, type=ErrorAnswer).error.kind


def test_every_read_answers_with_what_it_says(world, browser):
    request = Requests(world.likes.storage).submit(RequestSpec(RequestKind.SAVEPOINT))
    last = f"chk-{world.numbers[-1]}"
    values = {"job": "likes", "request": request.id, "snapshot": last}
    query = {
        "snapshot": last,
        "from": f"chk-{world.numbers[0]}",
        "to": last,
        "uid": "count",
        "state": "total",
        "key": "ann",
    }
    for endpoint in ENDPOINTS:
        if endpoint.method == "GET":
            path = endpoint.path.format(**values)
            wanted = {p.name: query[p.name] for p in endpoint.query if p.name in query}
            response = browser.api(path, params=wanted)
            assert response.status_code == 200, (path, response.text)
            assert response.headers["content-type"] == endpoint.media
            assert response.headers["cache-control"] == "no-store"
            if endpoint.media == JSON:
                msgspec.json.decode(response.content, type=endpoint.answer)


def test_jobs_are_listed_and_one_that_cannot_be_read_hides_no_other(browser):
    rows = {row["name"]: row["state"] for row in browser.api("/jobs").json()}
    assert rows == {"broken": "UNREADABLE", "likes": "RUNNING", "team/a job": "FAILED"}


def test_about(world):
    browser = world.browser(savepoints_dir="/save")
    about = browser.api("/about").json()
    assert about["root"] == str(world.root)
    assert about["savepoints_dir"] == "/save"
    assert (about["read_only"], about["authorized"], about["needs_token"]) == (False, False, False)
    assert browser.api("/about", headers=BEARER).json()["authorized"] is True
    assert world.browser(read_only=True).api("/about").json()["read_only"] is True


def test_a_job_with_a_slash_in_its_name(browser):
    detail = msgspec.json.decode(browser.api(f"/jobs/{TEAM}").content, type=JobDetail)
    assert detail.summary.name == "team/a job"
    assert browser.api(f"/jobs/{TEAM}/exceptions").json()[0]["cause"] == "boom"


def test_configuration_says_what_each_key_does(browser):
    rows = {row["key"]: row for row in browser.api("/jobs/likes/configuration").json()}
    assert "rocksdb" in rows["state.backend.type"]["doc"]
    assert rows["state.backend.type"]["origin"] == "code"
    assert rows["spark.x"]["doc"] == ""


def test_snapshots_newest_first(world, browser):
    rows = browser.api("/jobs/likes/snapshots").json()
    first, last = world.numbers
    assert [row["id"] for row in rows] == ["sp1", f"chk-{last}", f"chk-{first}"]
    assert [row["label"] for row in rows] == ["nice", None, None]
    assert [row["checkpoint"] for row in rows] == [last, last, first]


def test_a_savepoint_that_is_gone_is_no_snapshot_any_more(world, browser):
    (world.base / "saved" / "one" / "_metadata.json").unlink()
    assert "sp1" not in [row["id"] for row in browser.api("/jobs/likes/snapshots").json()]


@pytest.mark.parametrize("name", ["latest", "sp1"])
def test_a_snapshot_by_name(browser, name):
    view = browser.api(f"/jobs/likes/snapshots/{name}").json()
    assert view["job"] == "likes"
    assert view["states"][0]["name"] == "total"


def test_state_is_paged_and_found_by_key(browser):
    query = {"snapshot": "latest", "uid": "count", "state": "total", "limit": 2}
    first = browser.api("/jobs/likes/state", params=query).json()
    assert len(first["rows"]) == 2
    rest = browser.api("/jobs/likes/state", params={**query, "after": first["next"]}).json()
    assert dict(map(tuple, first["rows"] + rest["rows"])) == {"ann": 1, "bob": 3, "cy": 4}
    one = browser.api("/jobs/likes/state", params={**query, "key": "bob"}).json()
    assert one["rows"] == [["bob", 3]]


def test_one_key_of_the_newest_checkpoint(browser):
    query = {"uid": "count", "state": "total"}
    one = browser.api("/jobs/likes/key", params={**query, "key": "bob"}).json()
    assert (one["found"], one["rows"], one["columns"], one["next"]) == (
        True,
        [[3]],
        ["value"],
        None,
    )
    assert (one["epoch"], one["snapshot"][:4]) == (2, "chk-")
    none = browser.api("/jobs/likes/key", params={**query, "key": "dan"}).json()
    assert (none["found"], none["rows"]) == (False, [])


def test_differences(world, browser):
    query = {"from": f"chk-{world.numbers[0]}", "to": f"chk-{world.numbers[1]}"}
    assert browser.api("/jobs/likes/diff", params=query).json()[0]["name"] == "total"
    query |= {"uid": "count", "state": "total"}
    page = browser.api("/jobs/likes/diff/state", params=query).json()
    assert {(row["change"], row["key"]) for row in page["rows"]} == {
        ("changed", "bob"),
        ("added", "cy"),
    }


def test_a_request_is_followed(world, browser):
    response = browser.post("/jobs/likes/savepoint", {"label": "before-lunch", "note": "why"})
    assert response.status_code == 202
    row = msgspec.json.decode(response.content, type=RequestRow)
    assert (row.kind, row.state) == ("savepoint", "WAITING")
    driver = Requests(world.likes.storage)
    (asked,) = driver.open()
    assert (asked.id, asked.label, asked.note, asked.target) == (
        row.id,
        "before-lunch",
        "why",
        None,
    )
    driver.report(row.id, RequestProgress(1, 4, 100, 5))
    now = browser.api(f"/jobs/likes/requests/{row.id}").json()
    assert (now["state"], now["done"], now["total"], now["bytes"]) == ("RUNNING", 1, 4, 100)
    driver.finish(row.id, RequestOutcome(RequestState.COMPLETED, path="/saved/x"))
    assert browser.api("/jobs/likes/requests").json()[0]["path"] == "/saved/x"


@pytest.mark.parametrize(
    ("action", "body", "savepoint", "drain"),
    [
        ("stop", {}, False, False),
        ("stop", {"savepoint": True, "drain": True}, True, True),
        ("stop", {"savepoint": False}, False, False),
        ("cancel", {}, False, False),
        ("cancel", {"savepoint": True}, True, False),
    ],
)
def test_stop_and_cancel(world, browser, action, body, savepoint, drain):
    assert browser.post(f"/jobs/likes/{action}", body).status_code == 202
    (asked,) = Requests(world.likes.storage).open()
    assert (asked.kind, asked.savepoint, asked.drain) == (action, savepoint, drain)


def test_an_empty_body_is_as_good_as_none(world, browser):
    headers = {**BEARER, "Content-Type": "application/json"}
    response = browser.request("POST", "/api/v1/jobs/likes/cancel", headers=headers)
    assert response.status_code == 202


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/jobs/like", (404, "JobNotFoundError")),
        ("/jobs/likes/requests/1700000000000-aaaaaaaaaaaa", (404, "NotFoundError")),
        ("/jobs/likes/snapshots/chk-99999", (404, "CheckpointNotFoundError")),
        ("/jobs/likes/snapshots/nobody", (404, "NotFound")),
        ("/jobs/likes/state?uid=a&state=b", (400, "BadRequest")),
        ("/jobs/likes/key?uid=count&state=total", (400, "BadRequest")),
        ("/jobs/likes/key?uid=count&state=totl&key=a", (400, "StateError")),
        ("/jobs/likes/key?uid=count&state=total&key=a&after=b", (400, "ConfigurationError")),
        ("/jobs/nobody/key?uid=count&state=total&key=a", (404, "JobNotFoundError")),
        ("/jobs/likes/state?snapshot=latest&uid=a&state=b&limit=0", (400, "BadRequest")),
        ("/jobs/likes/state?snapshot=latest&uid=a&state=b&limit=1e3", (400, "BadRequest")),
        ("/jobs/likes/state?snapshot=latest&uid=a&state=b&limit=99999", (400, "BadRequest")),
        ("/jobs/likes/throughput?minutes=0", (400, "BadRequest")),
        ("/jobs/likes/throughput?minutes=10081", (400, "BadRequest")),
        ("/jobs/likes/log?lines=-1", (400, "BadRequest")),
        ("/jobs/likes/log?lines=1&lines=2", (400, "BadRequest")),
        ("/jobs?colour=red", (400, "BadRequest")),
        (f"/jobs?token={TOKEN}", (400, "BadRequest")),
        ("/jobs/broken/checkpoints/", (404, "NotFound")),
        ("/nothing", (404, "NotFound")),
        ("/jobs/", (404, "NotFound")),
        ("/jobs/%ff", (400, "BadRequest")),
        (f"/jobs/{'x' * 201}", (400, "BadRequest")),
    ],
)
def test_wrong_calls_say_what_is_wrong(browser, path, wanted):
    assert error(browser.api(path)) == wanted


@pytest.mark.parametrize(
    "query",
    [
        "uid=nobody&state=total",
        "uid=count&state=nothing",
        "uid=count&state=total&after=garbage",
    ],
)
def test_a_state_that_is_not_there_or_a_wrong_cursor_is_the_callers_mistake(browser, query):
    response = browser.api(f"/jobs/likes/state?snapshot=latest&{query}")
    assert response.status_code in (400, 404), response.text


def test_a_job_that_does_not_run_takes_no_requests(world, browser):
    assert error(browser.post(f"/jobs/{TEAM}/cancel")) == (409, "JobNotRunningError")
    assert world.asked() == []


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b'{"label": 5}',
        b'{"directory": "/etc"}',
        b'{"target": "/etc"}',
        b'{"format": "zip"}',
        b'{"label": "\\u0000"}',
        b'{"label": ""}',
        b"\xff",
    ],
)
def test_bodies_that_cannot_be_used(world, browser, body):
    headers = {**BEARER, "Content-Type": "application/json"}
    path = "/api/v1/jobs/likes/savepoint"
    response = browser.request("POST", path, content=body, headers=headers)
    assert response.status_code == 400, response.text
    assert world.asked() == []


def test_a_contradiction_is_refused(world, browser):
    assert browser.post("/jobs/likes/cancel", {"drain": True}).status_code == 400
    assert world.asked() == []


def test_a_body_that_is_too_long_is_refused_with_and_without_its_length(world, browser):
    assert error(browser.post("/jobs/likes/savepoint", {"note": "x" * 70_000})) == (413, "TooLarge")

    async def chunks():
        for _ in range(70):
            yield b" " * 1024

    headers = {**BEARER, "Content-Type": "application/json"}
    path = "/api/v1/jobs/likes/savepoint"
    response = browser.request("POST", path, content=chunks(), headers=headers)
    assert error(response) == (413, "TooLarge")
    assert world.asked() == []


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "POST"])
def test_other_methods_are_not_allowed(browser, method):
    headers = {**BEARER, "Content-Type": "application/json"}
    response = browser.request(method, "/api/v1/jobs", headers=headers)
    assert error(response) == (405, "MethodNotAllowed")
    assert "GET" in response.headers["allow"]
    assert "access-control-allow-origin" not in response.headers


def test_a_read_cannot_change_anything(world, browser):
    assert error(browser.api("/jobs/likes/cancel", headers=BEARER)) == (405, "MethodNotAllowed")
    assert world.asked() == []


def test_head(browser):
    response = browser.request("HEAD", "/api/v1/jobs")
    assert response.status_code == 200


def test_a_damaged_file_is_named_and_logged(world, browser, caplog):
    (world.root / "likes" / "status.json").write_bytes(b"{")
    with caplog.at_level(logging.ERROR):
        response = browser.api("/jobs/likes/checkpoints")
    assert error(response) == (500, "CorruptFileError")
    assert "status.json" in response.json()["error"]["message"]
    assert "status.json" in caplog.text


def test_what_was_counted_is_told_by_the_second(world, browser):
    job = world.likes
    counted = ThroughputLog(job.storage, world.clock)
    counted.begin(job.info.job_id)
    counted.count(600, 60, 20)
    counted.write()
    answer = browser.api("/jobs/likes/throughput").json()
    assert answer["step_ms"] == 10_000
    assert [point["in_per_s"] for point in answer["points"]] == [30, 30]
    assert [point["out_per_s"] for point in answer["points"]] == [3, 3]
    hours = browser.api("/jobs/likes/throughput?minutes=360").json()
    assert [(p["start_ms"] % 60_000, p["in_per_s"]) for p in hours["points"]] == [(0, 30)]
    (world.root / "likes" / "throughput.json").write_bytes(b"{")
    response = browser.api("/jobs/likes/throughput")
    assert error(response) == (500, "CorruptFileError")
    assert "throughput.json" in response.json()["error"]["message"]


def test_what_nobody_expected_is_logged_and_not_shown(world, browser, caplog, monkeypatch):
    def explode():
        raise RuntimeError("the inner workings")

    monkeypatch.setattr(world.jobs, "all", explode)
    response = browser.api("/jobs")
    assert error(response) == (500, "InternalError")
    assert "inner workings" not in response.text
    assert "the inner workings" in caplog.text
    assert browser.get("/metrics").status_code == 500


def test_a_storage_that_hangs_does_not_hang_the_caller(world, browser, monkeypatch):
    import threading

    release = threading.Event()
    monkeypatch.setattr(api, "_TIMEOUT_S", 0.2)
    monkeypatch.setattr(world.jobs, "list", lambda: release.wait(20))
    threading.Timer(1.0, release.set).start()
    assert error(browser.api("/jobs")) == (504, "Timeout")


def test_many_at_once(world):
    browser: Browser = world.browser()

    async def calls():
        import httpx

        transport = httpx.ASGITransport(app=browser._app)
        async with httpx.AsyncClient(transport=transport, base_url=browser._base) as client:
            return await asyncio.gather(*(client.get("/api/v1/jobs/likes") for _ in range(40)))

    assert {response.status_code for response in asyncio.run(calls())} == {200}


def test_the_newest_checkpoints_of_a_long_history(browser):
    whole = browser.api("/jobs/likes/checkpoints").json()
    one = browser.api("/jobs/likes/checkpoints?limit=1").json()
    assert one["rows"] == whole["rows"][:1]
    assert {**one, "rows": whole["rows"]} == whole
    for wrong in ("0", "-1", "x", ""):
        assert browser.api(f"/jobs/likes/checkpoints?limit={wrong}").status_code == 400


def test_long_answers_are_compressed(browser):
    plain = browser.get("/api/v1/openapi.json", headers={"Accept-Encoding": "identity"})
    packed = browser.get("/api/v1/openapi.json", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.json() == plain.json()
    assert int(packed.headers["content-length"]) < len(plain.content) / 3
