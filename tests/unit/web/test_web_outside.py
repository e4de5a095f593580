"""A dashboard that is reachable from other machines: everybody needs the token."""

import pytest
from web_guard_support import FOREIGN, OWN, PATHS, cookie_of, post
from web_support import BEARER, TOKEN


@pytest.fixture
def outside(world):
    return world.browser(host="0.0.0.0", allowed_hosts=["jobs.example"])


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT"])
def test_from_elsewhere_everything_needs_the_token(outside, method):
    for path in PATHS:
        assert outside.request(method, path).status_code == 401
        assert outside.request(method, path, headers=BEARER).status_code in (200, 404, 405)


def test_from_elsewhere_people_are_asked_for_the_token(outside):
    page = outside.get("/jobs/likes")
    assert "<form" in page.text and 'action="/session"' in page.text
    assert "'unsafe-inline'" not in page.headers["content-security-policy"]
    assert outside.api("/jobs").json()["error"]["kind"] == "TokenNeeded"
    assert outside.api("/about", headers=BEARER).json()["needs_token"] is True


def test_the_form_gives_the_cookie(outside):
    response = outside.request("POST", "/session", data={"token": TOKEN}, headers=OWN)
    assert response.status_code == 303
    assert response.headers["location"] == "/"
    cookie = cookie_of(response)
    assert outside.get("/metrics", headers=cookie).status_code == 200


def test_the_form_leads_to_what_was_asked_for_and_never_elsewhere(outside):
    page = outside.get('/jobs/a%2F"><script>').text
    assert 'name="to" value="/jobs/a%2F' in page and "<script>" not in page
    for to, location in {
        "/jobs/a%2Fb": "/jobs/a%2Fb",
        "//evil.example/": "/evil.example/",
        "https://evil.example": "/https://evil.example",
        "/\r\nSet-Cookie: a=b": "/%0D%0ASet-Cookie:%20a=b",
    }.items():
        data = {"token": TOKEN, "to": to}
        response = outside.request("POST", "/session", data=data, headers=OWN)
        assert response.headers["location"] == location


@pytest.mark.parametrize("data", [{}, {"token": "wrong"}, {"token": "x" * 9_000}, {"other": "1"}])
def test_the_form_with_a_wrong_token_asks_again(outside, data):
    response = outside.request("POST", "/session", data=data, headers=OWN)
    assert response.status_code == 401
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize("headers", FOREIGN)
def test_another_page_cannot_submit_the_form(outside, headers):
    response = outside.request("POST", "/session", data={"token": TOKEN}, headers=headers)
    assert response.status_code == 403
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("jobs.example", 200),
        ("jobs.example:443", 200),
        ("JOBS.example", 200),
        ("10.1.2.3:8081", 200),
        ("other.example:8081", 403),
        ("10.1.2.3:99", 403),
    ],
)
def test_from_elsewhere_names_are_checked_too(outside, host, status):
    assert outside.api("/jobs", headers={"Host": host, **BEARER}).status_code == status


def test_behind_tls_the_origin_is_https_and_the_cookie_secure(world):
    browser = world.browser(allowed_hosts=["jobs.example"])
    browser._base = "https://jobs.example"
    response = browser.get(f"/?token={TOKEN}")
    assert "Secure" in response.headers["set-cookie"]
    headers = {**cookie_of(response), "X-Turnback": "1", "Origin": "https://jobs.example"}
    assert post(browser, **headers).status_code == 202
