"""Who may: faults 32 and 33, against the application itself."""

import asyncio
import logging

import pytest
from web_guard_support import FOREIGN, OWN, PATHS, cookie_of, post
from web_support import BEARER, TOKEN

from turnback.errors import ConfigurationError
from turnback.web.guard import LoginThrottle, Session

# -- who calls by which name


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:8081",
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:80",
        "127.0.0.1:8082",
        "localhost",
        "localhost.evil.example:8081",
        "127.0.0.1.evil.example:8081",
        "0.0.0.0:8081",
        "192.168.1.5:8081",
        "[::1",
        "[::2]:8081",
        "127.0.0.1:8081@evil.example",
        "",
        "2130706433:8081",
    ],
)
def test_a_foreign_host_is_refused_everywhere(browser, host):
    for path in PATHS:
        response = browser.get(path, headers={"Host": host, **BEARER})
        assert response.status_code == 403
        assert response.json()["error"]["kind"] == "ForeignHost"


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8081", "localhost:8081", "LocalHost:8081", "[::1]:8081", "127.0.0.2:8081"]
)
def test_names_of_this_machine_are_ours(browser, host):
    assert browser.api("/jobs", headers={"Host": host}).status_code == 200


def test_a_foreign_host_cannot_post(world, browser):
    assert post(browser, Host="evil.example:8081", **BEARER).status_code == 403
    assert world.asked() == []


# -- who sends it


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_post_from_another_page_is_refused_even_with_the_token(world, browser, headers):
    response = post(browser, **BEARER, **headers)
    assert response.status_code == 403
    assert response.json()["error"]["kind"] == "ForeignOrigin"
    assert world.asked() == []


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, FOREIGN[0]])
def test_another_page_cannot_read_the_api_or_metrics(browser, headers):
    assert browser.api("/jobs", headers=headers).status_code == 403
    assert browser.get("/metrics", headers=headers).status_code == 403


def test_a_link_from_another_page_leads_to_the_page(browser):
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert browser.get("/jobs/likes", headers=headers).status_code == 200


def test_a_preflight_is_refused_and_no_answer_ever_allows_another_origin(browser):
    headers = {**FOREIGN[0], "Access-Control-Request-Method": "POST"}
    responses = [
        browser.request("OPTIONS", "/api/v1/jobs/likes/savepoint", headers=headers),
        browser.request("OPTIONS", "/api/v1/jobs"),
        browser.api("/jobs", headers=OWN),
        post(browser, **BEARER, **OWN),
    ]
    assert [r.status_code for r in responses] == [403, 405, 200, 202]
    for response in responses:
        assert not [name for name in response.headers if name.startswith("access-control")]


# -- what it shows


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"Cookie": f"turnback_8081={TOKEN}", "X-Turnback": "1"},
        {"Cookie": "turnback_8081=", "X-Turnback": "1"},
        {"Cookie": "turnback_8081=ÿ", "X-Turnback": "1"},
        {"X-Turnback": "1"},
    ],
)
def test_a_post_without_the_token_is_refused(world, browser, headers):
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    for action in ("savepoint", "stop", "cancel"):
        response = browser.post(f"/jobs/likes/{action}", {}, headers=encoded)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
    assert world.asked() == []


def test_the_token_in_the_address_becomes_a_cookie(world, browser):
    response = browser.get(f"/jobs/likes?a=1&token={TOKEN}&b=%26")
    assert response.status_code == 303
    assert response.headers["location"] == "/jobs/likes?a=1&b=%26"
    given = response.headers["set-cookie"]
    assert TOKEN not in given
    for part in ("HttpOnly", "SameSite=strict", "Path=/"):
        assert part in given
    cookie = cookie_of(response)
    assert browser.api("/about", headers=cookie).json()["authorized"] is True
    assert post(browser, **cookie).status_code == 403
    assert post(browser, **cookie, **{"X-Turnback": "0"}).status_code == 403
    assert world.asked() == []
    assert post(browser, **cookie, **OWN, **{"X-Turnback": "1"}).status_code == 202


def test_a_stale_typed_token_does_not_hide_a_good_cookie(browser):
    cookie = cookie_of(browser.get(f"/?token={TOKEN}"))
    headers = {**cookie, "Authorization": "Bearer old", "X-Turnback": "1"}
    assert post(browser, **headers).status_code == 202


def test_a_cookie_of_another_token_is_worth_nothing(browser):
    other = Session("another-token-of-sixteen", 8081)._value
    headers = {"Cookie": f"turnback_8081={other}", "X-Turnback": "1"}
    assert post(browser, **headers).status_code == 401


@pytest.mark.parametrize(
    "path", ["//evil.example", "///evil.example/x", "/%5Cevil.example", "/\\e"]
)
def test_the_way_back_never_leads_elsewhere(world, path):
    async def call():
        sent = []
        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(),
            "query_string": f"token={TOKEN}".encode(), "headers": [(b"host", b"localhost:8081")],
            "scheme": "http", "http_version": "1.1", "root_path": "",
        }  # fmt: skip

        async def send(message):
            sent.append(message)

        await world.app()(scope, None, send)
        return dict(sent[0]["headers"])[b"location"]

    location = asyncio.run(call())
    assert location.startswith(b"/") and location[1:2] not in (b"/", b"\\")


@pytest.mark.parametrize("token", ["wrong", "", "ÿ", "x" * 5000])
def test_a_wrong_token_in_the_address_asks_again(browser, token):
    response = browser.get("/", params={"token": token})
    assert response.status_code == 401
    assert "set-cookie" not in response.headers
    assert "<form" in response.text
    assert token == "" or token not in response.text


def test_tokens_are_not_logged(world, browser, caplog, monkeypatch):
    def explode():
        raise RuntimeError("x")

    monkeypatch.setattr(world.jobs, "list", explode)
    with caplog.at_level(logging.DEBUG):
        browser.get(f"/?token={TOKEN}")
        browser.api(f"/jobs?token={TOKEN}", headers=BEARER)
        browser.api("/jobs", headers=BEARER)
    ours = [r.getMessage() for r in caplog.records if not r.name.startswith("httpx")]
    assert ours and not [line for line in ours if TOKEN in line]
    assert TOKEN not in repr(world.app().user_middleware[0].kwargs["site"])


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""],
)
def test_only_json_is_taken(world, browser, kind):
    headers = {**BEARER, "Content-Type": kind}
    path = "/api/v1/jobs/likes/cancel"
    response = browser.request("POST", path, content=b"{}", headers=headers)
    assert response.status_code == 415
    assert world.asked() == []


def test_read_only_means_that_nobody_may(world):
    browser = world.browser(read_only=True)
    for action in ("savepoint", "stop", "cancel"):
        response = browser.post(f"/jobs/likes/{action}")
        assert response.status_code == 403
        assert response.json()["error"]["kind"] == "ReadOnly"
    assert world.asked() == []
    assert browser.api("/jobs/likes").status_code == 200


# -- below a path of a proxy


@pytest.mark.parametrize("given", ["", "/turnback"])
def test_below_a_path(world, given):
    browser = world.browser(root_path="/turnback/")
    assert '"/turnback/static/app.js"' in browser.get(f"{given}/jobs/likes").text
    assert browser.get(f"{given}/api/v1/jobs").status_code == 200
    response = browser.get(f"{given}/jobs/likes?token={TOKEN}")
    assert response.headers["location"] == "/turnback/jobs/likes"
    assert "Path=/turnback;" in response.headers["set-cookie"]
    assert browser.get("/turnbacks").status_code == 404


@pytest.mark.parametrize("path", ["turnback", "//x", "/a b", '/"><script>', "/a/../b", "/a?b"])
def test_paths_that_cannot_be_used(world, path):
    with pytest.raises(ConfigurationError, match="invalid root path"):
        world.app(root_path=path)


# -- headers


def test_every_answer_has_its_headers(browser):
    wanted = {
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
        "x-frame-options": "DENY",
    }
    for response in [*map(browser.get, PATHS), browser.get("/", headers={"Host": "evil"})]:
        assert wanted.items() <= dict(response.headers).items()
        policy = response.headers["content-security-policy"]
        assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy


# -- settings


@pytest.mark.parametrize("token", ["", " ", "a b", "tök", "a\n", None, 5])
def test_tokens_that_cannot_be_used(world, token):
    with pytest.raises(ConfigurationError, match="token"):
        world.app(token=token)


def test_a_short_token_does_for_this_machine_only(world):
    world.app(token="short")
    with pytest.raises(ConfigurationError, match="16"):
        world.app(token="short", host="0.0.0.0")
    with pytest.raises(ConfigurationError, match="16"):
        world.app(token="short", allowed_hosts=["jobs.example"])


def test_allowed_hosts_must_be_names(world):
    with pytest.raises(ConfigurationError, match="invalid allowed host"):
        world.app(allowed_hosts=["http://x/"])
    with pytest.raises(ConfigurationError, match="list of names"):
        world.app(allowed_hosts="jobs.example")


def test_no_websocket_is_opened(world):
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(world.app()({"type": "websocket", "path": "/", "headers": []}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


# -- who guesses


def test_whoever_guesses_has_to_wait(world, browser):
    """Wherever the token is guessed; whoever is logged in goes on."""
    session = cookie_of(browser.get(f"/?token={TOKEN}"))
    for n in range(4):
        assert browser.get(f"/?token=wrong-{n}").status_code == 401
        assert browser.request("POST", "/session", data={"token": "wrong"}).status_code == 401
    for _ in range(2):
        assert post(browser, Authorization="Bearer wrong").status_code == 401
    for answer in (
        browser.get("/?token=wrong"),
        browser.get(f"/?token={TOKEN}"),
        browser.request("POST", "/session", data={"token": TOKEN}),
        post(browser, **BEARER),
        browser.api("/jobs", headers={"Authorization": "Bearer wrong"}),
    ):
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "60"
        assert answer.json()["error"]["kind"] == "TooManyWrongTokens"
    assert world.asked() == []
    assert browser.api("/jobs").status_code == 200
    assert post(browser, **session, **{"X-Turnback": "1"}).status_code == 202
    world.clock.advance(60_000)
    assert post(browser, **BEARER).status_code == 202


def test_many_clients_together_have_to_wait_too():
    now = [0]
    wrong = LoginThrottle(lambda: now[0])
    for n in range(3_000):
        wrong.count(f"client {n}")
    assert wrong.wait_s("another") == 60
    now[0] = 30_500
    assert wrong.wait_s("another") == 30
    now[0] = 60_000
    assert wrong.wait_s("another") is None
    assert len(wrong._times) < 1_100


def test_a_login_from_elsewhere_leads_on_from_a_page_of_ours(browser):
    """A redirect would arrive without the cookie, which is strict."""
    answer = browser.get(f"/jobs/a%22b?token={TOKEN}&x=1", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200
    assert "/jobs/a%22b?x=1" in answer.text and TOKEN not in answer.text
    assert cookie_of(answer)["Cookie"].startswith("turnback_8081=")
